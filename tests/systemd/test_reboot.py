"""A host that reboots: what it serves then has passed its gates, or nothing is served."""

from __future__ import annotations

import pytest

from tests.lab.looking import until
from tests.lab.scenarios import loading
from tests.systemd.harness import UNIT, BootedHost, BootedProject


def reboot(lab: BootedProject, host: BootedHost) -> None:
    lab.ok("lab", "fault", host.name, "reboot")


def test_after_a_reboot_the_service_is_back_and_ready(
    lab: BootedProject, serving: BootedHost
) -> None:
    before, boot = serving.launch(), serving.boot_id()
    assert before is not None
    reboot(lab, serving)
    until(lambda: serving.boot_id() not in ("", boot), what="another boot")
    serving.wait_up()  # systemd is done: so the service is ready, not only started
    after = serving.launch()
    assert after is not None
    assert serving.serves() == serving.committed
    assert (after["release"], after["op_id"]) == (before["release"], "")
    assert after["nonce"] != before["nonce"]
    assert serving.unit("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    rows = lab.ok("status", serving.name, "--json").json
    assert isinstance(rows, list)
    assert (rows[0]["state"], rows[0]["health"]) == ("up", "ok")
    assert "unchanged" in lab.ok("deploy", serving.name).out


def test_a_reboot_in_the_middle_of_a_deploy_goes_back(
    lab: BootedProject, serving: BootedHost
) -> None:
    """The release that was being loaded was never gated: neither boot nor deploy let it serve."""
    old = serving.serves()
    lab.profile("cut", "load_s=8")
    run = lab.spawn("deploy", serving.name, "--profile", "cut")
    loading(serving, old)
    reboot(lab, serving)
    done = run.end()
    assert done.rc == 5, done
    assert "the host was booted, and this start is gone" in done.err
    assert serving.serves() == serving.current == serving.committed == old
    assert not serving.locked
    assert serving.states()["restored"] == "ok"
    # The same deploy, left alone, goes through.
    lab.ok("deploy", serving.name, "--profile", "cut")
    assert serving.serves() == serving.committed != old


def test_a_reboot_that_the_controller_does_not_survive(
    lab: BootedProject, serving: BootedHost
) -> None:
    """Nobody is there to roll back: the host itself comes up with what was committed."""
    old = serving.serves()
    lab.profile("alone", "load_s=8,commit=3")
    run = lab.spawn("deploy", serving.name, "--profile", "alone")
    loading(serving, old)
    run.kill()
    assert serving.current != old
    reboot(lab, serving)
    serving.wait_up()
    assert serving.serves() == serving.current == serving.committed == old
    said = lab.sh(serving.name, "sudo", "journalctl", "-b", "-u", UNIT, "-o", "cat")
    assert "a deploy was cut short: back to" in said
    # The lock's owner is known to be gone: the next deploy takes it up.
    lab.ok("deploy", serving.name, "--profile", "alone")
    assert serving.serves() == serving.committed != old


def test_a_reboot_in_the_middle_of_a_first_deploy_serves_nothing(
    lab: BootedProject, clean_host: BootedHost
) -> None:
    lab.profile("first", "load_s=8,commit=2")
    run = lab.spawn("deploy", clean_host.name, "--profile", "first")
    loading(clean_host, None)
    run.kill()
    reboot(lab, clean_host)
    clean_host.wait_up()  # a start that was skipped is no failure
    assert clean_host.serves() is None
    assert clean_host.pids() == []
    said = lab.sh(clean_host.name, "sudo", "journalctl", "-b", "-u", UNIT, "-o", "cat")
    assert "no release of this service has passed its gates here" in said
    lab.ok("deploy", clean_host.name)
    assert clean_host.serves() == clean_host.committed


@pytest.mark.parametrize("kind", [("netdown",), ("netloss", "30%"), ("freeze",)])
def test_a_line_that_fails_while_the_engine_loads(
    lab: BootedProject, serving: BootedHost, kind: tuple[str, ...]
) -> None:
    """A load goes on without us: what is lost for some seconds is not taken for a failure."""
    old = serving.serves()
    name = f"line-{kind[0]}"
    lab.profile(name, "load_s=6,commit=4")
    run = lab.spawn("deploy", serving.name, "--profile", name, env={"DDOPS_CONNECT_TIMEOUT_S": "3"})
    loading(serving, old)
    lab.ok("lab", "fault", serving.name, *kind)
    try:
        until(lambda: run.process.poll() is not None, limit_s=4, what="nothing")
    except AssertionError:
        pass  # it waits, as it should
    else:
        raise AssertionError(f"gave up at once: {run.end()}")
    finally:
        lab.ok("lab", "heal", serving.name)
    done = run.end()
    assert done.rc == 0, done
    assert serving.serves() == serving.committed != old


def test_a_full_disk_leaves_the_old_service(lab: BootedProject, serving: BootedHost) -> None:
    old, before = serving.serves(), serving.launch()
    lab.profile("full", "commit=2,batch_ms=0.2")
    lab.ok("lab", "fault", serving.name, "diskfull")
    try:
        done = lab.run("deploy", serving.name, "--profile", "full")
    finally:
        lab.ok("lab", "heal", serving.name)
    assert done.rc != 0, done
    assert "No space left" in done.err
    assert serving.launch() == before
    assert serving.serves() == serving.committed == old
    lab.ok("deploy", serving.name, "--profile", "full")
