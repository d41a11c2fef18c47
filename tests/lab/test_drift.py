"""`ddops drift` on a host: silent while nothing differs, and by name when something does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.lab.harness import HostView, Project


def rows(lab: Project, host: HostView, rc: int) -> dict[str, tuple[str, str]]:
    done = lab.run("drift", host.name, "--json")
    assert done.rc == rc, done
    assert isinstance(done.json, list)
    return {r["what"]: (r["verdict"], r["observed"]) for r in done.json if r["verdict"] != "same"}


def test_what_drifts_is_named(lab: Project, serving: HostView) -> None:
    assert rows(lab, serving, 0) == {}
    assert "no drift" in lab.ok("drift", serving.name).out
    current = serving.current
    assert current is not None
    launch = Path(serving.layout.service("tiny").release(current)) / "launch.json"
    before = launch.read_text()
    spec = json.loads(before)
    spec["argv"].append("--by-hand")
    launch.write_text(json.dumps(spec))
    found = rows(lab, serving, 8)
    assert set(found) == {"release files", "argv"}
    assert "launch.json" in found["release files"][1]
    launch.write_text(before)
    program = Path(serving.service.program)
    before = program.read_text()
    program.write_text(before.replace("autorestart=", "autorestart=false\n;"))
    found = rows(lab, serving, 8)
    assert set(found) == {"unit"}
    assert "+autorestart=false" in found["unit"][1]
    program.write_text(before)
    lab.profile("wanted", "commit=3")
    lab.ok("deploy", serving.name, "--profile", "wanted")
    assert set(rows(lab, serving, 8)) == {"inventory"}, "another release than the inventory's"


def test_a_host_that_never_served(lab: Project, clean_host: HostView) -> None:
    assert set(rows(lab, clean_host, 8)) == {"inventory"}


def test_a_broken_environment_is_named_with_what_mends_it(lab: Project, serving: HostView) -> None:
    """Drift and a deploy say `provision`; provision sees it, builds it, and then nothing is odd."""
    (env,) = (Path(serving.layout.engine_dir) / "env").glob("*/env.json")
    shutil.rmtree(env.parent / "lib")
    done = lab.run("drift", serving.name)
    assert (done.rc, f"next: ddops provision {serving.name}\n" in done.err) == (8, True), done
    lab.profile("broken", "commit=3")
    done = lab.run("deploy", serving.name, "--profile", "broken")
    assert done.rc == 4, done
    assert "lib is missing" in done.err
    assert f"next: ddops provision {serving.name}\n" in done.err
    done = lab.ok("provision", serving.name)
    assert "lib is missing" in done.out
    assert "1 steps done" in done.err
    assert rows(lab, serving, 0) == {}
    assert "nothing to do" in lab.ok("provision", serving.name).err
