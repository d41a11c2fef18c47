"""`ddops tree`: init, status, apply, reverse, verify, export, rebase."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, complete_targets, confirm, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.tree.host import ManagedTree, Upstream
    from ddops.tree.series import Series

_HOST = click.argument("target", metavar="HOST", shell_complete=complete_targets)
_ENGINE = click.option(
    "--engine", default="sglang-0.5.23", show_default=True, metavar="NAME-VERSION",
    help="Which series of patches/ belongs to it.",
)  # fmt: skip


@click.group()
def tree() -> None:
    """A host's own SGLang source tree: a pinned upstream, and patches on it.

    \b
    ddops tree init lab1 --wheel sglang-0.5.23-linux_x86_64.whl
    ddops tree status lab1
    """


@tree.command()
@_HOST
@click.option("--git", "git_source", metavar="URL", help="A git repository, by URL or path there.")
@click.option("--commit", metavar="SHA", help="The commit it is pinned to, 40 digits.")
@click.option(
    "--wheel", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="A released wheel on this machine; its files become the upstream.",
)  # fmt: skip
@click.option("--installed", metavar="DIR", help="An installed package on the host, as upstream.")
@click.option(
    "--prefix",
    metavar="DIR",
    help="Where in it the package lies.  [default for --git: python/]",
)
@_ENGINE
@click.pass_obj
def init(
    app: App, target: str, git_source: str | None, commit: str | None, wheel: Path | None,
    installed: str | None, prefix: str | None, engine: str,
) -> None:  # fmt: skip
    """Make the tree at a pinned upstream. The same pin again changes nothing.

    \b
    ddops tree init lab1 --wheel sglang-0.5.23-linux_x86_64.whl
    """
    managed = _managed(app, target)
    upstream = _upstream(git_source, commit, wheel, installed, prefix, engine)
    done = managed.init(upstream)
    what = "made" if done["made"] else "unchanged"
    app.say(f"{managed.layout.tree} {what}: upstream {str(done['commit'])[:12]}, "
            f"tree {str(done['tree'])[:12]}", managed.host.name)  # fmt: skip
    package = f"{managed.layout.tree}/{upstream.prefix}".rstrip("/")
    app.say(
        f'to run it, set PYTHONPATH = "{package.replace(managed.host.engine_dir, "${engine_dir}")}"'
        " in [env] of the profile",
        managed.host.name,
    )


@tree.command()
@_HOST
@as_json
@click.pass_obj
def status(app: App, target: str, as_json: bool) -> None:
    """Pin, patches, edits by hand, and whether the running code is the tree.

    \b
    ddops tree status lab1 --json
    """
    from ddops.cli.output import emit_json, emit_line

    managed = _managed(app, target)
    seen, series = _seen(app, managed)
    if as_json:
        emit_json("tree", {"host": managed.host.name, "series": series.digest, **seen})
        return
    for line in _status_lines(seen, series):
        emit_line(line)


@tree.command()
@_HOST
@click.argument("patch", nargs=-1)
@click.option("--check", is_flag=True, help="Try it on the host and write nothing.")
@yes
@click.pass_obj
def apply(app: App, target: str, patch: tuple[str, ...], check: bool, yes: bool) -> None:
    """Apply the series, or only the named patches of it: all of them, or none.

    Tried on the host first. What does not fit is told hunk by hunk.

    \b
    ddops tree apply lab1 --check
    """
    _apply(app, target, patch, check, yes, back=False)


@tree.command()
@_HOST
@click.argument("patch", nargs=-1)
@click.option("--check", is_flag=True, help="Try it on the host and write nothing.")
@yes
@click.pass_obj
def reverse(app: App, target: str, patch: tuple[str, ...], check: bool, yes: bool) -> None:
    """Take the series out again, the last patch first, or only the named ones.

    \b
    ddops tree reverse lab1
    """
    _apply(app, target, patch, check, yes, back=True)


@tree.command()
@_HOST
@click.pass_obj
def verify(app: App, target: str) -> None:
    """Upstream and series, no more: on disk, and in what runs. Exit 1 names what differs.

    \b
    ddops tree verify lab1
    """
    from ddops.errors import DdopsError
    from ddops.tree.judge import judge_tree

    managed = _managed(app, target)
    seen, series = _seen(app, managed)
    wrong = judge_tree(seen, series)
    if wrong:
        raise DdopsError(f"{managed.host.name}: the tree is not what is recorded: {wrong[0]}",
                         why="; ".join(wrong[1:]), next=f"ddops tree status {target}")  # fmt: skip
    app.say(f"tree {str(seen['tree'])[:12]} is upstream and series"
            + (", and it is what runs" if seen["running"] else "; nothing runs"),
            managed.host.name)  # fmt: skip


@tree.command()
@_HOST
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where the files go.  [default: patches/ENGINE of the project]")  # fmt: skip
@click.pass_obj
def export(app: App, target: str, into: Path | None) -> None:
    """Write what the tree has beyond the series as patch files; their headers are yours to fill.

    \b
    ddops tree export lab1
    """
    from ddops.cli.output import emit_line
    from ddops.tree.judge import table_of

    managed = _managed(app, target)
    seen, series = _seen(app, managed)
    made = managed.export(series)
    engine = str(table_of(seen["pin"])["engine"])
    folder = into or app.project.root / "patches" / engine
    for path in _written(folder, made, len(series.patches), app):
        emit_line(str(path))
    if not made:
        app.say("nothing beyond the series", managed.host.name)


@tree.command()
@_HOST
@click.option("--onto", required=True, metavar="VERSION", help="The new upstream's version.")
@click.option("--git", "git_source", metavar="URL", help="A git repository that has it.")
@click.option("--commit", metavar="SHA", help="Its commit there, 40 digits.")
@click.option(
    "--wheel", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Its released wheel on this machine.",
)  # fmt: skip
@click.option(
    "--prefix",
    metavar="DIR",
    help="Where in it the package lies.  [default for --git: python/]",
)
@click.option("--write", is_flag=True, help="Write patches/sglang-VERSION when all of it fits.")
@as_json
@click.pass_obj
def rebase(
    app: App, target: str, onto: str, git_source: str | None, commit: str | None,
    wheel: Path | None, prefix: str | None, write: bool, as_json: bool,
) -> None:  # fmt: skip
    """Try the series on another upstream: what fits, what upstream has taken, what does not.

    The tree itself stays as it is.

    \b
    ddops tree rebase lab1 --onto 0.5.24 --wheel sglang-0.5.24.whl --write
    """
    from ddops.cli.output import emit_json, emit_table
    from ddops.errors import RefusedError
    from ddops.tree.host import conflict_lines

    managed = _managed(app, target)
    _, series = _seen(app, managed)
    upstream = _upstream(git_source, commit, wheel, None, prefix, f"sglang-{onto}")
    rows, made = managed.rebase(series, upstream)
    if as_json:
        emit_json("tree-rebase", [dict(r) for r in rows])
    elif rows:
        emit_table(("PATCH", "RESULT"), [(str(r["name"]), str(r["how"])) for r in rows])
    bad = [r for r in rows if r["how"] == "conflict"]
    if bad:
        raise RefusedError(
            f"{len(bad)} of {len(rows)} patches do not fit {onto}:"
            f" {'; '.join(conflict_lines({'patches': bad}))}",
            why="the tree and the project are unchanged", next="mend those patches, then again",
        )  # fmt: skip
    if write:
        folder = app.project.root / "patches" / f"sglang-{onto}"
        for path in _written(folder, made, 0, app, keep_names=True):
            app.say(f"wrote {path}")


def _apply(
    app: App, target: str, names: tuple[str, ...], check: bool, assume: bool, *, back: bool
) -> None:
    from ddops.cli.output import emit_line
    from ddops.errors import UsageError

    managed = _managed(app, target)
    _, series = _seen(app, managed)
    unknown = [n for n in names if n not in {p.name for p in series.patches}]
    if unknown:
        raise UsageError(f"no patch {unknown[0]} in the series", next=f"ddops tree status {target}")
    plan = managed.apply(series, back=back, only=names, check=True)
    rows = plan["done"]
    todo = rows if isinstance(rows, list) else []
    word = "reverse" if back else "apply"
    for row in todo:
        emit_line(f"{word} {row['name']}{' (3-way)' if row['how'] == 'merged' else ''}")
    if check or not todo:
        app.say(f"{len(todo)} patches would go" if todo else "nothing to do", managed.host.name)
        return
    if managed.host.origin.kind != "lab":
        confirm(f"{word.capitalize()} {len(todo)} patches on {managed.host.name}?", assume)
    done = managed.apply(series, back=back, only=names)
    app.say(f"tree {str(done['tree'])[:12]}; what runs is as before until the next start",
            managed.host.name)  # fmt: skip


def _managed(app: App, target: str) -> ManagedTree:
    from ddops.errors import UsageError
    from ddops.tree.host import ManagedTree

    hosts = app.select([target]).hosts
    if len(hosts) != 1:
        raise UsageError(f"{target} is {len(hosts)} hosts", next=hosts[0].name)
    return ManagedTree(app.transport(hosts[0]), hosts[0])


def _seen(app: App, managed: ManagedTree) -> tuple[dict[str, object], Series]:
    """The tree's status against the series of the engine it says it is."""
    from ddops.inventory import services_on
    from ddops.tree.judge import look_at_tree

    services = [s.name for s in services_on(app.inventory, managed.host)]
    return look_at_tree(managed, services, app.lookup)


