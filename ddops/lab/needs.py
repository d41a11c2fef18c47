"""What a systemd lab needs of the machine, and what of it is missing here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ddops.errors import RefusedError, UsageError
from ddops.lab.cgroups import cgroup_roots

#: Tool to Debian package. Some lie in /usr/sbin, which is not on everybody's PATH.
TOOLS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The namespaces that hold a lab: when its first process ends, all of it is gone.
UNSHARE = (
    "unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child",
    "--propagation", "private", "--mount-proc",
)  # fmt: skip
#: One booted host takes about seven of the kernel's inotify instances (`max_user_instances`).
_INOTIFY_EACH = 7


def why_not() -> tuple[str, str]:
    """Why no systemd lab can run here and what to do about it; two empty texts when it can."""
    if os.geteuid() != 0:
        return "needs root: it boots hosts in namespaces of their own", "sudo -E ddops lab up ..."
    absent = {p for t, p in TOOLS.items() if shutil.which(t, path=PATH) is None}
    if absent:
        names = " ".join(sorted(absent))
        return f"needs the packages {names}", f"apt-get install --no-install-recommends {names}"
    if not cgroup_roots():
        return "needs a writable cgroup2 file system", "mount | grep cgroup2"
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={"PATH": PATH}, timeout=30,
    )  # fmt: skip
    if tried.returncode:
        said = (tried.stderr.strip() or f"exit {tried.returncode}")[-300:]
        return f"needs namespaces, and cannot make them: {said}", "run it on a machine, or a VM"
    return "", ""


def require(hosts: int, wheelhouse: str | None) -> None:
    """Raise `RefusedError` where a systemd lab of that size cannot run."""
    why, next_ = why_not()
    if why:
        raise RefusedError(f"a systemd lab {why}", next=next_)
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // _INOTIFY_EACH
    if hosts > limit:
        raise RefusedError(
            f"{hosts} systemd hosts need more inotify instances than this kernel gives",
            why=f"there are enough for about {limit} hosts",
            next=f"sysctl fs.inotify.max_user_instances={hosts * _INOTIFY_EACH + 16}",
        )
    if wheelhouse is not None and not Path(wheelhouse).is_dir():
        raise UsageError(f"no such folder: {wheelhouse}", next="ddops lab up --systemd")
    if wheelhouse is not None and Path(wheelhouse).stat().st_mode & 0o005 != 0o005:
        raise RefusedError(
            f"the hosts could not read {wheelhouse}",
            why="their login is no root, and others may not read the folder",
            next=f"chmod o+rx {wheelhouse}",
        )
