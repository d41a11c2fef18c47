"""Drift: what is recorded against what is observed, and what cannot be seen is not "the same".

To see it fail: let `_same` in ddops/deploy/drift.py answer YES.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.deploy.drift import (
    Row,
    Same,
    environment_row,
    judge_drift,
    judge_unit,
    mends,
    pending_row,
)
from ddops.deploy.environment import Environment
from ddops.deploy.host import Links
from ddops.deploy.release import Release
from ddops.engines import LaunchSpec
from ddops.gates import Observation
from ddops.gates.observation import Answer, Launch, Port
from ddops.model import State
from tests.guards.source import ROOT

A, B = "a" * 64, "b" * 64
VERSION = f"{A[:12]}-n1"
LIVE = Links(A, A)
RELEASE = Release(A, {}, LaunchSpec((), ()), {"tp_size": 8}, (), None, None)
FILES = {"release.json": "{}", "gates.json": "[]"}
SEEN = Observation(
    1.0, A, Launch("n1", VERSION, A, "op", 7, 6, 1.0), State.UP, "", 7, 1.0, 1,
    Port(1, True, True, "pid 7"), 0, "", Answer(200),
    Answer(200, values={"weight_version": VERSION}), Answer(200, values={"tp_size": 8}),
)  # fmt: skip
RAW: dict[str, Any] = {
    "argv": ["/e/bin/python", "-m", "sglang.launch_server", "--tp-size", "8", "--weight-version",
             VERSION],
    "environ": {"A": "1", "HF_TOKEN": True},
    "launch": {"argv": ["/e/bin/python", "-m", "sglang.launch_server", "--tp-size", "8"],
               "env": {"A": "1"}},
    "files": {n: hashlib.sha256(t.encode()).hexdigest() for n, t in FILES.items()},
    "code": {"sglang": {"files": 9, "changed": [], "missing": [], "extra": [], "total": 0}},
}  # fmt: skip


def odd(raw: dict[str, Any] | None = None, seen: Observation = SEEN,
        links: Links = LIVE) -> dict[str, tuple[str, str]]:  # fmt: skip
    rows = judge_drift(seen, links, RELEASE, FILES, {**RAW, **(raw or {})})
    assert all(r.recorded and r.observed for r in rows)
    return {r.what: (r.verdict.value, r.observed) for r in rows if r.verdict is not Same.YES}


def of_unit(**found: object) -> dict[str, tuple[str, str]]:
    rows = judge_unit({"installed": True, "diff": [], "enabled": "enabled", **found})
    return {r.what: (r.verdict.value, r.observed) for r in rows if r.verdict is not Same.YES}


def test_what_is_installed_is_held_against_the_release() -> None:
    assert of_unit() == {}
    assert of_unit(installed=False) == {"unit": ("drift", "not installed")}
    assert of_unit(diff=["-Restart=always", "+Restart=no"])["unit"][1] == (
        "-Restart=always; +Restart=no"
    )
    odd = of_unit(drop_ins=["/etc/x.d/a.conf"], reload=True, enabled="disabled")
    assert set(odd) == {"unit drop-ins", "unit loaded", "unit at boot"}
    assert odd["unit drop-ins"] == ("drift", "/etc/x.d/a.conf")
    assert of_unit(enabled="")["unit at boot"] == ("drift", "unknown")


def test_no_drift() -> None:
    assert odd() == {}


@pytest.mark.parametrize(
    ("raw", "what", "verdict", "words"),
    [
        ({"argv": [*RAW["argv"], "--x"]}, "argv", "drift", "--x"),
        ({"argv": RAW["argv"][:-2]}, "argv", "drift", "-"),
        ({"argv": [*RAW["argv"][:3], "8", "--tp-size", *RAW["argv"][5:]]}, "argv", "drift",
         "order"),
        ({"argv": None}, "argv", "unknown", "cannot be read"),
        ({"environ": {"A": "2", "HF_TOKEN": True}}, "env A", "drift", "2"),
        ({"environ": {"A": None, "HF_TOKEN": True}}, "env A", "drift", "not set"),
        ({"environ": {"A": "1", "HF_TOKEN": False}}, "env HF_TOKEN", "drift", "not set"),
        ({"environ": None}, "environment", "unknown", "cannot be read"),
        ({"files": {**RAW["files"], "gates.json": "x"}}, "release files", "drift", "gates.json"),
        ({"files": {}}, "release files", "drift", "gates.json, release.json"),
        ({"code": None}, "code", "drift", "not there"),
        ({"code": {"sglang": {"error": "gone"}}}, "code sglang", "unknown", "gone"),
        ({"code": {"sglang": {"files": 9, "changed": ["sglang/a.py"], "missing": [],
                              "extra": ["sglang/b.py"], "total": 2}}},
         "code sglang", "drift", "changed: sglang/a.py; extra: sglang/b.py"),
    ],
)  # fmt: skip
def test_each_kind(raw: dict[str, Any], what: str, verdict: str, words: str) -> None:
    found = odd(raw)
    assert list(found) == [what]
    assert found[what][0] == verdict
    assert words in found[what][1]


@pytest.mark.parametrize(
    ("change", "whats"),
    [
        ({"engine": State.DOWN, "engine_why": "the process is gone"}, {"process": "drift"}),
        ({"engine": State.UNKNOWN}, {"process": "unknown"}),
        ({"launch": Launch("n1", f"{B[:12]}-n1", B, "op", 7, 6, 1.0)},
         {"launched": "drift", "identity": "drift", "argv": "drift"}),
        ({"server_info": Answer(200, values={"tp_size": 4})}, {"identity": "drift"}),
    ],
)  # fmt: skip
def test_what_runs(change: dict[str, Any], whats: dict[str, str]) -> None:
    found = odd(seen=dataclasses.replace(SEEN, **change))
    assert {k: v[0] for k, v in found.items()} == whats


def test_a_release_that_never_passed_is_drift() -> None:
    assert set(odd(links=Links(A, B))) == {"current"}
    assert set(odd(links=Links(A, None))) == {"current"}


@pytest.mark.parametrize(
    ("wanted", "current", "verdict"),
    [(A, A, Same.YES), (B, A, Same.NO), (A, None, Same.NO), (None, A, Same.UNKNOWN)],
)
def test_what_the_inventory_would_deploy(
    wanted: str | None, current: str | None, verdict: Same
) -> None:
    assert pending_row(wanted, current).verdict is verdict


def environment(folder: Path) -> Path:
    """An engine environment of one wheel, as pip would leave it."""
    site = folder / "env/x/lib/python3.11/site-packages"
    files = {"sglang/__init__.py": b"", "sglang/srt/mask.py": b"block = 8\n"}
    rows = [["sglang-0.5.23.dist-info/RECORD", "", ""], ["../../../bin/sglang", "sha256=x", "1"]]
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append([name, f"sha256={digest}", str(len(data))])
    info = site / "sglang-0.5.23.dist-info"
    info.mkdir()
    with (info / "RECORD").open("w", newline="") as f:
        csv.writer(f).writerows(rows)
    return site


def looked(service: Path, pid: int) -> Any:
    done = subprocess.run(
        [sys.executable, str(ROOT / "ddops/hostside/drift.py"), str(service), str(pid)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_the_script_sees_a_hand_in_the_engine_s_code(tmp_path: Path) -> None:
    site = environment(tmp_path)
    current = tmp_path / "service/current"
    current.mkdir(parents=True)
    (current / "launch.json").write_text(
        json.dumps({"argv": [f"{tmp_path}/env/x/bin/python", "-m", "m"], "env": {"MASK": "8"}})
    )
    (current / "secrets.json").write_text('{"TOKEN": "hunter2"}')
    code = looked(current.parent, 0)["code"]
    assert code == {"sglang": {"files": 4, "changed": [], "missing": [], "extra": [], "total": 0}}
    (site / "sglang/srt/mask.py").write_text("block = 9\n")
    (site / "sglang/__init__.py").unlink()
    (site / "sglang/srt/mine.py").write_text("")
    (site / "sglang/srt/__pycache__").mkdir()
    (site / "sglang/srt/__pycache__/mask.cpython-311.pyc").write_bytes(b"")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "MASK": "9", "TOKEN": "hunter2"},
    )
    try:
        raw = looked(current.parent, child.pid)
    finally:
        child.kill()
        child.wait()
    assert raw["code"]["sglang"] == {
        "files": 4, "changed": ["sglang/srt/mask.py"], "missing": ["sglang/__init__.py"],
        "extra": ["sglang/srt/mine.py"], "total": 3,
    }  # fmt: skip
    assert raw["argv"][1:] == ["-c", "import time; time.sleep(60)"]
    assert raw["environ"] == {"MASK": "9", "TOKEN": True}
    assert "hunter2" not in json.dumps(raw)


def test_what_mends_it_is_named() -> None:
    """A deploy builds no environment, and provision starts no engine."""
    whole, gone = (
        environment_row(Environment(w)) for w in ((), ("lib is missing", "x is missing"))
    )
    blind = environment_row(Environment(unknown=("/e cannot be looked at: no sh",)))
    assert [r.verdict for r in (whole, gone, blind)] == [Same.YES, Same.NO, Same.UNKNOWN]
    assert gone.observed == "lib is missing; x is missing"
    other = pending_row(B, A)
    assert mends("h", [whole, other]) == "ddops deploy h"
    assert mends("h", [gone, pending_row(A, A)]) == "ddops provision h"
    assert mends("h", [gone, Row("code", "x", "is not there", Same.NO)]) == "ddops provision h"
    assert mends("h", [gone, other]) == "ddops provision h, then ddops deploy h"