def _upstream(
    git_source: str | None, commit: str | None, wheel: Path | None, installed: str | None,
    prefix: str | None, engine: str,
) -> Upstream:  # fmt: skip
    """The one source that was named. A git source needs its commit."""
    import re
    from zipfile import is_zipfile

    from ddops.errors import UsageError
    from ddops.snapshot.large import file_sha256
    from ddops.tree.host import Upstream

    if sum(x is not None for x in (git_source, wheel, installed)) != 1:
        raise UsageError(
            "name one source", next="--git URL --commit SHA, --wheel FILE or --installed DIR"
        )
    plain = (prefix or "").strip("/").removeprefix("./")
    inside = f"{plain}/" if plain not in ("", ".") else ""
    if git_source is not None:
        if not re.fullmatch(r"[0-9a-f]{40}", commit or ""):
            raise UsageError("a tree is pinned to a commit, by its 40 hex digits",
                             why="a branch or a tag may move", next="--commit SHA")  # fmt: skip
        return Upstream(
            "git", git_source, str(commit), engine, inside if prefix is not None else "python/"
        )
    if wheel is not None:
        if not wheel.is_file():
            raise UsageError(f"no such file: {wheel}", next="--wheel FILE, a wheel on this machine")
        if not is_zipfile(wheel):
            raise UsageError(f"{wheel} is no wheel", why="a wheel is a zip file",
                             next="--wheel FILE, a wheel on this machine")  # fmt: skip
        return Upstream("wheel", wheel.name, file_sha256(wheel), engine, inside, wheel)
    return Upstream("installed", str(installed), "installed", engine, inside)


