"""The root filesystem of systemd lab hosts: built once from the machine's own apt sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ddops.config.files import read_data, read_text
from ddops.errors import CommandFailed, RefusedError
from ddops.lab.needs import PATH
from ddops.render import Lookup

#: Distributions whose packages make a host; other sources of the machine are left out.
_ORIGINS = ("Debian", "Ubuntu")
_FIELDS = "$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(CODENAME)"
_PROXIES = ("Acquire::http::Proxy", "Acquire::https::Proxy")
_NOT_WANTED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
BUILD_LIMIT_S = 900.0


def ensure(cache: Path, lookup: Lookup, say: Callable[[str], None]) -> Path:
    """The folder of the root filesystem, built when it is not there yet; one build at a time."""
    suite, lines = apt_sources(_apt("apt-get", "indextargets", "--format", _FIELDS,
                                    "Created-By: Packages"))  # fmt: skip
    packages, customize = lookup("lab/systemd/packages.txt"), lookup("lab/systemd/customize")
    recipe = hashlib.sha256(read_data(packages) + read_data(customize)).hexdigest()[:12]
    folder = cache / "rootfs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{suite}-{recipe}"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            say(f"building the root filesystem of lab hosts ({suite}, once): about half a minute")
            _build(target, suite, lines, packages_in(read_text(packages)), customize)
    return target


def packages_in(text: str) -> list[str]:
    """Package names of `packages.txt`: one a line, `#` begins a comment."""
    words = (line.partition("#")[0].strip() for line in text.splitlines())
    return [w for w in words if w]


def apt_sources(listing: str) -> tuple[str, list[str]]:
    """The suite and the lines of sources.list, from what apt says of the machine's own sources.

    A suite is that of the release itself, not of its updates: the shortest name.
    """
    rows = [line.split("\t") for line in listing.splitlines()]
    rows = [r for r in rows if len(r) == 5 and r[0] in _ORIGINS and r[4]]
    parts: dict[tuple[str, str], set[str]] = {}
    for _, uri, release, component, _ in rows:
        parts.setdefault((uri, release), set()).add(component)
    if not parts:
        raise RefusedError(
            "the machine's apt sources name no Debian or Ubuntu release",
            why="the hosts of a systemd lab are built from them",
            next="apt-get update, then again",
        )
    suite = min((r[2] for r in rows), key=len)
    return suite, [f"deb {uri} {rel} {' '.join(sorted(c))}" for (uri, rel), c in parts.items()]


def _build(target: Path, suite: str, lines: list[str], packages: list[str], hook: Path) -> None:
    for stale in target.parent.glob("*.partial"):  # a build that was killed; we hold the lock
        shutil.rmtree(stale)
    temp = target.with_name(f"{target.name}.partial")
    runs = target.with_name("customize")  # an installed file may have lost its mode
    shutil.copyfile(hook, runs)
    runs.chmod(0o700)
    options = [f"--dpkgopt=path-exclude={p}" for p in _NOT_WANTED]
    options.append("--dpkgopt=force-unsafe-io")  # a build that is cut short is thrown away whole
    options += [f'--aptopt={k} "{v}"' for k, v in _proxies()]
    words = [
        "setpriv", "--pdeathsig", "KILL",  # a build does not outlive whoever waits for it
        "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
        "--mount-proc", "mmdebstrap", "--mode=root", "--variant=minbase",
        f"--include={','.join(packages)}", '--aptopt=Acquire::Languages "none"', *options,
        f"--customize-hook={runs}", suite, str(temp), *lines,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": PATH}, timeout=BUILD_LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            raise CommandFailed(
                "the root filesystem of lab hosts was not built",
                rc=done.returncode,
                why=done.stderr.strip()[-1500:],
                next="apt-get update, then again",
            )
        temp.rename(target)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        runs.unlink()


def _proxies() -> list[tuple[str, str]]:
    """The machine's own proxies: a build does not read the machine's apt settings by itself."""
    out = []
    for name in _PROXIES:
        value = _apt("apt-config", "shell", "V", name).strip()
        if value:
            out.append((name, value.removeprefix("V='").removesuffix("'")))
    return out


def _apt(*words: str) -> str:
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise CommandFailed(
            "apt cannot be asked for this machine's sources",
            rc=done.returncode, stderr=done.stderr, next="apt-get update, then again",
        )  # fmt: skip
    return done.stdout
