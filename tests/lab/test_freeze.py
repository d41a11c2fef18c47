"""Faults of hosts that are processes: they freeze and thaw, and say what they cannot."""

from __future__ import annotations

import time

import pytest

from tests.lab.harness import HostView, Project


def test_a_host_that_is_frozen_answers_nobody_until_it_is_healed(
    lab: Project, serving: HostView
) -> None:
    assert serving.get("/health") is not None
    lab.ok("lab", "fault", serving.name, "freeze")
    try:
        rows = lab.ok("lab", "status", "--json").json
        assert isinstance(rows, list)
        assert {r["name"]: r["state"] for r in rows} == {
            "lab1": "frozen", "lab2": "on", "lab3": "on",
        }  # fmt: skip
        assert serving.get("/health", timeout_s=1) is None
        done = lab.run("probe", serving.name, env={"DDOPS_CONNECT_TIMEOUT_S": "2"})
        assert done.rc == 3, done
        assert lab.run("probe", "lab2").rc == 0
    finally:
        lab.ok("lab", "heal", serving.name)
    assert serving.get("/health") is not None
    assert serving.serves() == serving.committed


@pytest.mark.parametrize("kind", [("reboot",), ("diskfull",), ("netdelay", "5")])
def test_what_such_a_host_cannot_have_is_refused(lab: Project, kind: tuple[str, ...]) -> None:
    done = lab.run("lab", "fault", "lab2", *kind)
    assert done.rc == 4, done
    assert "ddops lab up --systemd" in done.err


def test_a_lab_with_a_frozen_member_goes_down_at_once(make_project: object) -> None:
    assert callable(make_project)
    project = make_project("frozen")
    project.ok("lab", "up", "--engine", "sim")
    project.ok("provision", "lab")
    project.ok("lab", "fault", "lab1", "freeze")
    began = time.monotonic()
    project.ok("lab", "down")
    assert time.monotonic() - began < 20  # what is stopped hears no TERM, and is not waited for
    assert not project.lab.dir.exists()


def test_no_lab_no_fault(make_project: object) -> None:
    assert callable(make_project)
    project = make_project("none")
    done = project.run("lab", "fault", "lab1", "freeze")
    assert done.rc == 4, done
    assert "no lab is up" in done.err
