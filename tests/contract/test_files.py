"""Files on a host: the same promises on all transports."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from ddops.command import cmd
from ddops.errors import CommandFailed, UsageError
from ddops.transport import LocalTransport
from ddops.transport.fake import FakeTransport
from ddops.transport.files import (
    link_atomically,
    make_dirs,
    pack_tree,
    read_file,
    read_files,
    remote_tree_digest,
    remove_tree,
    send_tree,
    tree_digest,
    write_file,
)
from tests.contract.conftest import Host

_ODD = "a b'c\"\n$x \udcff-"


def names(host: Host, directory: str) -> list[str]:
    return host.transport.run(cmd("ls", "-A", directory)).out.splitlines()


def test_write_then_read(host: Host) -> None:
    data = os.urandom(200_000)
    for path in (f"{host.directory}/plain", f"{host.directory}/{_ODD}", f"{host.directory}/-rf"):
        write_file(host.transport, path, data)
        assert read_file(host.transport, path) == data
        write_file(host.transport, path, b"")
        assert read_file(host.transport, path) == b""


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_mode(host: Host, mode: int) -> None:
    path = f"{host.directory}/file"
    write_file(host.transport, path, b"x", mode)
    assert host.transport.run(cmd("stat", "-c", "%a", path)).out.strip() == f"{mode:o}"


def test_missing_file_is_none(host: Host) -> None:
    assert read_file(host.transport, f"{host.directory}/none") is None
    assert read_file(host.transport, f"{host.directory}/no/such") is None


def test_a_directory_is_not_a_missing_file(host: Host) -> None:
    with pytest.raises(CommandFailed, match="Is a directory"):
        read_file(host.transport, host.directory)


def test_too_large_a_file_is_an_error(host: Host) -> None:
    write_file(host.transport, f"{host.directory}/big", b"x" * 2000)
    with pytest.raises(CommandFailed, match="larger than 1000 bytes"):
        read_file(host.transport, f"{host.directory}/big", 1000)


def test_several_files_in_one_look(host: Host) -> None:
    data = {
        f"{host.directory}/{_ODD}": os.urandom(2000),
        f"{host.directory}/-": b"-\n12\n",
        f"{host.directory}/empty": b"",
    }
    for path, body in data.items():
        write_file(host.transport, path, body)
    gone = {f"{host.directory}/none": None, f"{host.directory}/no/such": None}
    wanted = {**dict(list(data.items())[:1]), **gone, **data}
    assert read_files(host.transport, list(wanted)) == wanted
    with pytest.raises(CommandFailed, match="larger than 2000 bytes"):
        read_files(host.transport, list(wanted), limit=2000)
    with pytest.raises(CommandFailed, match="Is a directory"):
        read_files(host.transport, [f"{host.directory}/none", host.directory])


def test_a_write_takes_the_place_of_others(host: Host) -> None:
    new, *old = (f"{host.directory}/{n}" for n in ("new", _ODD, "never there"))
    write_file(host.transport, old[0], b"x")
    write_file(host.transport, new, b"y", instead_of=old)
    assert read_files(host.transport, [new, *old]) == {new: b"y", old[0]: None, old[1]: None}
    write_file(host.transport, old[0], b"x")
    with pytest.raises(CommandFailed):
        write_file(host.transport, f"{host.directory}/no/such", b"y", instead_of=old)
    assert read_file(host.transport, old[0]) == b"x"


def test_failed_write_leaves_nothing(host: Host) -> None:
    make_dirs(host.transport, f"{host.directory}/taken")
    with pytest.raises(CommandFailed, match="could not be written"):
        write_file(host.transport, f"{host.directory}/taken", b"x")
    with pytest.raises(CommandFailed, match="could not be written"):
        write_file(host.transport, f"{host.directory}/no/such", b"x")
    assert names(host, host.directory) == ["taken"]


def test_readers_never_see_a_half_written_file(host: Host) -> None:
    path, seen = f"{host.directory}/file", set()
    contents = [bytes([number]) * 300_000 for number in range(6)]
    write_file(host.transport, path, contents[0])
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            seen.add(read_file(host.transport, path))

    thread = threading.Thread(target=reader)
    thread.start()
    for data in contents:
        write_file(host.transport, path, data)
    done.set()
    thread.join()
    assert seen <= set(contents)


def test_make_dirs_again_and_below(host: Host) -> None:
    paths = [f"{host.directory}/a/b/c", f"{host.directory}/{_ODD}"]
    make_dirs(host.transport, *paths, mode=0o700)
    make_dirs(host.transport, *paths)
    assert host.transport.run(cmd("stat", "-c", "%a", paths[0])).out == "700\n"
    write_file(host.transport, f"{host.directory}/file", b"")
    with pytest.raises(CommandFailed, match="could not make"):
        make_dirs(host.transport, f"{host.directory}/file/below")


def test_link_switches_over(host: Host) -> None:
    link = f"{host.directory}/current"
    for release in ("r1", "r2"):
        make_dirs(host.transport, f"{host.directory}/{release}")
        link_atomically(host.transport, release, link)
        assert host.transport.run(cmd("readlink", link)).out.strip() == release
    assert names(host, f"{host.directory}/r1") == []
    assert sorted(names(host, host.directory)) == ["current", "r1", "r2"]
    make_dirs(host.transport, f"{host.directory}/real")
    with pytest.raises(CommandFailed, match="could not point"):
        link_atomically(host.transport, "r1", f"{host.directory}/real")


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "sub" / "a.py").write_text("print(1)\n")
    (root / "sub" / "deeper" / os.fsdecode(b"odd \xff\n'name'")).write_bytes(os.urandom(70_000))
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / ("long" * 40)).write_text("beyond the 100 bytes of a plain tar name")
    (root / "link").symlink_to("sub/a.py")
    (root / "empty").write_bytes(b"")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").write_bytes(b"x")
    return root


def test_a_sent_tree_has_the_same_digest(host: Host, tree: Path) -> None:
    remote = f"{host.directory}/parent/tree"
    send_tree(host.transport, tree, remote)
    assert remote_tree_digest(host.transport, remote) == tree_digest(tree)
    assert names(host, f"{host.directory}/parent") == ["tree"]
    assert "__pycache__" not in names(host, remote)
    write_file(host.transport, f"{remote}/run", b"#!/bin/sh\n", 0o644)
    assert remote_tree_digest(host.transport, remote) != tree_digest(tree)


def test_a_tree_is_never_sent_over_another(host: Host, tree: Path) -> None:
    send_tree(host.transport, tree, f"{host.directory}/tree")
    with pytest.raises(CommandFailed, match="exists already"):
        send_tree(host.transport, tree, f"{host.directory}/tree")
    assert names(host, host.directory) == ["tree"]


def test_digest_of_a_missing_tree(host: Host) -> None:
    with pytest.raises(CommandFailed, match="no digest"):
        remote_tree_digest(host.transport, f"{host.directory}/none")


def test_remove_tree(host: Host, tree: Path) -> None:
    send_tree(host.transport, tree, f"{host.directory}/below/tree")
    remove_tree(host.transport, f"{host.directory}/below/tree", f"{host.directory}/below")
    assert names(host, f"{host.directory}/below") == []
    remove_tree(host.transport, f"{host.directory}/below/tree", f"{host.directory}/below")
    remove_tree(host.transport, f"{host.directory}/no/such", f"{host.directory}/no")


def test_remove_tree_does_not_follow_a_link_out(host: Host) -> None:
    inside, outside = f"{host.directory}/in", f"{host.directory}/out"
    make_dirs(host.transport, inside, f"{outside}/kept")
    link_atomically(host.transport, outside, f"{inside}/door")
    with pytest.raises(CommandFailed, match="leads outside"):
        remove_tree(host.transport, f"{inside}/door/kept", inside)
    remove_tree(host.transport, f"{inside}/door", inside)
    assert names(host, outside) == ["kept"]
    assert names(host, inside) == []


@pytest.mark.parametrize(
    ("path", "below"),
    [("/a", "/a"), ("/a/", "/a"), ("/ab", "/a"), ("/a/../b", "/a"), ("/a/b/..", "/a"), ("/a", "/"),
     ("/a/b", ""), ("/a//b", "/a"), ("/", "/"), ("a/b", "a"), ("/a/.", "/a"), ("/a/b", "a")],
)  # fmt: skip
def test_remove_tree_refuses(path: str, below: str) -> None:
    host = FakeTransport()
    with pytest.raises(UsageError):
        remove_tree(host, path, below)
    assert host.calls == []


def test_archives_depend_on_content_alone(tree: Path, tmp_path: Path) -> None:
    first = pack_tree(tree)
    os.utime(tree / "run", (1, 1))
    (tree / "sub" / "a.py").chmod(0o600)
    assert pack_tree(tree) == first
    (tree / "run").chmod(0o644)
    assert pack_tree(tree) != first


def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file"):
        pack_tree(tmp_path)
    with pytest.raises(UsageError, match="neither a file"):
        tree_digest(tmp_path)


def test_input_cut_short_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks during a write looks like the end of the input to the host."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"x" * 10_000)
    (tree / "b").write_bytes(b"y" * 10_000)
    local = LocalTransport()
    path = tmp_path / "file"
    path.write_bytes(b"old")
    whole = local.run

    def cut(command, **options):  # type: ignore[no-untyped-def]
        # At a member's end, where tar takes the archive for whole.
        return whole(command.with_stdin(command.stdin[: 512 + 10_240]), **options)

    monkeypatch.setattr(local, "run", cut)
    with pytest.raises(CommandFailed, match="input ended after 10752 of 20000 bytes"):
        write_file(local, str(path), b"z" * 20_000)
    assert path.read_bytes() == b"old"
    with pytest.raises(CommandFailed, match="input ended before the archive did"):
        send_tree(local, tree, str(tmp_path / "sent"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "tree"]


def test_full_disk_in_memory() -> None:
    host = FakeTransport("h")
    host.files.put("/etc/x", b"old")
    host.files.free = 10
    with pytest.raises(CommandFailed, match="the disk is full") as caught:
        write_file(host, "/etc/x", b"x" * 11)
    assert "free space on h" in caught.value.next
    assert read_file(host, "/etc/x") == b"old"


def test_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root and permission to mount")
    try:
        host = LocalTransport("h")
        write_file(host, f"{small}/file", b"old")
        with pytest.raises(CommandFailed, match="the disk is full"):
            write_file(host, f"{small}/file", b"x" * 100_000)
        assert [p.name for p in small.iterdir()] == ["file"]
        assert (small / "file").read_bytes() == b"old"
    finally:
        subprocess.run(["umount", str(small)], check=True)