def _status_lines(seen: dict[str, object], series: Series) -> list[str]:
    from ddops.model import short
    from ddops.tree.judge import names_of, table_of

    pin = table_of(seen["pin"])
    there, gone = names_of(seen["applied"]), names_of(seen["superseded"])
    lines = [
        f"upstream  {pin['source']} {str(pin['want'])[:12]}, {pin['engine']}",
        f"tree      {seen['tree']}",
        f"series    {short(series.digest) or 'no patches'}",
    ]
    for p in series.patches:
        state = ("superseded: upstream has it" if p.name in gone else
                 "applied" if p.name in there else "not applied")  # fmt: skip
        lacks = f"; its header lacks {', '.join(p.missing)}" if p.missing else ""
        lines.append(f"  {p.name}  {state}{lacks}")
    lines += [f"edited    {n}" for n in names_of(seen["dirty"])]
    if seen["unfinished"]:
        lines.append("a change was cut short; the next apply or reverse finishes it")
    running = table_of(seen["running"])
    for name, raw in running.items():
        row = table_of(raw)
        lines.append(f"running   {name}: {row['package']}, " + (
            "equal to the tree" if row["equal"] else "not the tree"))  # fmt: skip
        lines += [f"  differs  {f}" for f in names_of(row["differs"])]
        lines += [f"  changed since the start  {f}" for f in names_of(row["since"])]
    return lines if running else [*lines, "running   nothing"]


def _written(
    folder: Path, made: list[tuple[str, bytes]], start: int, app: App, *, keep_names: bool = False
) -> list[Path]:
    """New files beside what is there, and their names at the end of `series`."""
    from ddops.config.files import read_text, write_whole, writing
    from ddops.errors import RefusedError

    out = []
    for number, (name, data) in enumerate(made, start + 1):
        path = folder / (name if keep_names else f"{number:04d}-{name[:52]}.patch")
        if path.exists():
            raise RefusedError(f"{path} is there already", next="move it away, or use --into DIR")
        out.append((path, data))
    listed = folder / "series"
    old = read_text(listed) if listed.exists() else ""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in out:
            path.write_bytes(data)
    if out:
        torn = "\n" if old and not old.endswith("\n") else ""
        write_whole(listed.resolve(), old + torn + "".join(f"{p.name}\n" for p, _ in out))
    return [p for p, _ in out]
