"""Looks for secrets in what a snapshot would take. Joined into snap.py on its way to the host.

A hit names the path, the rule and the line. The value itself is never kept, nor printed.
"""

import fnmatch
import hashlib
import math
import os
import re

from ddops.hostside.snap_git import Stop

RULES = "1"
#: Rule, texts to look for (which is quick), expression around them. Group 1, if any, is the value.
PATTERNS = (
    ("private-key", (b"-----BEGIN ",),
     rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----\s+(?:[A-Za-z-]+: [^\n]+\s+)*"
     rb"[A-Za-z0-9+/=\s]{40}"),
    ("hub-token", (b"hf_",), rb"\bhf_[A-Za-z0-9]{30,}"),
    ("cloud-access-key", (b"AKIA", b"ASIA"), rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("forge-token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-"),
     rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,}|glpat-[A-Za-z0-9_-]{20,})"),
    ("api-key", (b"sk-",), rb"\bsk-(?:ant-|proj-|or-)?([A-Za-z0-9_-]{32,})"),
    ("chat-token", (b"xox",), rb"\bxox[abeprs]-[A-Za-z0-9-]{20,}"),
    ("maps-key", (b"AIza",), rb"\bAIza[0-9A-Za-z_-]{35}"),
)  # fmt: skip
#: The same for text files alone: in a compiled file these words mean nothing.
TEXT_PATTERNS = (
    ("password-in-url", (b"://",),
     rb"\b[a-z][a-z0-9+.-]{1,15}://[^/\s:@'\"<>{}$`]{1,64}:([^@\s/'\"<>{}$`]{6,})@"
     rb"(?!(?:[\w-]+\.)*example\b|localhost|127\.|host\b)[\w.\[]"),
    ("named-secret", (b"_KEY=", b"_TOKEN=", b"_SECRET=", b"PASSWORD="),
     rb"(?m)^(?:export )?[A-Z0-9_]*(?:_KEY|_TOKEN|_SECRET|PASSWORD)="
     rb"['\"]?([^'\"\s$`<>(){}]{16,200})['\"]?\s*$"),
)  # fmt: skip
#: Looked for without regard to case.
ASSIGNED = (
    "named-secret",
    (b"_key", b"api-key", b"apikey", b"_token", b"_secret", b"passw", b"passphrase"),
    rb"(?i)(?:api[_-]?key|access_key|secret_key|_token|_secret|passw(?:or)?d|passphrase)"
    rb"['\"]?\]?[ \t]{0,3}(?::[ \t]{0,3}str[ \t]{0,3})?[:=][ \t]{0,3}"
    rb"b?['\"]([^'\"\s\\]{16,200})['\"]",
)  # fmt: skip
RULE_SETS = tuple(
    tuple((rule, texts, re.compile(regex)) for rule, texts, regex in rows)
    for rows in (PATTERNS, TEXT_PATTERNS, (ASSIGNED,))
)
#: Bytes before and after a text that an expression is tried on.
BEFORE, AFTER = 120, 400
#: Files that are secrets by what they are called, if there is anything in them.
NAMES = (
    ".netrc", ".pypirc", ".git-credentials", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
    "*.p12", "*.pfx", "*.keystore", "*.kdbx", ".env", ".env.local", ".env.production",
)  # fmt: skip
#: Bits a character that a value must have behind a name, and without one.
NAMED_BITS = 3.3
PLACEHOLDERS = re.compile(
    rb"(?i)example|placeholder|changeme|dummy|your[_-]|<.*>|xxxx|\.\.\.|test[_-]?(?:key|token|secret)"
    rb"|password|os\.environ|getenv|[*]{3}|0123456789|abcdefgh|1234567"
    rb"|\$[{(]|\{\{"
)
MOST = 200


def scan(git, state, tree, allow):
    """Hits in files that were not looked at before by these rules and are not allowed."""
    cleared = state["cleared"] or {}
    if cleared.get("tree") == tree and cleared.get("rules") == RULES:
        return []
    hits = []
    for path, blob in new_blobs(git, cleared, tree):
        found = judge(path, blob)
        name = os.fsdecode(path)
        if not found:
            state["allowed"].pop(name, None)
        elif allow(name):
            state["allowed"][name] = sorted({rule for rule, _ in found})
        else:
            hits += [{"path": name, "rule": rule, "line": line} for rule, line in found]
        if len(hits) > MOST:
            break
    return hits


def new_blobs(git, cleared, tree):
    """Path and bytes of each file of `tree` that the cleared tree does not hold there.

    Read from the work tree, which is quicker than from git, and only if they are the object's:
    what was looked at is what is sent.
    """
    if cleared.get("rules") == RULES and git.has(cleared["tree"]):
        words = ("diff-tree", "-r", "-z", "--no-renames", "--raw", cleared["tree"], tree)
        fields = git.out(*words).split(b"\0")
        rows = [(m.split(b" "), p) for m, p in zip(fields[::2], fields[1::2])]
        wanted = [(w[3], p) for w, p in rows if w[4] != b"D" and w[1].startswith(b"10")]
    else:
        lines = [r.split(b"\t", 1) for r in git.out("ls-tree", "-r", "-z", tree).split(b"\0") if r]
        wanted = [(m.split(b" ")[2], p) for m, p in lines if m.startswith(b"10")]
    for oid, path in wanted:
        try:
            with open(git.path(path), "rb") as f:
                data = f.read()
        except OSError:
            data = b""
        if hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest().encode() != oid:  # noqa: S324
            raise Stop("moving", paths=[os.fsdecode(path)])
        yield path, data


def judge(path, data):
    """Rules that a file breaks, with the line of the first place for each."""
    out = []
    name = os.fsdecode(path).rpartition("/")[2]
    if data.strip() and any(fnmatch.fnmatch(name, n) for n in NAMES):
        out.append(("secret-file", 1))
    everywhere, texts_only, assigned = RULE_SETS
    rows = everywhere[:1] if data.startswith(b"\x7fELF") else everywhere
    out += [hit for row in rows for hit in first(row, data, data)]
    if b"\0" not in data[:8192]:
        out += [hit for row in texts_only for hit in first(row, data, data)]
        out += [hit for row in assigned for hit in first(row, data, data.lower())]
    return out


def first(row, data, where):
    """The first real match of one rule, as a list of one, near a text found in `where`."""
    rule, texts, regex = row
    for text in texts:
        at = where.find(text)
        while at >= 0:
            start = max(0, at - BEFORE)
            for match in regex.finditer(data, start, at + AFTER):
                if real(rule, match.group(match.lastindex or 0)):
                    return [(rule, data.count(b"\n", 0, match.start()) + 1)]
            at = where.find(text, at + len(text))
    return []


def real(rule, value):
    """Whether a match is more than a word in a manual."""
    if rule == "private-key":
        return True
    if PLACEHOLDERS.search(value):
        return False
    if rule in ("named-secret", "api-key"):
        digits = any(c in b"0123456789" for c in value)
        letters = any(c not in b"0123456789" for c in value)
        plain = re.fullmatch(rb"[a-z_.-]+|[A-Z_.-]+|[\w.-]*/[\w./-]*\.\w+", value)
        return digits and letters and not plain and bits(value) >= NAMED_BITS
    return len(set(value)) > 4


def bits(value):
    """Shannon entropy, bits a character."""
    total = len(value)
    counts = [value.count(bytes([c])) for c in set(value)]
    return -sum(n / total * math.log2(n / total) for n in counts)
