"""Target expressions: what a word on the command line means, and what it never means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddops.config
import ddops.inventory
from ddops.config.project import Project
from ddops.errors import UsageError
from ddops.inventory import (
    Inventory,
    hosts_of,
    load,
    one_service_per_host,
    resolve,
    services_on,
    target_names,
)

HOSTS = """
[hosts.a1]
ssh = "a1"
groups = ["a"]
[hosts.a2]
ssh = "a2"
groups = ["a", "odd"]
[hosts.b1]
ssh = "b1"
[hosts.c1]
ssh = "c1"
[aliases]
both = "a"
prod = "chat"
lost = "nothing"
chain = "both"
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    folder = tmp_path / "inventory"
    for name in ("services", "profiles"):
        (folder / name).mkdir(parents=True)
    (folder / "hosts.toml").write_text(HOSTS)
    (folder / "profiles" / "plain.toml").write_text("")
    for name, hosts in (("chat", ["a"]), ("code", ["a2", "b1"]), ("gone", ["nowhere"])):
        text = f'model = "m"\nprofile = "plain"\nhosts = {hosts}\n'.replace("'", '"')
        (folder / "services" / f"{name}.toml").write_text(text)
    return load(Project(tmp_path))


def meant(inventory: Inventory, *words: str) -> tuple[str, str]:
    found = resolve(inventory, words)
    return " ".join(h.name for h in found.hosts), " ".join(s.name for s in found.services)


@pytest.mark.parametrize(
    ("words", "hosts", "services"),
    [
        (["a1"], "a1", "chat"),
        (["a2"], "a2", "chat code"),
        (["a"], "a1 a2", "chat code"),
        (["chat"], "a1 a2", "chat"),
        (["code"], "a2 b1", "code"),
        (["both"], "a1 a2", "chat code"),
        (["prod"], "a1 a2", "chat"),
        (["c1"], "c1", ""),
        (["b1,a1", " a1 ,"], "b1 a1", "code chat"),
        (["a?"], "a1 a2", "chat code"),
        (["*1"], "a1 b1 c1", "chat code"),
        (["c[!x]*"], "c1 a1 a2 b1", "chat code"),
    ],
)
def test_a_word_means_hosts_and_services(
    inventory: Inventory, words: list[str], hosts: str, services: str
) -> None:
    found_hosts, found_services = meant(inventory, *words)
    assert set(found_hosts.split()) == set(hosts.split())
    assert found_services == services or set(words) & {"*1", "c[!x]*"}


def test_a_pattern_does_not_reach_the_shipped_examples(inventory: Inventory) -> None:
    assert "pcie" in inventory.hosts
    hosts, _ = meant(inventory, "*")
    assert set(hosts.split()) == {"a1", "a2", "b1", "c1"}
    assert meant(inventory, "pcie") == ("pcie", "k26-pcie")
    with pytest.raises(UsageError, match="no host, group or service is like pci"):
        resolve(inventory, ["pci*"])


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "no target given"),
        (["", " , "], "no target given"),
        (["a3"], "unknown target `a3`, nearest is `a"),
        (["caht"], "unknown target `caht`, nearest is `chat`"),
        (["-x"], "unknown target `-x`"),
        (["z*"], "no host, group or service is like z*"),
        (["lab"], "no host is in group lab; `ddops lab up` makes them"),
        (["tiny"], "no host is in group lab; `ddops lab up` makes them"),
        (["gone"], "there is no host or group `nowhere`"),
        (["lost"], "alias lost means nothing, and there is no host, group or service of that"),
        (["chain"], "alias chain means both"),
        (["plain"], "unknown target `plain`"),
    ],
)
def test_what_means_nothing_is_an_error(inventory: Inventory, words: list[str], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(inventory, words)
    assert caught.value.what.startswith(what)
    assert caught.value.exit_code == 2
    assert caught.value.next


def test_limit_and_exclude(inventory: Inventory) -> None:
    found = resolve(inventory, ["chat", "code"], limit=["a"], exclude=["a1"])
    assert [h.name for h in found.hosts] == ["a2"]
    assert [s.name for s in found.services] == ["chat", "code"]
    found = resolve(inventory, ["chat", "code"], limit=["b1"])
    assert [s.name for s in found.services] == ["code"]
    with pytest.raises(UsageError) as caught:
        resolve(inventory, ["a"], exclude=["a*"])
    assert caught.value.what == "no host is left of a"
    with pytest.raises(UsageError, match="unknown target `a9`"):
        resolve(inventory, ["a"], exclude=["a9"])


def test_services_and_hosts_know_each_other(inventory: Inventory) -> None:
    names = [s.name for s in services_on(inventory, inventory.hosts["a2"])]
    assert names == ["chat", "code"]
    assert [h.name for h in hosts_of(inventory, inventory.services["code"])] == ["a2", "b1"]


def test_one_service_goes_to_a_host(inventory: Inventory) -> None:
    pairs = one_service_per_host(resolve(inventory, ["code"]))
    assert [(h.name, s.name) for h, s in pairs] == [("a2", "code"), ("b1", "code")]
    with pytest.raises(UsageError) as caught:
        one_service_per_host(resolve(inventory, ["a"]))
    assert caught.value.what == "a2 has chat, code"
    assert caught.value.next == "name the service: chat --limit a2"
    with pytest.raises(UsageError, match="no service names c1"):
        one_service_per_host(resolve(inventory, ["c1"]))


def test_another_profile_may_be_named(inventory: Inventory) -> None:
    chat = inventory.services["chat"]
    assert inventory.profile_of(chat).name == "plain"
    assert inventory.profile_of(chat, "k26-pcie-ar-tp8").name == "k26-pcie-ar-tp8"
    with pytest.raises(UsageError, match="unknown profile `plan`, nearest is `plain`"):
        inventory.profile_of(chat, "plan")
    with pytest.raises(UsageError, match="service chat cannot run by profile k26-pcie-ddtree"):
        inventory.profile_of(chat, "k26-pcie-ddtree")


def test_completion_offers_every_name(inventory: Inventory) -> None:
    assert {"a1", "a", "chat", "both", "pcie"} <= set(inventory.names)


def test_completion_needs_no_schema(inventory: Inventory) -> None:
    assert target_names(Project(inventory.root)) == inventory.names
    broken = inventory.root / "inventory" / "hosts.toml"
    broken.write_text('[hosts.a1]\nshh = 1\ngroups = "x"\n[aliases]\nb = 1\n')
    assert {"a1", "b", "chat"} <= set(target_names(Project(inventory.root)))
    broken.write_text("[")
    assert "chat" in target_names(Project(inventory.root))


def test_completion_imports_little() -> None:
    code = (
        "import sys; from ddops.config import find_project;"
        " from ddops.inventory import target_names; print('msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_public_name_is_there() -> None:
    for package in (ddops.config, ddops.inventory):
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError):
            package.nope  # noqa: B018
