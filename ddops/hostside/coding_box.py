"""The sandbox of one solution: own user, mount, pid, network, ipc and uts namespaces.

Inside there is a read-only root with Python and /usr, a small /box to write in, no network device,
no /proc, no other process, and limits on memory, time, processes and files. Linux only, needs
no tool and no root. Nothing here catches its own failure: no sandbox, no run.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import sys

NOBODY = 65534
FLAGS = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MOUNT_SETATTR = 442  # the same number on every architecture
#: Where the new root is mounted, unseen by anybody else.
PLACES = ("/mnt", "/media", "/srv", "/opt", "/home")
REPORT, NONCE, GOING = 3, 4, 5

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))


def mount(source, target, kind, flags, data=None):
    texts = [None if x is None else os.fsencode(x) for x in (source, target, kind, data)]
    call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def die_with_parent():
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)


def start(harness, case, memory_mb, nonce):
    """Start one case; (pid, fd to read its report from). Kill its process group to end all."""
    out, report = os.pipe()
    asks, tells = os.pipe()
    gone, going = os.pipe()
    os.write(tells, nonce.encode())
    os.close(tells)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            keep(report, asks, going, os.open(os.devnull, os.O_RDWR))
            outer(harness, case, memory_mb, parent)
        except BaseException as e:  # whatever it is, the parent must hear of it
            complain(e)
        finally:
            os._exit(70)
    for fd in (report, asks, going):
        os.close(fd)
    if os.read(gone, 1):  # it has its namespaces, and stopped itself until it is somebody there
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(OSError):  # it finds itself without a map, and says so
            maps(pid)
        os.kill(pid, signal.SIGCONT)  # if it has ended it is a zombie still, so this finds it
    os.close(gone)
    return pid, out


def keep(report, asks, going, nothing):
    """Only these descriptors stay, at fixed numbers."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (nothing, report, asks, going)]
    for fd, old in zip((0, 1, 2, REPORT, NONCE, GOING), high[:1] * 3 + high[1:]):
        os.dup2(old, fd)
    os.closerange(GOING + 1, 256)


def complain(error):
    os.write(REPORT, ("infra %s: %s\n" % (type(error).__name__, error)).encode())


def outer(harness, case, memory_mb, parent):
    """Makes the namespaces, and waits outside for the first process inside."""
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != parent:
        return
    as_root = os.geteuid() == 0
    call("unshare", FLAGS)
    os.write(GOING, b"!")
    os.close(GOING)
    os.kill(os.getpid(), signal.SIGSTOP)
    if os.geteuid() != (0 if as_root else NOBODY):
        raise OSError("the user namespace got no map: uid %d" % os.geteuid())
    inner = os.fork()
    if inner == 0:
        try:
            first(harness, case, memory_mb, as_root)
        except BaseException as e:
            complain(e)
        finally:
            os._exit(70)
    os.close(REPORT)
    os.waitpid(inner, 0)
    os._exit(0)


def maps(pid):
    """Who is who inside. A root outside maps nobody too, to become it; others are nobody at once.

    Written from outside: only there may a root name more than itself.
    """
    root = os.geteuid() == 0
    with open("/proc/%d/setgroups" % pid, "w") as f:
        f.write("allow" if root else "deny")
    for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        with open("/proc/%d/%s" % (pid, name), "w") as f:
            if root:
                f.write("0 %d 1\n%d %d 1\n" % (own, NOBODY, NOBODY))
            else:
                f.write("%d %d 1\n" % (NOBODY, own))


def first(harness, case, memory_mb, as_root):
    """Process 1 inside: builds the root, starts the solution, ends with it, and all with it."""
    die_with_parent()
    call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    forbid_more_namespaces()
    python = os.path.realpath(sys.executable)
    build_root(harness, case, os.path.realpath(sys.base_prefix))
    child = os.fork()
    if child == 0:
        limits(memory_mb, case["limit_s"])
        if as_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        for fd in (REPORT, NONCE):
            os.set_inheritable(fd, True)
        words = ["-I", "-S", "-B", "/case/harness.py", str(REPORT), str(NONCE), case["entry"]]
        os.execve(python, [python, *words], {})
    while True:
        pid, status = os.wait()
        if pid == child:
            os.write(REPORT, b"\nstatus %d\n" % status)
            os._exit(0)


def forbid_more_namespaces():
    """A namespace of one's own would bring back capabilities. Not every container lets us."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as f:
            f.write("0")
    except OSError:
        pass


def build_root(harness, case, prefix):
    mount("none", "/", None, REC | PRIVATE)
    root = next(p for p in PLACES if os.path.isdir(p) and not (prefix + "/").startswith(p + "/"))
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=16m,nr_inodes=4096,mode=755")
    for path in ("/usr", "/lib", "/lib64", "/lib32", prefix):
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path) and not os.path.exists(root + path):
            os.makedirs(root + path)
            mount(path, root + path, None, BIND | REC)
            read_only(root + path)
    os.mkdir(root + "/case")
    for name, text in (
        ("harness", harness), ("solution", case["solution"]), ("test", case["test"]),
    ):  # fmt: skip
        # A lone surrogate cannot be written; as `?` it is a wrong program, not a broken sandbox.
        with open("%s/case/%s.py" % (root, name), "w", encoding="utf-8", errors="replace") as f:
            f.write(text)
    os.mkdir(root + "/box")
    mount("tmpfs", root + "/box", "tmpfs", NOSUID | NODEV, "size=32m,nr_inodes=1024,mode=777")
    mount(None, root, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", 2)  # MNT_DETACH: the old root, which lies on top of the new one
    os.chdir("/box")


def read_only(path):
    """The mount and all below it, or an error: a writable root would not be a sandbox."""
    attributes = (ctypes.c_uint64 * 4)(RDONLY | NOSUID | NODEV, 0, 0, 0)
    done = libc.syscall(
        MOUNT_SETATTR, -100, os.fsencode(path), 0x8000, ctypes.byref(attributes), 32
    )
    if done != 0:  # before Linux 5.12
        mount(None, path, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    if not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError("cannot make %s read-only" % path)


def limits(memory_mb, limit_s):
    """What one solution may use. Processes are counted within its own user namespace."""
    for name, most in (
        ("RLIMIT_AS", memory_mb << 20),
        ("RLIMIT_CPU", int(limit_s) + 2),
        ("RLIMIT_FSIZE", 16 << 20),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", 16),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (most, most))
