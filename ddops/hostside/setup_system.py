"""Packages, users, kernel settings and units of a host's setup. Joined into setup.py.

Each kind has `look`, `do` and `undo`, as in setup_files.py. A package that would bring another
driver or another kernel with it, or remove anything, is not installed: whoever wants that names it.
"""

import fnmatch
import os
import pwd
import re

from ddops.hostside.setup_files import (
    Wrong,
    do_line,
    group_names,
    look_line,
    read,
    undo_line,
)

#: What a package must not bring along unasked.
DRIVER = re.compile(
    r"(nvidia-(driver|kernel|dkms|open|headless|utils|compute-utils|firmware|modprobe)([-_]|$)"
    r"|libnvidia-(?!container)|cuda-drivers|xserver-xorg-video-nvidia|linux-(image|modules|headers)-)"
)
SYSCTL_FILE = "/etc/sysctl.d/60-ddops.conf"
MODULES_FILE = "/etc/modules-load.d/ddops.conf"
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "APT_LISTCHANGES_FRONTEND": "none"}
LIMIT_S = 1800


def call(*words, limit=60):
    """Status, output and errors together; 127 for a program that is not there."""
    import subprocess  # here: most looks call nothing, and it takes as long to load as the rest

    try:
        done = subprocess.run(words, env={**os.environ, **QUIET}, stdin=subprocess.DEVNULL,
                              capture_output=True, check=False, timeout=limit)  # fmt: skip
    except FileNotFoundError:
        return 127, "%s: not found" % words[0]
    except subprocess.TimeoutExpired:
        return 124, "%s: no end within %d s" % (words[0], limit)
    out = done.stdout.decode("utf-8", "replace")
    return done.returncode, out + done.stderr.decode("utf-8", "replace")


def done_or_wrong(*words, limit=60):
    rc, said = call(*words, limit=limit)
    if rc:
        raise Wrong("%s ended with %d: %s" % (" ".join(words[:3]), rc, said.strip()[-400:]))
    return said


def driver():
    """The version of the NVIDIA driver that is loaded, or None."""
    text = (read("/proc/driver/nvidia/version") or b"").decode("utf-8", "replace")
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else None


def filled(value):
    if value is None or "${driver" not in value:
        return value
    version = driver()
    if version is None:
        raise Wrong("no NVIDIA driver is loaded, and %s goes with its version" % value)
    return value.replace("${driver_branch}", version.split(".")[0]).replace("${driver}", version)


def installed(names):
    """Version of each package that is installed, in one question."""
    rc, said = call("dpkg-query", "-W", "-f", "${Package}\t${db:Status-Abbrev}\t${Version}\n",
                    *names)  # fmt: skip
    if rc == 127:
        raise Wrong("no dpkg here: packages are of Debian and Ubuntu")
    rows = [line.split("\t") for line in said.splitlines() if line.count("\t") == 2]
    return {name: version for name, state, version in rows if state.startswith("ii")}


def package_words(r):
    name, version = filled(r["name"]), filled(r.get("version"))
    return name, version


def listed(names):
    """The same from dpkg's own list, many times as fast as asking it; for looking alone.

    Where dpkg has changes beside its list, or keeps it elsewhere, it is asked.
    """
    folder = os.environ.get("DPKG_ADMINDIR", "/var/lib/dpkg")
    data = read(os.path.join(folder, "status"))
    try:
        beside = os.listdir(os.path.join(folder, "updates"))
    except OSError:
        return installed(names)
    if data is None or beside:
        return installed(names)
    out = {}
    for name in names:
        form = rb"^Package: %s\n((?:[^\n]+\n)*)" % re.escape(name.encode())
        for block in re.findall(form, data, re.MULTILINE):
            version = re.search(rb"^Version: (\S+)$", block, re.MULTILINE)
            if b"Status: install ok installed\n" in block and version:
                out[name] = version.group(1).decode()
    return out


def fits(have, version):
    return have is not None and (version is None or fnmatch.fnmatch(have, version))


