"""The installed engine's own parser, asked of the stand-in, and what is made of its answer.

To see it fail: let `fault` in ddops/hostside/preflight.py return at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.deploy.preflight import parse_preflight
from ddops.errors import DdopsError
from tests.guards.source import ROOT

SCRIPT = ROOT / "ddops/hostside/preflight.py"
SIM = ROOT / "lab/engine_sim"


def asked(*options: str, path: str = str(SIM), python: str = sys.executable, limit: str = "60",
          env: dict[str, str] | None = None) -> Any:  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(SCRIPT), python, json.dumps(env or {}), limit, *options],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=90,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("options", "option", "words", "nearest"),
    [
        ("--atention-backend triton", "--atention-backend", "no such option",
         "--attention-backend"),
        ("--cuda-graph-max-bs 4", "--cuda-graph-max-bs", "could match", None),
        ("--tp-size two", "--tp-size", "invalid int value", "--tp-size"),
        ("--speculative-algorithm", "--speculative-algorithm", "expected one argument",
         "--speculative-algorithm"),
        ("--zzz-qqq-xxx=1", "--zzz-qqq-xxx=1", "no such option", None),
        ("stray", "stray", "belongs to no option", None),
    ],
)  # fmt: skip
def test_a_line_that_the_engine_would_die_of(
    options: str, option: str, words: str, nearest: str | None
) -> None:
    out = asked("--model-path", "x", *options.split())
    assert out["error"] is None
    (fault,) = out["faults"]
    assert fault["option"] == option
    assert words in fault["what"]
    assert nearest is None or fault["nearest"] == nearest


def test_all_unknown_options_are_told_at_once() -> None:
    out = asked("--model-path", "x", "--nope", "--cuda-graph-max-bs", "4", "--neither")
    assert [f["option"] for f in out["faults"]] == ["--cuda-graph-max-bs", "--nope", "--neither"]


def test_a_good_line() -> None:
    out = asked("--model-path", "x", "--tp-size", "8", "--speculative-algorithm", "DDTREE")
    assert (out["engine"], out["faults"], out["error"]) == ("0.5.23", [], None)


def test_the_environment_is_there_from_the_start_and_no_gpu_is(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "version.py").write_text(
        "import os\n"
        "__version__ = os.environ['FROM_THE_RELEASE'] + os.environ['CUDA_VISIBLE_DEVICES']"
    )
    (package / "__init__.py").write_text("")
    out = asked(path=str(tmp_path), env={"FROM_THE_RELEASE": "yes", "CUDA_VISIBLE_DEVICES": "3"})
    assert out["engine"] == "yes"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import triton_that_is_not_there", "ModuleNotFoundError"),
        ("import os; os._exit(9)", "ended with 9"),
        ("print('{'); import os; os._exit(0)", "ended with 0"),
        ("import time; time.sleep(60)", "no answer within"),
        ("raise SystemExit('no')", "SystemExit"),
    ],
)
def test_an_engine_that_cannot_be_asked(code: str, words: str, tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    out = asked(path=str(tmp_path), limit="3")
    assert words in out["error"]
    assert parse_preflight(json.dumps(out), "0.5.23").faults


def test_a_plugin_that_fails_to_load_is_a_fault_though_the_engine_swallows_it(
    tmp_path: Path,
) -> None:
    package = tmp_path / "sglang"
    (package / "srt/plugins").mkdir(parents=True)
    for name in ("__init__.py", "srt/__init__.py"):
        (package / name).write_text("")
    (package / "version.py").write_text("__version__ = '0.5.23'")
    (package / "srt/plugins/__init__.py").write_text(
        "import logging\ndef load_plugins():\n    try:\n        raise KeyError('moved')\n"
        "    except KeyError:\n        logging.getLogger('x').exception('plugin ddtree')\n"
    )
    (package / "srt/server_args.py").write_text(
        "class ServerArgs:\n    @staticmethod\n    def add_cli_args(p):\n"
        "        p.add_argument('--old', help='Deprecated: use --new')\n"
    )
    out = asked("--old", "1", path=str(tmp_path))
    assert [f["option"] for f in out["faults"]] == ["plugin"]
    assert "plugin ddtree: KeyError: 'moved'" in out["faults"][0]["what"]
    assert out["warnings"] == ["--old: Deprecated: use --new"]


def test_a_python_that_is_not_there() -> None:
    assert "does not start" in asked(python="/nowhere/python")["error"]


def test_an_engine_of_another_version_is_a_fault() -> None:
    text = json.dumps(asked("--model-path", "x"))
    assert parse_preflight(text, "0.5.23").faults == ()
    (fault,) = parse_preflight(text, "0.5.11").faults
    assert "sglang 0.5.23 is installed, and the release is for 0.5.11" in fault


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "ddops.preflight/1"}', "nan"])
def test_an_answer_that_is_none(text: str) -> None:
    with pytest.raises(DdopsError, match="nothing readable"):
        parse_preflight(text, "0.5.23")
