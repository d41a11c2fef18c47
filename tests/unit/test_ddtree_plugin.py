"""What the plugin says where there is no engine, and how its table of functions is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ddtree import compat, plugin


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `sglang` of a few lines, found before anything else."""
    module = tmp_path / "sglang/srt/part.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "sglang/__init__.py").write_text("")
    module.write_text("class A:\n    @staticmethod\n    def f(x):\n        return x\n\n\nX = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    compat._parsed.cache_clear()
    return module


def test_without_an_engine_it_says_so() -> None:
    assert compat.problems() == ["sglang is not installed here"]
    done = subprocess.run(
        [sys.executable, "-m", "sglang_ddtree"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == ["sglang is not installed here"]


def test_registering_without_an_engine_is_kept_as_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin, "_state", plugin.Health())
    with pytest.raises(ImportError):
        plugin.register()
    assert not plugin.health().ok
    assert "No module named 'sglang'" in plugin.health().problems[0]


def test_a_fingerprint_is_of_the_text(engine: Path) -> None:
    first = compat.fingerprint("srt.part", "A.f")
    assert first is not None
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert compat.source_of("srt.part", "A.f") == "def f(x):\n        return x"
    engine.write_text(engine.read_text().replace("return x", "return x + 1"))
    compat._parsed.cache_clear()
    assert compat.fingerprint("srt.part", "A.f") != first
    said = list(compat.moved({"srt.part": {"A.f": [first], "A.g": [first]}, "srt.no": {"f": []}}))
    assert said[0].startswith("sglang.srt.part.A.f has changed (")
    assert said[1:] == ["sglang.srt.part.A.g is missing", "sglang.srt.no.f is missing"]


def test_the_table_is_whole() -> None:
    table = compat.known()
    for module, names in table.items():
        assert module.startswith(("srt.", "kernels."))
        for name, good in names.items():
            assert good, name
            assert all(re.fullmatch("[0-9a-f]{12}", h) for h in good), name
