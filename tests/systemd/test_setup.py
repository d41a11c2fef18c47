"""A host's setup for real: apt, users, units and kernel settings of a host that boots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.harness import BootedProject

HOST = "setup1"
SETUP = """
[[package]]
name = "ddopsnote"
[[user]]
name = "ddopsuser"
groups = ["video"]
home = "/srv/ddops"
[[dir]]
path = "/srv/ddops/deep/er"
mode = "0750"
owner = "ddopsuser"
[[file]]
path = "/etc/systemd/system/ddopsnote.service"
content = '''
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
'''
[[line]]
path = "/etc/environment"
line = "DDOPS_NOTE=1"
match = "^DDOPS_NOTE="
[[link]]
path = "/srv/ddops/link"
target = "/srv/ddops/deep"
[[sysctl]]
key = "net.ipv4.tcp_keepalive_time"
value = "1234"
[[unit]]
name = "ddopsnote.service"
[[advice]]
cmdline = "ddops.no.such=1"
why = "it is only shown"
"""
#: A package source of the host's own, with a package that brings a driver along.
REPO = r"""
set -e
rm -rf /srv/repo; mkdir -p /srv/repo; cd /srv/repo; : > Packages
pack() {
  mkdir -p b/DEBIAN
  {
    printf 'Package: %s\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@x>\n' "$1"
    [ -z "$2" ] || printf 'Depends: %s\n' "$2"
    printf 'Description: made for a test\n'
  } > b/DEBIAN/control
  dpkg-deb -q -b b "$1.deb" >/dev/null
  {
    cat b/DEBIAN/control
    printf 'Filename: ./%s.deb\nSize: %s\n' "$1" "$(stat -c %s "$1.deb")"
    printf 'SHA256: %s\n\n' "$(sha256sum "$1.deb" | cut -d' ' -f1)"
  } >> Packages
  rm -rf b
}
pack ddopsnote ""
pack libnvidia-compute-999 ""
pack ddopsgpu libnvidia-compute-999
echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list.d/ddops-test.list
apt-get -q update >/dev/null
"""
WATCHED = "/etc/environment /etc/passwd /etc/group /etc/systemd/system /etc/sysctl.d /srv"


@pytest.fixture(scope="module")
def project(booted: BootedProject) -> Iterator[BootedProject]:
    """`lab4` once more, as a host of the project: what is a lab's own is never set up."""
    booted.write(
        "inventory/hosts.toml",
        f'[hosts.{HOST}]\nssh = "lab4"\nssh_config = "{booted.lab.ssh_config}"\nclass = "cpu"\n'
        'engine_dir = "/home/ops/engine"\nengine_env = "sim"\nsetup = "here"\n',
    )
    booted.sh("lab4", "sudo", "sh", "-c", REPO)
    yield booted
    (booted.root / "inventory/hosts.toml").unlink()
    booted.sh("lab4", "sudo", "rm", "-rf", "/srv/repo", "/etc/apt/sources.list.d/ddops-test.list")


def facts(project: BootedProject) -> str:
    """Everything that the setup touches, with modes, owners and contents."""
    look = (
        f"find {WATCHED} -path /srv/repo -prune -o -printf '%p %m %u %l\\n' | sort;"
        "cat /etc/environment /etc/passwd /etc/group;"
        "cat /proc/sys/net/ipv4/tcp_keepalive_time; dpkg-query -W | sort;"
        "systemctl is-enabled ddopsnote.service; systemctl is-active ddopsnote.service; true"
    )
    return project.sh("lab4", "sudo", "sh", "-c", look)


def test_a_setup_is_done_once_by_sudo_and_undone(project: BootedProject) -> None:
    project.write("setup/here.toml", SETUP)
    before = facts(project)
    shown = project.ok("provision", HOST, "--dry-run", "--diff")
    assert "install ddopsnote" in shown.out
    assert "net.ipv4.tcp_keepalive_time: 7200 -> 1234" in shown.out
    assert "advice: ddops.no.such=1" in shown.out
    assert facts(project) == before
    project.ok("provision", HOST, "--yes")
    assert "nothing to do" in project.ok("provision", HOST, "--yes").err
    after = facts(project)
    assert "ddopsnote\t1.0" in after
    assert "/srv/ddops/deep/er 750 ddopsuser" in after
    assert "DDOPS_NOTE=1" in after
    assert after.endswith("enabled\nactive")
    assert project.sh("lab4", "id", "-nG", "ddopsuser").split() == ["ddopsuser", "video"]
    listed = project.ok("provision", HOST, "--undo", "--dry-run")
    assert "- package ddopsnote" in listed.out
    assert facts(project) == after
    project.ok("provision", HOST, "--undo", "--yes")
    assert facts(project) == before
    assert "0 things" in project.ok("provision", HOST, "--undo", "--yes").out


def test_a_package_that_brings_a_driver_is_refused(project: BootedProject) -> None:
    project.write("setup/here.toml", '[[package]]\nname = "ddopsgpu"\n')
    before = facts(project)
    refused = project.run("provision", HOST, "--yes")
    assert refused.rc == 4, refused
    assert "would change the driver or the kernel: libnvidia-compute-999 1.0" in refused.err
    assert facts(project) == before


def test_a_package_that_apt_does_not_know(project: BootedProject) -> None:
    project.write("setup/here.toml", '[[package]]\nname = "no-such-package-here"\n')
    refused = project.run("provision", HOST, "--yes")
    assert refused.rc == 4, refused
    assert "Unable to locate package no-such-package-here" in refused.err


def test_without_sudo_nothing_is_begun(project: BootedProject) -> None:
    project.write("setup/here.toml", '[[user]]\nname = "ddopsuser"\n')
    rule = project.host("lab4").root / "etc/sudoers.d/ops"
    text = rule.read_text()
    rule.write_text("")
    try:
        refused = project.run("provision", HOST, "--yes")
    finally:
        rule.write_text(text)
        rule.chmod(0o440)
    assert refused.rc == 4, refused
    assert "user ddopsuser needs root, and sudo wants a password" in refused.err
    assert "ddopsuser" not in project.sh("lab4", "cat", "/etc/passwd")
