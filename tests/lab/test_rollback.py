"""Back without a name: what passed here before serves again, gated, or what served stays."""

from __future__ import annotations

from pathlib import Path

from tests.lab.harness import HostView, Project


def test_back_and_forth_without_a_name(lab: Project, serving: HostView) -> None:
    first = serving.serves()
    lab.profile("second", "commit=3")
    lab.ok("deploy", serving.name, "--profile", "second")
    second = serving.serves()
    assert second != first
    plan = lab.ok("rollback", serving.name, "--dry-run", "--json")
    assert isinstance(plan.json, list)
    assert (plan.json[0]["current"], plan.json[0]["to"]) == (second, first)
    assert serving.serves() == second, "a dry run touches nothing"
    done = lab.ok("rollback", serving.name, "--json")
    assert isinstance(done.json, list)
    assert done.json[0]["release"] == first == serving.serves() == serving.committed
    assert serving.states()["gated"] == "ok"
    assert second is not None
    lab.ok("rollback", serving.name, "--to", second[:6])
    assert serving.serves() == second


def test_a_way_back_that_does_not_pass_leaves_what_serves(lab: Project, serving: HostView) -> None:
    lab.profile("third", "commit=2")
    lab.ok("deploy", serving.name, "--profile", "third")
    now = serving.serves()
    target = lab.ok("rollback", serving.name, "--dry-run", "--json").json
    assert isinstance(target, list)
    golden = Path(serving.layout.service("tiny").release(target[0]["to"])) / "golden.json"
    text = golden.read_text(encoding="utf-8")
    golden.write_text(text.replace('"output_ids": [', '"output_ids": [1, ', 1), encoding="utf-8")
    done = lab.run("rollback", serving.name)
    assert done.rc == 6, done
    assert "does not pass its gates any more" in done.err
    assert "what served before serves again" in done.err
    assert serving.serves() == serving.committed == now
    golden.write_text(text, encoding="utf-8")


def test_a_host_that_served_one_release_has_no_way_back(lab: Project, clean_host: HostView) -> None:
    assert lab.run("rollback", clean_host.name).rc == 4
    lab.ok("deploy", clean_host.name)
    done = lab.run("rollback", clean_host.name)
    assert done.rc == 4
    assert "nothing to go back to" in done.err
    assert lab.run("rollback", clean_host.name, "--to", "0000").rc == 4
