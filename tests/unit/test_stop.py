"""Ctrl-C: once is a wish, twice is an end."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ddops.deploy import Stop, on_interrupt
from ddops.errors import Interrupted
from tests.lab.looking import until


def test_a_stop_is_asked_once_and_seen_between_steps() -> None:
    stop = Stop()
    stop.check("nowhere")
    assert not stop.wait(0.0)
    stop.ask()
    assert stop.asked
    assert stop.wait(60)
    with pytest.raises(Interrupted, match="stopped by the user before staging"):
        stop.check("before staging")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(signum: signal.Signals) -> None:
    stop, told = Stop(), list[str]()
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted, match="at once") as ended, on_interrupt(stop, told.append):
        os.kill(os.getpid(), signum)
        assert stop.wait(5)
        until(lambda: len(told) == 1, what="the word of it")
        os.kill(os.getpid(), signum)
        time.sleep(5)
    assert "ddops status" in ended.value.next
    assert signal.getsignal(signum) is before


def test_a_terminal_that_closes_is_a_wish_however_often_it_says_so() -> None:
    stop, told = Stop(), list[str]()
    before = signal.getsignal(signal.SIGHUP)
    with on_interrupt(stop, told.append):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.wait(5)
        until(lambda: told, what="the word of it")
        time.sleep(0.05)
    assert len(told) == 1
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_signal_in_the_midst_of_a_message_waits_for_its_end() -> None:
    """The handler runs where the message is written, whose lock it would wait for."""
    lock, told, stop = threading.Lock(), list[str](), Stop()

    def tell(words: str) -> None:
        with lock:
            told.append(words)

    with on_interrupt(stop, tell):
        with lock:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(5)
            assert told == []
        until(lambda: told, what="the word of it")


def test_a_pause_ends_with_the_wish() -> None:
    stop = Stop()
    stop.pause(0.0)
    stop.ask()
    with pytest.raises(Interrupted, match="while it waited for the lock"):
        stop.pause(600)


def test_handlers_are_put_back_after_a_quiet_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    with on_interrupt(Stop(), print):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = Stop()
        with on_interrupt(stop, print):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            assert not stop.wait(0.05)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_off_the_main_thread_nothing_is_touched() -> None:
    seen: list[object] = []

    def work() -> None:
        with on_interrupt(Stop(), print):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
