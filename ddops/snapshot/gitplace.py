"""The first copy: a bare git repository behind SSH. Any git can read it; no ddops is needed there.

An upload is one pack. The place hashes every object as it arrives, reads the pack back, walks from
the snapshot's commit to every object, and reads the manifest's sha256. Only then the reference is
set that makes the snapshot count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddops.command import sh
from ddops.errors import CommandFailed, DdopsError
from ddops.gitio import is_damage
from ddops.model import Result
from ddops.snapshot.model import Manifest
from ddops.snapshot.store import MANIFEST, REFS, Store
from ddops.transport import Transport

UPLOAD_DEADLINE_S = 1800.0
_FULL = ("No space left", "Disk quota exceeded", "File too large")

#: A host's git may be set up by people; nothing of that counts here.
_ENV = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C"}

# $1 folder. Names of what is there, `id commit` a line; makes the repository when missing.
_LOOK = """
command -v git >/dev/null || { echo "git is not installed here" >&2; exit 4; }
if [ ! -f "$1/HEAD" ]; then
  if [ -n "$(ls -A "$1" 2>/dev/null)" ]; then echo "not a git repository, not empty" >&2; exit 5; fi
  [ "$2" = make ] || exit 0
  umask 077; new="$1.$$.partial"
  mkdir -p "$(dirname "$1")" && git init -q --bare --template= "$new" || exit 1
  git --git-dir="$new" config gc.auto 0; git --git-dir="$new" config core.protectNTFS false
  rmdir "$1" 2>/dev/null; mv -T "$new" "$1" || { rm -rf "$new"; [ -f "$1/HEAD" ] || exit 1; }
fi
git --git-dir="$1" for-each-ref --format='%(refname:lstrip=3) %(objectname)' refs/ddops/snapshots
"""
# $1 folder, $2 id, $3 commit. The pack is standard input.
_PUT = """
umask 077; cd "$1" || exit 1; export GIT_DIR=.
got=$(git index-pack --stdin --strict --fix-thin) || exit 11
git verify-pack "objects/pack/pack-${got##*[[:space:]]}.idx" || exit 12
git rev-list --objects --quiet "$3" || exit 13
sum=$(git cat-file blob "$3:manifest.json" | sha256sum) || exit 14
[ "${sum%% *}" = "$2" ] || { echo "the manifest read back is ${sum%% *}" >&2; exit 15; }
sync objects/pack 2>/dev/null || :
git update-ref "refs/ddops/snapshots/$2" "$3" || exit 16
"""
# $1 folder, $2 id, $3 commit. Reads and hashes every object that belongs to it.
_CHECK = """
cd "$1" || exit 1; export GIT_DIR=.
git cat-file -e "$3^{commit}" || exit 20
at=$(git rev-parse -q --verify "refs/ddops/snapshots/$2")
[ -n "$at" ] || { echo "no such reference" >&2; exit 20; }
[ "$at" = "$3" ] || { echo "its reference names $at" >&2; exit 21; }
git fsck --full --no-dangling --no-progress "$3" || exit 22
sum=$(git cat-file blob "$3:manifest.json" | sha256sum) || exit 23
[ "${sum%% *}" = "$2" ] || { echo "the manifest is ${sum%% *}" >&2; exit 23; }
"""
# $1 folder, $2 commit, then commits that the asker has. A pack on standard output.
_GET = """
cd "$1" || exit 1; export GIT_DIR=.
commit=$2; shift 2
{ echo "$commit"; for c; do git cat-file -e "$c" 2>/dev/null && echo "^$c"; done; } |
  git pack-objects -q --stdout --revs --window=0
