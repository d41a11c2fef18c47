"""What every transport promises, held against all of them."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddops.command import Secret, cmd, sh
from ddops.errors import DeadlineExceeded
from ddops.transport import fan_out
from tests.contract.conftest import Host
from tests.contract.fakehost import KILLED, TALK

_LIMIT = 4 << 20
# Any byte string but NUL, as the words of a command hold it, and text that shells trip over.
_bytes_word = st.binary(max_size=40).map(
    lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)
_nasty = st.sampled_from(
    ["", " ", "-n", "--", "-", "'", '"', "'\"'", "\\", "\n", "\r\n", "$HOME", "`id`", "$(id)", "!x",
     "*", "~", "a=b", "if", ";", "&&", "|", "\u00e9\u2028\U0001f600", "\udcff\udc80", "%s", "\t"]
)  # fmt: skip
_words = st.lists(st.one_of(_bytes_word, _nasty), min_size=1, max_size=6)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=_words)
def test_any_argument_list_arrives_unchanged(host: Host, words: list[str]) -> None:
    result = host.transport.run(cmd("printf", "%s\\0", *words))
    assert result.ok
    assert result.stdout == b"".join(os.fsencode(w) + b"\0" for w in words)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=st.one_of(_bytes_word, _nasty))
def test_environment_arrives_unchanged(host: Host, value: str) -> None:
    result = host.transport.run(cmd("printenv", "DDOPS_TEST", env={"DDOPS_TEST": value}))
    assert result.stdout == os.fsencode(value) + b"\n"


def test_working_directory(host: Host) -> None:
    assert host.transport.run(cmd("pwd", cwd=host.directory)).out == f"{host.directory}\n"


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
def test_input_comes_back(host: Host, size: int) -> None:
    data = os.urandom(size)
    result = host.transport.run(cmd("cat", stdin=data), limit=_LIMIT)
    assert (result.rc, result.stdout == data, result.truncated) == (0, True, False)


def test_input_that_nobody_reads(host: Host) -> None:
    assert host.transport.run(cmd("true", stdin=b"x" * 3_000_000)).ok


def test_secret_input_arrives(host: Host) -> None:
    assert host.transport.run(cmd("cat", stdin=Secret("s3cr\u00e9t"))).out == "s3cr\u00e9t"


def test_output_beyond_the_limit_is_cut_and_said(host: Host) -> None:
    result = host.transport.run(cmd("head", "-c", "3000000", "/dev/zero"), limit=1000)
    assert (result.rc, len(result.stdout), result.truncated) == (0, 1000, True)
    exact = host.transport.run(cmd("head", "-c", "1000", "/dev/zero"), limit=1000)
    assert (len(exact.stdout), exact.truncated) == (1000, False)


def test_status_and_both_outputs_apart(host: Host) -> None:
    result = host.transport.run(sh(TALK))
    assert (result.rc, result.out, result.err) == (7, "out\n", "err\n")


def test_end_by_a_signal_is_128_and_its_number(host: Host) -> None:
    assert host.transport.run(sh(KILLED)).rc == 143


def test_missing_program(host: Host) -> None:
    result = host.transport.run(cmd("ddops-no-such-program"))
    assert result.rc == 127
    assert "not found" in result.err


def test_deadline_and_the_call_after_it(host: Host) -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"contract: no end within 0\.5 s: sleep 60"):
        host.transport.run(cmd("sleep", "60"), deadline_s=0.5)
    assert time.monotonic() - start < 2
    assert host.transport.run(cmd("true")).ok


def test_eight_threads_at_once(host: Host) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> bool:
        barrier.wait(10)
        data = bytes([number]) * 200_000
        return host.transport.run(cmd("cat", stdin=data)).stdout == data

    assert [outcome for _, outcome in fan_out(range(8), work)] == [True] * 8


def test_name(host: Host) -> None:
    assert host.transport.host == "contract"