def look_package(r, known=None):
    name, version = package_words(r)
    have = (known if known is not None else installed([name])).get(name)
    if fits(have, version):
        return "none", []
    rows = simulated([name], version)
    lines = ["install %s%s" % (name, " %s" % version if version else "")]
    if have is not None:
        lines = ["%s: %s -> %s" % (name, have, version)]
    lines += ["  with %s (%s)" % row for row in rows if row[0] != name]
    return ("create" if have is None else "update"), lines


def simulated(names, version):
    """What apt would install; Wrong when it would remove something or change the driver."""
    words = ["%s=%s" % (n, version) if version else n for n in names]
    rc, said = call("apt-get", "-s", "-q", "-o", "Debug::NoLocking=true", "install",
                    "--no-install-recommends", *words, limit=120)  # fmt: skip
    if rc:
        last = [line for line in said.splitlines() if line.startswith("E: ")] or [said[-200:]]
        raise Wrong("apt cannot install %s: %s" % (" ".join(words), " ".join(last)))
    gone = re.findall(r"^Remv (\S+)", said, re.MULTILINE)
    if gone:
        raise Wrong("%s would remove %s" % (" ".join(words), ", ".join(gone)))
    rows = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\(([^\s)]+)", said, re.MULTILINE)
    bad = ["%s %s" % row for row in rows if DRIVER.match(row[0]) and row[0] not in names]
    if bad:
        raise Wrong("%s would change the driver or the kernel: %s" % (" ".join(words),
                                                                      ", ".join(bad)))  # fmt: skip
    return rows


def do_package(r):
    name, version = package_words(r)
    before = installed([name]).get(name)
    kept = alternative(r.get("keep_alternative"))
    simulated([name], version)  # the plan may be old: asked again before anything is done
    word = "%s=%s" % (name, version) if version else name
    done_or_wrong("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=120", "install",
                  "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold",
                  word, limit=LIMIT_S)  # fmt: skip
    if kept and alternative(r["keep_alternative"]) != kept:
        done_or_wrong("update-alternatives", "--set", r["keep_alternative"], kept)
    return {"version": before}


def alternative(name):
    """Where a name of update-alternatives points, or None."""
    if not name:
        return None
    rc, said = call("update-alternatives", "--query", name)
    found = re.search(r"^Value: (\S+)$", said, re.MULTILINE)
    return found.group(1) if rc == 0 and found and found.group(1) != "none" else None


def undo_package(r, before):
    name, _ = package_words(r)
    if before["version"] is not None:
        return "%s was %s before; going back to it is yours to do" % (name, before["version"])
    if name not in installed([name]):
        return None
    said = done_or_wrong("apt-get", "-s", "-q", "remove", name)
    others = [n for n in re.findall(r"^Remv (\S+)", said, re.MULTILINE) if n != name]
    if others:
        return "%s stays: %s need it" % (name, ", ".join(others))
    done_or_wrong("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=120", "remove", name,
                  limit=LIMIT_S)  # fmt: skip
    return None


def look_user(r):
    try:
        pwd.getpwnam(r["name"])
    except KeyError:
        lines = ["make system user %s (home %s)" % (r["name"], r["home"])]
        return "create", lines + ["  in group %s" % g for g in r.get("groups", ())]
    missing = [g for g in r.get("groups", ()) if g not in group_names(r["name"])]
    return ("update", ["%s into group %s" % (r["name"], g) for g in missing]) if missing else (
        "none", [])  # fmt: skip


def do_user(r):
    try:
        pwd.getpwnam(r["name"])
        there = True
    except KeyError:
        there = False
        done_or_wrong("useradd", "--system", "--user-group", "--no-create-home", "--home-dir",
                      r["home"], "--shell", r["shell"], r["name"])  # fmt: skip
    joined = [g for g in r.get("groups", ()) if g not in group_names(r["name"])]
    for group in joined:
        done_or_wrong("usermod", "-a", "-G", group, r["name"])
    return {"there": there, "groups": joined}


