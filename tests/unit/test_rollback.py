"""Which release a host goes back to, and what is refused.

To see it fail: drop `if r in staged` in ddops/deploy/rollback.py.
"""

from __future__ import annotations

import json

import pytest

from ddops.deploy.release import staged_release
from ddops.deploy.rollback import WayBack, way_back
from ddops.engines import LaunchSpec, release_content, release_digest
from ddops.errors import DdopsError, RefusedError

A, B, C, D = (c * 64 for c in "abcd")


def row(release: str, state: str = "committed", verdict: str = "ok", service: str = "k") -> str:
    return json.dumps(
        {"op": "x", "service": service, "release": release, "state": state, "verdict": verdict}
    )


JOURNAL = "\n".join(
    [
        '{"op": "cut by the lim',
        row(D), row(A), row(B, service="other"), row(C, "gated"), row(C, "rolling_back", "fail"),
        row(C, "committed", "fail"), "[1]", row(A), row(B), "",
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("staged", "current", "releases", "chosen"),
    [
        ((A, B, C, D), B, (B, A, D), A),
        ((A, B, C, D), C, (B, A, D), B),  # stuck with one that never passed
        ((B, C, D), B, (B, D), D),  # A was pruned
        ((A, B, C, D), None, (B, A, D), B),
        ((B, C), B, (B,), None),
        ((C,), C, (), None),
    ],
)
def test_the_last_other_one_that_passed_here(
    staged: tuple[str, ...], current: str | None, releases: tuple[str, ...], chosen: str | None
) -> None:
    found = way_back(JOURNAL, staged, "k", current)
    assert found == WayBack(current, releases)
    if chosen is None:
        with pytest.raises(RefusedError, match="nothing to go back to"):
            found.choose("box", None)
    else:
        assert found.choose("box", None) == chosen


def test_what_the_link_said_counts_where_its_own_run_was_killed() -> None:
    """B was committed by a run that died before its row; the deploy of C saw it by the link."""
    locked = json.loads(row(C, "locked"))
    journal = "\n".join([row(A), json.dumps({**locked, "committed": B}), row(C)])
    assert way_back(journal, (A, B, C), "k", C).choose("box", None) == B
    assert way_back(json.dumps({**locked, "committed": None}), (A,), "k", C).releases == ()


@pytest.mark.parametrize(
    ("to", "want"), [("aaaa", A), ("AAAAAA", A), (D, D), ("aaa", None), ("bbbb", None),
                     ("cccc", None), ("eeee", None), ("", None)]
)  # fmt: skip
def test_one_by_its_first_digits(to: str, want: str | None) -> None:
    found = way_back(JOURNAL, (A, B, C, D), "k", B)
    if want is None:
        with pytest.raises(RefusedError):
            found.choose("box", to)
    else:
        assert found.choose("box", to) == want


def staged() -> tuple[str, dict[str, str]]:
    launch = LaunchSpec(("${engine_dir}/env/x/bin/python", "-m", "sglang.launch_server"),
                        (("A", "1"),), (("TOKEN", "env:T"),), "file:key", 30)  # fmt: skip
    content = release_content(
        service="k", upstream="sglang-0.5.23", series="", plugin="", launch=launch, unit="u",
        lock="l", model="m", draft="",
    )  # fmt: skip
    digest = release_digest(content)
    gates = {"gates": ["exactness"], "identity": {"tp_size": 8}, "port": 1}
    return digest, {
        "release.json": json.dumps({"digest": digest, **content}),
        "gates.json": json.dumps(gates),
    }


def test_a_staged_release_is_read_back_as_it_was() -> None:
    digest, files = staged()
    release = staged_release(digest, files)
    assert release.digest == digest
    assert release.launch.secret_env == (("TOKEN", "env:T"),)
    assert release.launch.api_key == "file:key"
    assert (release.gates, dict(release.identity)) == (("exactness",), {"tp_size": 8})
    assert release.golden is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("release.json", None, "cannot be read"),
        ("release.json", "", "cannot be read"),
        ("release.json", "[]", "cannot be read"),
        ("gates.json", "{}", "cannot be read"),
        ("release.json", "tampered", "not what its name says"),
    ],
)
def test_a_release_that_was_changed_on_the_host_is_not_started(
    name: str, text: str | None, words: str
) -> None:
    digest, files = staged()
    if text is None:
        del files[name]
    elif text == "tampered":
        files[name] = files[name].replace("sglang.launch_server", "sglang.launch_other")
    else:
        files[name] = text
    with pytest.raises(DdopsError, match=words):
        staged_release(digest, files)
