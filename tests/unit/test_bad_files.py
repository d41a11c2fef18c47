"""Files and words of people that are not what they should be: exit 2, named, with what to do.

To see it fail: let `read_text` in ddops/config/files.py raise UnicodeDecodeError, or take
`refuse_empty` out of ddops/cli/root.py.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zipfile
from pathlib import Path

import pytest

from ddops.board.recording import read_recording
from ddops.cli.app import App
from ddops.cli.tree import _written as written
from ddops.config.files import (
    MISSHAPEN,
    parse_json,
    read_data,
    read_text,
    reason,
    write_whole,
    writing,
)
from ddops.config.toml import parse_toml
from ddops.deploy.release import build_release
from ddops.errors import ConfigError, DdopsError, UsageError
from ddops.gates import parse_golden
from ddops.hostside import tree as host_tree
from ddops.hostside.tree_git import Refused
from ddops.inventory.model import Host, Origin
from ddops.inventory.port import port_of
from ddops.recommend.budget import read_steps
from tests.unit.cli_support import Run, runner
from tests.unit.test_release import ROOT, profile, service

#: CPython's parser of JSON gives up at its own recursion limit, far below this.
DEEP = "[" * 200_000
HOSTS = '[hosts.box]\nssh = "box"\nclass = "cpu"\nengine_env = "sim"\nengine_dir = "/opt/x"\n'
BAD = {
    "empty": b"",
    "object": b"{}",
    "cut": b'{"schema": "ddops.fac',
    "binary": bytes(range(256)) * 4,
    "deep": DEEP.encode(),
    "list": b"[]",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    go = runner(tmp_path, monkeypatch, capfd)
    Path("ddops.toml").write_text("")
    Path("inventory").mkdir()
    Path("inventory/hosts.toml").write_text(HOSTS)
    for name, data in BAD.items():
        Path(f"{name}.in").write_bytes(data)
    return go


@pytest.mark.parametrize("name", [*BAD, "missing"])
@pytest.mark.parametrize(
    "line",
    ["check box --facts F", "provision --plan F", "recommend --steps F", "ledger merge F",
     "ledger import sglang F", "tree init box --wheel F"],
)  # fmt: skip
def test_a_command_names_the_file_that_is_none_of_its_own(run: Run, line: str, name: str) -> None:
    done = run(*line.replace("F", f"{name}.in").split())
    assert (done.code, done.out) == (2, ""), done.err
    assert f"{name}.in" in done.err.splitlines()[0]
    assert "next: " in done.err
    assert "Error" not in done.err, "no Python names of errors"


def test_another_programs_database_is_no_ledger_to_merge(run: Run) -> None:
    with sqlite3.connect("other.db") as conn:
        conn.execute("CREATE TABLE a (b)")
    done = run("ledger", "merge", "other.db")
    assert done.code == 2
    assert "other.db is not a ledger" in done.err


@pytest.mark.parametrize("name", ["empty", "cut", "binary", "deep", "list", "missing"])
def test_a_recording_that_is_none(run: Run, name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}\.in"):
        read_recording(Path(f"{name}.in"))


def test_a_recording_whose_compression_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"\xff" * 40)
    with pytest.raises(UsageError, match=r"a\.gz is no recording"):
        read_recording(path)


@pytest.mark.parametrize("name", [*BAD])
def test_a_golden_file_that_is_none(tmp_path: Path, name: str) -> None:
    golden = tmp_path / "golden.json"
    golden.write_bytes(BAD[name])

    def lookup(name: str) -> Path:
        return golden if name == "golden.json" else ROOT / name

    with pytest.raises(UsageError, match=r"golden\.json") as caught:
        build_release(service(golden="golden.json"), profile(), "e" * 64, lookup)
    assert caught.value.next


def test_no_log_of_steps_has_such_a_tree() -> None:
    for budget in (10**10, 10**30):
        with pytest.raises(UsageError, match="more than 1048576"):
            read_steps(f'{{"budget": {budget}, "path": [[1]]}}', "steps")


def test_a_number_that_is_none_is_no_token() -> None:
    text = ('{"schema": "ddops.golden/1", "prompts": [{"id": "a", "input_ids": [1],'
            ' "output_ids": [Infinity]}]}')  # fmt: skip
    with pytest.raises(ConfigError, match="not a golden file"):
        parse_golden(text, "g.json")


def test_readers_name_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(UsageError, match="f cannot be read; why: no such file"):
        read_text(path)
    path.mkdir()
    with pytest.raises(UsageError, match=r"cannot be read; why: .*directory"):
        read_text(path, pipe=True)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not a regular file"):
        read_data(path)
    path.unlink()
    path.write_bytes(b"a\nb\xff")
    with pytest.raises(UsageError, match="f is not UTF-8 text; why: line 2"):
        read_text(path)
    with pytest.raises(UsageError, match="f is too large"):
        read_data(path, most=3)
    assert read_data(path, most=4) == b"a\nb\xff"
    with pytest.raises(UsageError, match="cannot be read"):
        read_data(tmp_path / "a\0b", pipe=True)


def test_a_file_of_the_command_line_may_be_a_pipe() -> None:
    into, out = os.pipe()
    os.write(out, b'{"a": 1}')
    os.close(out)
    assert parse_json(read_text(Path(f"/proc/self/fd/{into}"), pipe=True)) == {"a": 1}
    os.close(into)


def test_json_fails_in_one_way() -> None:
    for text in (DEEP, "{", "", '{"a": ' + "9" * 5000 + "}"):
        with pytest.raises(ValueError, match=r".+"):
            parse_json(text)


def test_reasons_are_words() -> None:
    assert reason(KeyError("schema")) == "it has no 'schema'"
    for raised in MISSHAPEN:
        assert raised.__name__ not in reason(raised("x"))


def test_a_number_beyond_sqlite_is_no_toml_of_ours() -> None:
    for text in ("a = [1, 99999999999999999999]", "a.b = -9223372036854775809"):
        with pytest.raises(ConfigError, match=r"t\.toml:1: a.*more than 64 bits"):
            parse_toml(text, Path("t.toml"), "t.toml")
    assert parse_toml("a = 9223372036854775807", Path("t"), "t").data == {"a": (1 << 63) - 1}


def test_a_fresh_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    write_whole(path, "a", fresh=True)
    with pytest.raises(FileExistsError):
        write_whole(path, "b", fresh=True)
    assert path.read_text() == "a"
    assert [p.name for p in tmp_path.iterdir()] == ["p.toml"]
    with pytest.raises(DdopsError, match="cannot be written") as caught:
        write_whole(path / "below", "a")
    assert caught.value.next.endswith(f"ls -ld {tmp_path}")


def test_a_port_that_is_none_names_its_file() -> None:
    host = Host(name="box", ssh="box", vars={"port": "x"}, origin=Origin("project", Path("h"), 7))
    words = r"h:7: hosts\.box\.vars\.port: not a port: 'x'"
    with pytest.raises(ConfigError, match=words) as caught:
        port_of(host, service())
    assert (caught.value.exit_code, bool(caught.value.next)) == (2, True)


def test_what_is_nowhere_says_where_to_write_it(run: Run) -> None:
    Path("inventory/services").mkdir()
    Path("inventory/services/s.toml").write_text(
        'hosts = ["box"]\nmodel = "m"\nrevision = "r"\nprofile = "tiny-ar"\ngolden = "no.json"\n'
    )
    done = run("deploy", "box", "--render-only", "-o", "out")
    assert done.code == 2
    assert "has no.json" in done.err
    assert "next: write " in done.err


def broken_zips(folder: Path) -> list[Path]:
    good = folder / "good.whl"
    with zipfile.ZipFile(good, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.dist-info/RECORD", "b.py,sha256=x,1\n" * 200)
        archive.writestr("b.py", "y" * 3000)
    data = bytearray(good.read_bytes())
    cut, spoilt = folder / "cut.whl", folder / "spoilt.whl"
    cut.write_bytes(data[:-10])
    data[50:70] = b"\xff" * 20
    spoilt.write_bytes(data)
    return [cut, spoilt]


def test_a_wheel_that_is_no_whole_zip_is_refused_on_the_host(tmp_path: Path) -> None:
    for path in broken_zips(tmp_path):
        with pytest.raises(Refused) as caught:
            list(host_tree.wheel(str(path)))  # type: ignore[no-untyped-call]
        assert caught.value.answer["state"] == "no-wheel"
        assert "no whole zip file" in caught.value.answer["why"]


@pytest.mark.parametrize(
    "line",
    ["task done 99999999999999999999", "ledger show --limit 99999999999999999999",
     "recommend --concurrency 99999999999999999999", "deploy box --batch 99999999999999999999",
     "snapshot prune --keep 99999999999999999999", "rollback box --lock-wait nan",
     "deploy box --fail-percent nan", "provision box --lock-wait inf"],
)  # fmt: skip
def test_a_number_out_of_bounds_is_refused(run: Run, line: str) -> None:
    done = run(*line.split())
    assert done.code == 2
    assert "Invalid value for" in done.err


@pytest.mark.parametrize("line", [("--project", "", "host", "list"), ("init", ""), ("deploy", "")])
def test_an_empty_word_is_refused(run: Run, line: tuple[str, ...]) -> None:
    done = run(*line)
    assert done.code == 2
    assert "it is empty" in done.err


@pytest.mark.parametrize("path", ["../../etc", "/etc/passwd", "a/../../b"])
def test_a_path_of_a_restore_stays_in_the_tree(run: Run, path: str) -> None:
    done = run("restore", "3f2a", "--to", "box", "--path", path)
    assert done.code == 2
    assert f"{path} does not lie in the tree" in done.err
    assert "next: " in done.err


@pytest.mark.parametrize(
    ("line", "blocked"),
    [("lab up --engine sim", ".ddops"), ("lab down", ".ddops"), ("init sub", "sub"),
     ("init box", "box/patches")],
)  # fmt: skip
def test_a_folder_that_cannot_be_made_is_said(run: Run, line: str, blocked: str) -> None:
    Path(blocked).parent.mkdir(exist_ok=True)
    Path(blocked).write_text("a file is in the way")
    done = run(*line.split())
    assert done.code == 1
    assert blocked in (what := done.err.splitlines()[0])
    assert what.endswith(" cannot be written")
    assert "next: see whether there is room and you may write: ls -ld /" in done.err


def test_only_what_a_disk_refuses_is_said_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DdopsError, match="cannot be written; why: read-only"), writing(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "x"))
    with pytest.raises(ConnectionRefusedError), writing(tmp_path):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no")


def test_an_exported_patch_is_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("0001-a.patch")
    written(tmp_path, [("b", b"From b")], 1, App(".", verbose=0, quiet=True))
    assert (tmp_path / "series").read_text() == "0001-a.patch\n0002-b.patch\n"
    (tmp_path / "series").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="series is not UTF-8"):
        written(tmp_path, [("c", b"From c")], 2, App(".", verbose=0, quiet=True))
    assert not (tmp_path / "0003-c.patch").exists()
