"""Weights arrive whole or not at all, are checked, and go on from where they were cut short."""

from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddops.command import Cmd
from ddops.errors import ConfigError, DdopsError, TransportLost
from ddops.layout import HostLayout
from ddops.model import Result
from ddops.plan import Change
from ddops.provision.side import HostSide
from ddops.provision.weights import Folder, Hub, Rsync, WeightsStep, fetched
from ddops.transport import LocalTransport
from ddops.transport.files import tree_digest

COMMIT = "c" * 40


class Line(LocalTransport):
    """This machine behind a line that can be made to break; counts what went over it."""

    def __init__(self) -> None:
        super().__init__("here")
        self.break_after: int | None = None
        self.sent = 0

    def run(self, command: Cmd, *, deadline_s: float = 30.0, limit: int = 1 << 20) -> Result:
        if command.argv[0] == "sh":
            if self.break_after is not None:
                self.break_after -= 1
                if self.break_after < 0:
                    raise TransportLost("here: the connection broke")
            self.sent += len(command.stdin_bytes() or b"")
        return super().run(command, deadline_s=deadline_s, limit=limit)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def side(line: Line, tmp_path: Path) -> HostSide:
    return HostSide(line, HostLayout(str(tmp_path / "engine")), sys.executable)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddops.provision.weights.PIECE", 1000)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(bytes(range(256)) * 20)
    (folder / "sub/b.json").write_text('{"x": "ü"}')
    (folder / "empty").write_bytes(b"")
    return folder


def step_of(side: HostSide, local: Path) -> WeightsStep:
    path = f"{side.layout.models}/m"
    return WeightsStep("w", "weights", side, path, f"sha256:{tree_digest(local)}", Folder(local))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_broken_line_is_taken_up_where_it_broke(side: HostSide, line: Line, local: Path) -> None:
    step, target = step_of(side, local), Path(side.layout.models) / "m"
    assert step.observe().change is Change.CREATE
    for whole in range(1, 8):
        line.break_after = 1
        try:
            step.apply()
        except TransportLost:
            assert not target.exists(), "nothing half done is in its place"
            assert step.observe().pending
            assert line.sent == whole * 1000 or whole > 5
    line.break_after = None
    step.apply()
    assert content(target) == content(local)
    assert line.sent == sum(len(d) for d in content(local).values()), "no byte went twice"
    assert not step.observe().pending
    assert [p.name for p in target.parent.iterdir() if "partial" in p.name] == []


def test_bytes_that_went_bad_are_named_and_brought_anew(
    side: HostSide, line: Line, local: Path
) -> None:
    step, target = step_of(side, local), Path(side.layout.models) / "m"
    line.break_after = 3
    with pytest.raises(TransportLost):
        step.apply()
    line.break_after = None
    half = Path(f"{target}.partial/a.safetensors")
    half.write_bytes(b"x" * half.stat().st_size)
    with pytest.raises(DdopsError, match="did not arrive") as caught:
        step.apply()
    assert caught.value.why == "a.safetensors: sha256 differs"
    assert not target.exists()
    step.apply()
    assert content(target) == content(local)


def test_what_was_changed_on_the_host_is_seen_and_mended(
    side: HostSide, line: Line, local: Path
) -> None:
    step, target = step_of(side, local), Path(side.layout.models) / "m"
    step.apply()
    (target / "sub/b.json").write_text('{"y": "ü"}')
    (target / "extra").write_text("left by somebody")
    line.sent = 0
    assert step.observe().lines == ("changed since they were checked: sub/b.json",)
    step.apply()
    assert content(target) == content(local)
    assert line.sent == len('{"x": "ü"}'.encode()), "the whole files cost no transfer"


def test_weights_that_lie_there_already_are_checked_and_kept(
    side: HostSide, line: Line, local: Path
) -> None:
    target = Path(side.layout.models) / "m"
    shutil.copytree(local, target)
    step = step_of(side, local)
    assert step.observe().change is Change.UPDATE
    step.apply()
    assert (line.sent, step.observe().pending) == (0, False)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_rsync_needs_the_right_content(side: HostSide, local: Path, tmp_path: Path) -> None:
    path, want = f"{side.layout.models}/m", f"sha256:{tree_digest(local)}"
    Path(side.layout.models).mkdir(parents=True)
    wrong = WeightsStep("w", "weights", side, path, f"sha256:{'0' * 64}", Rsync(str(local)))
    with pytest.raises(DdopsError, match="did not arrive") as caught:
        wrong.apply()
    assert caught.value.why == f"what arrived is {want}"
    assert not Path(path).exists()
    step = WeightsStep("w", "weights", side, path, want, Rsync(str(local)))
    step.apply()
    assert content(Path(path)) == content(local)
    assert not step.observe().pending
    absent = WeightsStep("w", "weights", side, path, want, Rsync(str(tmp_path / "absent")))
    with pytest.raises(DdopsError) as told:
        absent.apply()
    assert "rsync ended with 23" in told.value.why