"""
# $1 folder, then ids.
_DROP = """
cd "$1" || exit 1; export GIT_DIR=.; shift
for id; do echo "delete refs/ddops/snapshots/$id"; done | git update-ref --stdin || exit 1
rm -f objects/pack/tmp_pack_* objects/pack/tmp_idx_*
git repack -q -a -d --window=0 && git prune --expire=1.hour.ago
"""


@dataclass(frozen=True, slots=True)
class GitPlace:
    """A bare repository at `path`, reached by `transport`."""

    transport: Transport
    path: str

    @property
    def name(self) -> str:
        return f"git:{self.transport.host}:{self.path}"

    def ids(self, *, make: bool = False) -> dict[str, str]:
        """Snapshots that are there, with their commits."""
        done = self.transport.run(
            sh(_LOOK, self.path, "make" if make else "look", env=_ENV), deadline_s=120.0
        )
        if not done.ok:
            raise self._error("cannot be used as a backup place", done)
        rows = (line.split(" ") for line in done.out.splitlines())
        return {row[0]: row[1] for row in rows}

    def put(self, store: Store, manifest: Manifest, commit: str, there: Mapping[str, str]) -> int:
        """Upload, read back, publish. Bytes sent. `there` is what `ids` said before."""
        repo = store.repo
        here = store.ids()
        base = next((here[i] for i in reversed(here) if i in there and i != manifest.id), None)
        if base is None:
            names = repo.new_objects(commit, None)
        else:
            shared = next(i for i, c in here.items() if c == base)
            before = store.manifest(shared).commit
            own = repo.text("ls-tree", "-r", "-t", "--format=%(objectname)", commit).split()
            names = [commit, repo.text("rev-parse", f"{commit}^{{tree}}"), *own,
                     *repo.new_objects(manifest.commit, before)]  # fmt: skip
        pack = repo.make_pack(names)
        command = sh(_PUT, self.path, manifest.id, commit, env=_ENV).with_stdin(pack)
        done = self.transport.run(command, deadline_s=UPLOAD_DEADLINE_S)
        if not done.ok:
            raise self._error("the upload did not verify", done)
        return len(pack)

    def check(self, manifest: Manifest, commit: str) -> None:
        """Read every object of a snapshot there. Raises DdopsError naming what is wrong."""
        command = sh(_CHECK, self.path, manifest.id, commit, env=_ENV)
        done = self.transport.run(command, deadline_s=UPLOAD_DEADLINE_S)
        if not done.ok:
            raise self._error(f"snapshot {manifest.id[:12]} is not whole there", done)

    def get(self, store: Store, snapshot_id: str) -> None:
        """Bring a snapshot from there into the store; it counts here once it was read."""
        commit = self.ids().get(snapshot_id)
        if commit is None:
            raise DdopsError(f"{self.name} has no snapshot {snapshot_id[:12]}",
                             next="ddops snapshot list")  # fmt: skip
        have = list(store.ids().values())
        command = sh(_GET, self.path, commit, *have[-50:], env=_ENV)
        done = self.transport.run(command, deadline_s=UPLOAD_DEADLINE_S, limit=4 << 30)
        if not done.ok or done.truncated:
            raise self._error("the download failed", done)
        store.ensure()
        store.repo.take_pack(done.stdout)
        from ddops.snapshot.model import parse_manifest

        parse_manifest(store.repo.blob(f"{commit}:{MANIFEST}"), snapshot_id)
        store.repo.run("rev-list", "--objects", "--quiet", commit)
        store.repo.set_ref(f"{REFS}/{snapshot_id}", commit)

    def drop(self, ids: list[str]) -> None:
        """Forget snapshots and free their space."""
        command = sh(_DROP, self.path, *ids, env=_ENV)
        done = self.transport.run(command, deadline_s=UPLOAD_DEADLINE_S)
        if not done.ok:
            raise self._error("old snapshots could not be removed: retention failed", done)

    def _error(self, what: str, done: Result) -> DdopsError:
        kind, then = self._kind(done)
        return CommandFailed(
            f"{self.name}: {what}{kind and ': '}{kind}",
            rc=done.rc,
            why="\n".join(done.err.strip().splitlines()[-4:]),
            next=then,
        )

    def _kind(self, done: Result) -> tuple[str, str]:
        """What kind of failure it was, empty where it is none that is known; and what to do."""
        host = self.transport.host
        if any(w in done.err for w in _FULL):
            return "the disk is full", f"free space on {host} and run again"
        if done.rc == 4:
            return "git is not installed there", f"install git on {host}"
        if done.rc == 5:
            return "the folder is something else", "name an empty folder, or one that is not there"
        if done.rc in range(12, 16) or done.rc in range(20, 24) or is_damage(done.err):
            return "damaged or missing objects", "ddops snapshot verify"
        if "early EOF" in done.err or "unexpected disconnect" in done.err:
            return "the pack did not arrive whole", "run it again: nothing half done counts"
        return "", f"ssh to {host} and look at {self.path}"
