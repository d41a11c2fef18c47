"""One control group for each host of a systemd lab.

systemd-nspawn without a machine manager runs a host in the group it was started in, so two hosts
started in one group would see, and stop, each other's processes. Groups are all that namespaces
do not take with them: `remove` does.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

#: cgroup2 alone, cgroup2 beside version 1, and the hierarchy that systemd names in version 1.
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")


def cgroup_roots() -> list[Path]:
    """Hierarchies to make groups in, a cgroup2 first; none when there is no writable cgroup2."""
    found = [p for p in map(Path, _ROOTS) if (p / "cgroup.procs").exists()]
    unified = [p for p in found if (p / "cgroup.controllers").exists()]
    if not unified or not os.access(unified[0], os.W_OK):
        return []
    return [*unified, *(p for p in found if p not in unified)]


def group_name(lab_dir: Path) -> str:
    """The lab's group, below which each host has one; the same after a crash."""
    return f"ddops-lab-{hashlib.sha256(os.fsencode(lab_dir)).hexdigest()[:12]}"


def make(group: str, host: str) -> list[Path]:
    """Make the host's groups; what is left of an earlier boot is removed first."""
    remove(group, host)
    made = [root / group / host for root in cgroup_roots()]
    for path in made:
        path.mkdir(parents=True, exist_ok=True)
    return made


def enter(paths: list[Path]) -> None:
    """Move the calling process into the groups."""
    for path in paths:
        (path / "cgroup.procs").write_text("0")


def freeze(group: str, host: str, frozen: bool) -> None:
    """Stop or continue every process of the host at once."""
    path = cgroup_roots()[0] / group / host / "cgroup.freeze"
    path.write_text("1" if frozen else "0")


def kill(group: str, host: str) -> None:
    """End every process of the host at once: the power is cut."""
    (cgroup_roots()[0] / group / host / "cgroup.kill").write_text("1")


def remove(group: str, host: str = "", *, wait_s: float = 5.0) -> None:
    """Remove the groups, the inner ones first. A group whose processes just ended may be busy."""
    end = time.monotonic() + wait_s
    for root in map(Path, _ROOTS):
        while (top := root / group / host).is_dir():
            try:
                for folder, _, _ in os.walk(top, topdown=False):
                    Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
