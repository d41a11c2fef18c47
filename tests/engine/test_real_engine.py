"""The first real deploy: SGLang 0.5.23 on CPU, proven against Hugging Face's own tokens.

Everything here is `device=cpu`: it proves the deploy, not a speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.ledger import Ledger, Outcome
from tests.engine.conftest import REPO, EngineLab

pytestmark = pytest.mark.engine


def ask(url: str, prompt: dict[str, object], tokens: int) -> dict[str, object]:
    """One greedy answer of the served model, over HTTP."""
    body = {
        "input_ids": prompt["input_ids"],
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        value: dict[str, object] = json.loads(answer.read())
    return value


def status(lab: EngineLab) -> dict[str, object]:
    rows = lab.ddops("status", "lab", "--json").data()
    assert isinstance(rows, list)
    row: dict[str, object] = rows[0]
    return row


@pytest.mark.parametrize("profile", ["tiny-ar", "tiny-ngram", "tiny-dflash", "tiny-ddtree"])
def test_each_mode_passes_its_gates_and_says_who_it_is(engine_lab: EngineLab, profile: str) -> None:
    done = engine_lab.ddops("deploy", "lab", "--profile", profile)
    assert "G4 exactness PASS" in done.err
    row = status(engine_lab)
    assert row["health"] == "ok"
    server = row["server"]
    assert isinstance(server, dict)
    assert server["version"] == "0.5.23"
    assert server["device"] == "cpu"
    assert "ddops_simulated" not in server
    golden = json.loads((REPO / "lab/models/golden.json").read_text())
    for prompt in golden["prompts"]:
        answer = ask(str(row["url"]), prompt, len(prompt["output_ids"]))
        assert answer["output_ids"] == prompt["output_ids"], prompt["id"]
        meta = answer["meta_info"]
        assert isinstance(meta, dict)
        assert meta["weight_version"] == f"{str(row['release'])[:12]}-{row['nonce']}"
        if profile in ("tiny-dflash", "tiny-ddtree"):
            assert 0 < int(meta["spec_verify_ct"]) < len(prompt["output_ids"])


def test_the_same_release_again_changes_nothing(engine_lab: EngineLab) -> None:
    engine_lab.ddops("deploy", "lab", "--profile", "tiny-dflash")
    before = status(engine_lab)
    done = engine_lab.ddops("deploy", "lab", "--profile", "tiny-dflash")
    assert "unchanged" in done.out
    after = status(engine_lab)
    assert (after["pid"], after["nonce"]) == (before["pid"], before["nonce"])


def test_an_engine_that_answers_otherwise_is_taken_back(engine_lab: EngineLab) -> None:
    """A golden file that the engine does not answer stands for an engine that answers wrong."""
    engine_lab.ddops("deploy", "lab", "--profile", "tiny-dflash")
    good = status(engine_lab)
    golden = json.loads((REPO / "lab/models/golden.json").read_text())
    golden["prompts"][0]["output_ids"][5] ^= 1
    override = engine_lab.root / "lab/models/golden.json"
    override.parent.mkdir(parents=True)
    override.write_text(json.dumps(golden))
    try:
        done = engine_lab.ddops("deploy", "lab", "--profile", "tiny-ar", ok=False)
    finally:
        override.unlink()
    assert done.rc == 5, done.err
    assert "from token 5" in done.err
    row = status(engine_lab)
    assert row["health"] == "ok"
    assert row["release"] == good["release"]
    with Ledger.open(engine_lab.root / ".ddops/ledger.db", redactor=Redactor(), readonly=True) as k:
        last = k.deployments(service="tiny", limit=1)[0]
        states = {t.state: t.verdict for t in k.transitions(last.op_id)}
        assert states["rolling_back"] is Outcome.FAIL
        assert states["restored"] is Outcome.OK
        assert "committed" not in states
        assert k.verify() == []


def test_a_flag_that_the_engine_does_not_know_fails_fast(engine_lab: EngineLab) -> None:
    profile = (REPO / "inventory/profiles/tiny-ar.toml").read_text()
    target = engine_lab.root / "inventory/profiles/bad-flag.toml"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(profile.replace("[launch]", "[launch]\ncuda-graph-max-bs = 8", 1))
    engine_lab.ddops("deploy", "lab", "--profile", "tiny-dflash")
    try:
        done = engine_lab.ddops("deploy", "lab", "--profile", "bad-flag", ok=False)
    finally:
        target.unlink()
    assert done.rc == 4, done.err
    assert "RUN-01" in done.err
    assert "--cuda-graph-max-bs" in done.err


def test_the_installed_engine_has_the_last_word_on_a_flag(engine_lab: EngineLab) -> None:
    """A table that does not know better is waived; the engine's own parser cannot be."""
    profile = (REPO / "inventory/profiles/tiny-ar.toml").read_text()
    target = engine_lab.root / "inventory/profiles/bad-flag.toml"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(profile.replace("[launch]", "[launch]\natention-backend = 'triton'", 1))
    waivers = engine_lab.root / "inventory/waivers.toml"
    waivers.write_text(
        '[[waiver]]\ncheck = "RUN-01"\non = ["lab"]\nreason = "x"\nowner = "x"\n'
        "until = 2099-01-01\n"
    )
    try:
        done = engine_lab.ddops("deploy", "lab", "--profile", "bad-flag", ok=False)
    finally:
        target.unlink()
        waivers.unlink()
    assert done.rc == 4, done.err
    assert "the installed engine does not take this launch" in done.err
    assert "nearest is --attention-backend" in done.err


def test_what_lets_sglang_run_on_a_cpu_is_right(engine_lab: EngineLab) -> None:
    """The distribution's own tests, run by the engine environment's interpreter."""
    site = sysconfig.get_path("purelib")
    code = (
        "import sys; sys.path.append(sys.argv[1]); import pytest;"
        "where = sys.argv[2];"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', where, where]))"
    )
    tests = REPO / "lab/engine_cpu/tests"
    done = subprocess.run(
        [str(engine_lab.env_python()), "-c", code, site, str(tests)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tests.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert sys.version_info >= (3, 11)


def test_the_environment_is_recorded(engine_lab: EngineLab) -> None:
    record = json.loads(next(engine_lab.engine_dir.glob("env/*/env.json")).read_text())
    names = {n.rsplit("-", 1)[0] for n in record["packages"]}
    assert {"torch", "sglang", "ddops_sglang_cpu", "sglang_ddtree"} <= names
    assert len(record["packages"]["sglang-0.5.23"]) == 64
    assert Path(engine_lab.env_python()).exists()
