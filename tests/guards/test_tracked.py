"""What must not be in the repository: places of one machine, registries' addresses, uv.lock.

To see it fail: write a line such as `cd /` + `root/checkout` into docs/index.md.
"""

from __future__ import annotations

import re

import pytest

from tests.guards.source import ROOT, tracked

#: A folder of the machine a file was written on. Tests make up paths of their own.
MACHINE = re.compile(rb"(?<![\w.~}*$-])/(?:work|root|home/[a-z]\w*|Users/\w+|tmp|mnt)/[\w.-]+")
REGISTRY = re.compile(
    rb"py(?:pi)\.org|python(?:hosted)\.org|download\.py(?:torch)\.org|--(?:extra-)?index-url\s+\S*://"
    rb"|https?://\S+/(?:simple|pypi|artifactory|nexus|devpi)\b|^index(?:-url)? *= *\S*://",
    re.MULTILINE,
)
TEXT_LIMIT = 4 << 20

#: File and the very text that is right there, with the reason.
ALLOWED = {
    ("ddops/layout.py", b"/tmp/ddops-"): "a socket's path may hold 107 bytes; see HostLayout",
    ("docs/reference/layout-on-a-host.md", b"/tmp/ddops-"): "the same, documented",
}


def hits(pattern: re.Pattern[bytes], *, tests: bool) -> list[str]:
    found = []
    for name in tracked():
        if name.startswith("tests/") and not tests:
            continue
        data = (ROOT / name).read_bytes()
        if len(data) > TEXT_LIMIT or b"\0" in data[:8192]:
            continue
        for match in pattern.finditer(data):
            if not any(name == n and match.group(0).startswith(t) for n, t in ALLOWED):
                line = data.count(b"\n", 0, match.start()) + 1
                found.append(f"{name}:{line}: {match.group(0).decode(errors='replace')}")
    return found


def test_no_file_names_a_place_of_one_machine() -> None:
    assert not hits(MACHINE, tests=False)


def test_no_file_names_a_package_registry() -> None:
    own = "tests/guards/test_tracked.py"
    assert not [h for h in hits(REGISTRY, tests=True) if not h.startswith(own)]


def test_no_lock_with_addresses_and_nothing_built_is_tracked() -> None:
    names = tracked()
    assert "pyproject.toml" in names
    parts = ("uv.lock", "__pycache__", ".ddops", ".venv", "dist", ".env", "node_modules")
    wrong = [n for n in names if set(n.split("/")) & set(parts) or n.endswith((".pyc", ".db"))]
    assert not wrong


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MACHINE, b"cd /" + b"work/checkout"),
        (MACHINE, b"in /root/ddops or"),
        (MACHINE, b'"/home/alice/x"'),
        (MACHINE, b"(/tmp/lab)"),
        (REGISTRY, b"--index-url https://mirror.example/root"),
        (REGISTRY, b"https://mirror.example/api/pypi/simple/"),
        (REGISTRY, b"from https://files." + b"python" + b"hosted.org/x"),
        (REGISTRY, b"index-" + b'url = "https://mirror.example/x"'),
    ],
)
def test_each_pattern_can_fail(pattern: re.Pattern[bytes], text: bytes) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize("text", [b"${engine_dir}/home/x", b"tests/work/x", b"~/tmp/x", b"/tmp"])
def test_other_paths_pass(text: bytes) -> None:
    assert not MACHINE.search(text)