def undo_user(r, before):
    if not before["there"]:
        rc, said = call("userdel", r["name"])
        return None if rc in (0, 6) else "user %s stays: %s" % (r["name"], said.strip())
    for group in before["groups"]:
        done_or_wrong("gpasswd", "-d", r["name"], group)
    return None


def proc_path(key):
    return "/proc/sys/" + key.replace(".", "/")


def live(key):
    data = read(proc_path(key))
    if data is None:
        raise Wrong("this kernel has no %s" % key)
    return " ".join(data.decode("utf-8", "replace").split())


def sysctl_line(r):
    return {"path": SYSCTL_FILE, "line": "%s = %s" % (r["key"], r["value"]),
            "match": "^%s *=" % re.escape(r["key"])}  # fmt: skip


def look_sysctl(r):
    now = live(r["key"])
    lines = ["%s: %s -> %s" % (r["key"], now, r["value"])] if now != r["value"] else []
    if look_line(sysctl_line(r))[0] != "none":
        lines.append("%s: %s = %s" % (SYSCTL_FILE, r["key"], r["value"]))
    return ("update", lines) if lines else ("none", [])


def set_live(key, value):
    with open(proc_path(key), "w", encoding="utf-8") as f:
        f.write(value)


def do_sysctl(r):
    now = live(r["key"])
    line = sysctl_line(r)
    kept = do_line(line) if look_line(line)[0] != "none" else None
    if now != r["value"]:
        set_live(r["key"], r["value"])
    return {"live": now, "line": kept}


def undo_sysctl(r, before):
    left = undo_line(sysctl_line(r), before["line"]) if before["line"] else None
    if live(r["key"]) == r["value"] != before["live"]:
        set_live(r["key"], before["live"])
    return left


def module_line(r):
    return {"path": MODULES_FILE, "line": r["name"]}


def loaded(name):
    return os.path.isdir("/sys/module/%s" % name)


def look_module(r):
    lines = [] if loaded(r["name"]) else ["load module %s" % r["name"]]
    if look_line(module_line(r))[0] != "none":
        lines.append("%s: %s" % (MODULES_FILE, r["name"]))
    return ("update", lines) if lines else ("none", [])


def do_module(r):
    line = module_line(r)
    if not loaded(r["name"]):
        done_or_wrong("modprobe", r["name"])
    return {"line": do_line(line) if look_line(line)[0] != "none" else None}


def undo_module(r, before):
    """The module stays loaded: something may be using it by now."""
    return undo_line(module_line(r), before["line"]) if before["line"] else None


def unit_states(name):
    rc, said = call("systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", name)
    if rc:
        raise Wrong("systemd does not answer: %s" % said.strip()[-200:])
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def look_unit(r):
    seen = unit_states(r["name"])
    lines = []
    if seen.get("UnitFileState") not in ("enabled", "enabled-runtime", "static", "alias"):
        lines.append("enable %s" % r["name"])
    if seen.get("ActiveState") != "active":
        lines.append("start %s" % r["name"])
    return ("update", lines) if lines else ("none", [])


def do_unit(r):
    seen = unit_states(r["name"])
    done_or_wrong("systemctl", "daemon-reload")
    done_or_wrong("systemctl", "enable", "--now", r["name"], limit=300)
    return {"enabled": seen.get("UnitFileState") == "enabled",
            "active": seen.get("ActiveState") == "active"}  # fmt: skip


def undo_unit(r, before):
    if not before["active"]:
        done_or_wrong("systemctl", "stop", r["name"], limit=300)
    if not before["enabled"]:
        done_or_wrong("systemctl", "disable", r["name"])
    return


def look_require(r):
    if os.path.lexists(r["path"]):
        return "none", []
    raise Wrong("%s is not there: %s; next: %s" % (r["path"], r["why"], r["next"]))


def look_advice(r):
    """Never pending: a kernel's command line is for people to change."""
    words = (read("/proc/cmdline") or b"").decode("utf-8", "replace").split()
    if r["cmdline"] in words:
        return "none", []
    return "none", ["advice: %s on the kernel's command line: %s" % (r["cmdline"], r["why"])]
