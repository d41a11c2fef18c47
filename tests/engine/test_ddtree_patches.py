"""patches/: each series goes on in order and comes off again, and each patch changes what it says.

A check of tests/engine/inside/patch_checks.py fails on the released engine and passes on the
patched one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.engine.ddtree_support import REPO
from tests.engine.patched import SERIES, git_apply, linked_tree, names, package_of, patched_tree
from tests.engine.test_ddtree_inside import CPU

pytestmark = pytest.mark.engine

ENGINE, LEGACY = "sglang-0.5.23", "sglang-0.5.11"
HEADERS = ("What: ", "Why: ", "Upstream: ", "Test: ")


def checks(python: Path, path: Path | None) -> dict[str, str | None]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDTREE_", "SGLANG_"))}
    environ = {**clean, **CPU, "DDTREE_TEST_MODELS": str(REPO / "lab/models")}
    if path is not None:
        environ["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [str(python), str(REPO / "tests/engine/inside/patch_checks.py")], env=environ,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def tree(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return patched_tree(package_of(engine_python), tmp_path_factory.mktemp("patched"))


@pytest.fixture(scope="module")
def before(engine_python: Path) -> dict[str, str | None]:
    return checks(engine_python, None)


@pytest.fixture(scope="module")
def after(engine_python: Path, tree: Path) -> dict[str, str | None]:
    return checks(engine_python, tree)


@pytest.mark.parametrize(
    ("check", "fails_with"),
    [
        ("p1", "has no attribute 'need_topk'"),
        ("p2", "AssertionError"),
        ("p3", "AssertionError"),
        ("p4", "cannot import name 'check_tree_mask_support'"),
        ("p5", "prefix_is_read"),
        ("p6", "unrecognized arguments: --speculative-ddtree-budget"),
        ("p7", "AssertionError"),
    ],
    ids=lambda v: v if len(v) == 2 else "",
)
def test_each_patch_changes_what_it_says(
    before: dict[str, str | None], after: dict[str, str | None], check: str, fails_with: str
) -> None:
    assert before[check] is not None
    assert fails_with in str(before[check])
    assert after[check] is None


def test_the_plugin_fits_the_patched_engine_too(engine_python: Path, tree: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDTREE_", "SGLANG_"))}
    done = subprocess.run(
        [str(engine_python), "-m", "sglang_ddtree"],
        env={**clean, **CPU, "PYTHONPATH": str(tree)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1])["problems"] == []


def released(engine: str, python: Path, folder: Path) -> Path:
    """The package of a release: the installed one, or its wheel by this host's pip."""
    if engine == ENGINE:
        return package_of(python)
    done = subprocess.run(
        [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-input", "-d", str(folder),
         engine.replace("-", "==")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    wheels = list(folder.glob("sglang-*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of {engine} here: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder / "wheel")
    return folder / "wheel" / "sglang"


@pytest.mark.parametrize("engine", [ENGINE, LEGACY])
def test_a_series_goes_on_in_order_and_comes_off_again(
    engine: str, engine_python: Path, tmp_path: Path
) -> None:
    work = linked_tree(released(engine, engine_python, tmp_path / "w"), tmp_path / "t", engine)
    patches = [SERIES / engine / name for name in names(engine)]
    assert {p.name for p in patches} == {p.name for p in (SERIES / engine).glob("*.patch")}
    for patch in patches:
        done = git_apply(work, patch)
        assert done.returncode == 0, f"{patch.name}: {done.stderr}"
        assert git_apply(work, patch, "--check").returncode != 0, "it would go on twice"
    for patch in reversed(patches):
        assert git_apply(work, patch, "--reverse").returncode == 0, patch.name
        assert git_apply(work, patch, "--check").returncode == 0


@pytest.mark.parametrize("engine", [ENGINE, LEGACY])
def test_each_patch_says_what_why_and_where_it_stands(engine: str) -> None:
    for name in names(engine):
        head = (SERIES / engine / name).read_text().split("\n---\n")[0].splitlines()
        for header in HEADERS:
            (line,) = [text for text in head if text.startswith(header)]
            assert len(line) > len(header) + 4
        guard = next(text for text in head if text.startswith("Test: ")).removeprefix("Test: ")
        file, _, test = guard.partition("::")
        assert f"def {test.partition('[')[0]}(" in (REPO / file).read_text(), guard


@pytest.fixture(scope="module")
def legacy(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """0.5.11 as it was released, and patched."""
    folder = tmp_path_factory.mktemp("legacy")
    package = released(LEGACY, engine_python, folder / "w")
    return package.parent, patched_tree(package, folder / "t", LEGACY)


def run(python: Path, code: str, file: Path) -> str:
    """A script over one patched file that needs nothing but torch; its output."""
    done = subprocess.run(
        [str(python), "-c", code, str(file)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def source(tree: Path, file: str) -> str:
    return (tree / "sglang/srt" / file).read_text()


def function(text: str, name: str) -> str:
    """The source of one function or method, from wherever it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return str(ast.get_source_segment(text, node))
    raise AssertionError(f"no function {name}")


def test_l1_widths_differ(legacy: tuple[Path, Path], engine_python: Path) -> None:
    old, new = legacy
    runner = "model_executor/cuda_graph_runner.py"
    assert "verify_width(" not in source(old, runner)
    assert "verify_width(" in function(source(new, runner), "__init__")
    done = run(engine_python, WIDTHS, new / "sglang/srt/speculative/dflash_tree.py")
    assert json.loads(done) == {"drafter": 8, "target": 13, "tree": True}


def test_l2_no_offset_is_left_to_the_server(legacy: tuple[Path, Path]) -> None:
    """Every offset of a verify batch is a multiple of the batch's own width."""
    file = "layers/attention/triton_backend.py"
    for tree, expected in zip(legacy, (14, 1), strict=True):
        reads = [
            node
            for node in ast.walk(ast.parse(source(tree, file)))
            if isinstance(node, ast.Attribute)
            and node.attr == "num_draft_tokens"
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ]
        assert len(reads) == expected
    assert 'getattr(spec_info, "draft_token_num", None)' in function(
        source(legacy[1], file), "_verify_width"
    )


def test_l3_a_tree_is_captured_with_a_mask(legacy: tuple[Path, Path]) -> None:
    old, new = (
        function(source(tree, "model_executor/cuda_graph_runner.py"), "get_spec_info")
        for tree in legacy
    )
    assert "is_tree" not in old
    assert "build_custom_mask = build_custom_mask or is_tree(" in new


WIDTHS = """
import json, sys
from types import SimpleNamespace
exec(open(sys.argv[1]).read())
args = SimpleNamespace(speculative_dflash_block_size=8, speculative_num_draft_tokens=13,
                       speculative_eagle_topk=4)
print(json.dumps({"drafter": verify_width(args, is_draft_worker=True),
                  "target": verify_width(args, is_draft_worker=False), "tree": is_tree(args)}))
"""

LINKS = """
import json, sys, torch
from typing import Any, Callable
exec(open(sys.argv[1]).read())
parents = torch.tensor([[-1, 0, 0, 1, 1, 2, -1], [-1, 0, 1, 2, 3, 4, 5]])
got = {}
def kernel(**given):
    got.update({k: v.tolist() for k, v in given.items() if isinstance(v, torch.Tensor)})
tree_accept_sampled(candidates=torch.arange(14).view(2, 7), parents=parents,
    target_probs=torch.ones(2, 7, 3), coins=torch.rand(2, 7), final_coins=torch.rand(2),
    max_depth=6, kernel=kernel)
print(json.dumps([got["retrive_next_token"], got["retrive_next_sibling"],
                  got["draft_probs"][0][0]]))
"""


def test_l4_links_carry_any_tree_to_the_sampler(
    legacy: tuple[Path, Path], engine_python: Path
) -> None:
    file = legacy[1] / "sglang/srt/speculative/dflash_tree.py"
    first, following, draft = json.loads(run(engine_python, LINKS, file))
    assert first == [[1, 3, 5, -1, -1, -1, -1], [1, 2, 3, 4, 5, 6, -1]]
    assert following == [[-1, 2, -1, 4, -1, -1, -1], [-1] * 7]
    assert draft == [0.0] * 3