@dataclass
class FakeHub:
    """A hub on loopback: `cut` bytes of each answer arrive, `ranges` is what was asked for."""

    files: dict[str, bytes]
    cut: int | None = None
    sha: str = COMMIT
    forged: bool = False
    ranges: list[str] = field(default_factory=list)
    port: int = 0

    def listing(self) -> bytes:
        rows: list[dict[str, object]] = []
        for name, data in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324
            row: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob}
            if name.endswith(".safetensors"):
                row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            rows.append(row)
        return json.dumps({"sha": self.sha, "siblings": rows}).encode()


@pytest.fixture
def hub(local: Path) -> Iterator[FakeHub]:
    made = FakeHub(content(local))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/api/"):
                data, start = made.listing(), 0
            else:
                name = self.path.split(f"/resolve/{COMMIT}/")[1]
                asked = self.headers.get("Range", "")
                made.ranges.append(asked)
                start = int(asked[6:-1]) if asked else 0
                data = made.files[name][start:]
                data = b"!" * len(data) if made.forged else data
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            whole = made.cut is None or self.path.startswith("/api/")
            self.wfile.write(data if whole else data[: made.cut])

        def log_message(self, *_: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield made
        server.shutdown()
        thread.join(5)


def hub_step(side: HostSide, hub: FakeHub) -> WeightsStep:
    origin = Hub("acme/m", COMMIT, f"http://127.0.0.1:{hub.port}")
    path = f"{side.layout.models}/m"
    return WeightsStep("w", "weights", side, path, f"hub:acme/m@{COMMIT}", origin)


def test_a_hub_that_breaks_off_is_asked_for_the_rest(
    side: HostSide, hub: FakeHub, local: Path
) -> None:
    hub.cut = 2000
    step = hub_step(side, hub)
    step.apply()
    assert content(Path(side.layout.models) / "m") == content(local)
    assert {"bytes=2000-", "bytes=4000-"} <= set(hub.ranges)
    assert not step.observe().pending


def test_a_hub_that_is_not_the_pinned_commit_or_sends_other_bytes(
    side: HostSide, hub: FakeHub
) -> None:
    step, target = hub_step(side, hub), Path(side.layout.models) / "m"
    hub.sha = "d" * 40
    with pytest.raises(DdopsError) as other:
        step.apply()
    assert "is commit dddd" in other.value.why
    hub.sha, hub.forged = COMMIT, True
    with pytest.raises(DdopsError) as forged:
        step.apply()
    assert "a.safetensors: sha256 differs" in forged.value.why
    assert "sub/b.json: its git object id differs" in forged.value.why
    assert not target.exists()
    hub.forged = False
    step.apply()
    assert target.exists()


def test_a_name_that_leads_outside_is_refused(side: HostSide, hub: FakeHub, tmp_path: Path) -> None:
    hub.files["../../evil"] = b"x"
    with pytest.raises(DdopsError) as caught:
        hub_step(side, hub).apply()
    assert "leads outside" in caught.value.why
    assert not list(tmp_path.rglob("evil"))


def test_a_source_is_pinned_or_refused() -> None:
    pin = f"sha256:{'a' * 64}"
    assert fetched("lab/models/x", "m", None, "model_source", None) is None
    assert fetched("rsync:box:/m", "m", pin, "model_source", None) == (pin, Rsync("box:/m"))
    got = fetched("hub:", "acme/m", COMMIT, "model_source", None)
    assert got == (f"hub:acme/m@{COMMIT}", Hub("acme/m", COMMIT, "https://huggingface.co"))
    for text, revision, words in (
        ("rsync:box:/m", None, "rsync needs a pin"),
        ("rsync:-e sh", pin, "expected rsync:HOST:/PATH"),
        ("hub:", "main", "a hub needs a pin"),
        ("hub:../x/y", COMMIT, "expected hub:ORG/NAME"),
    ):
        with pytest.raises(ConfigError) as caught:
            fetched(text, "acme/m", revision, "model_source", None)
        assert words in " ".join(caught.value.lines())
