"""Where things lie on a host, below its engine folder. The one place that spells these paths.

<engine_dir>/
  env/<digest12>/             an engine environment; `env.json` marks it complete
  code/<digest12>/            an environment's engine package with a series of patches on it
  models/<name>/              weights, by name
  tree/                       an SGLang source tree, where the host has one of ddops' own
  .ddops/                     the host's own state, 0700
    hostside/ lib/            our scripts and the process supervisor's package
    inputs/<digest12>/        locks and sources an environment is built from
    supervisor/               supervisord's configuration, pid and log
    lock/                     who is at work here
    trees/<digest12>.git      git folders that snapshots of a tree are taken into
    journal.jsonl             what was done here, one JSON object a line
    services/<service>/
      releases/<digest>/      staged releases; `current` names one of them
      run/launch.json         the last start: nonce, pid, weight version
      log/engine.log
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

#: A Unix socket's path may hold 107 bytes; supervisord adds a dot and a pid while it starts.
_SOCKET_LIMIT = 95


@dataclass(frozen=True, slots=True)
class HostLayout:
    """Paths of one host. All absolute, all on the host."""

    engine_dir: str

    @property
    def state(self) -> str:
        return f"{self.engine_dir}/.ddops"

    @property
    def hostside(self) -> str:
        return f"{self.state}/hostside"

    @property
    def lib(self) -> str:
        return f"{self.state}/lib"

    @property
    def lock(self) -> str:
        return f"{self.state}/lock"

    @property
    def journal(self) -> str:
        return f"{self.state}/journal.jsonl"

    @property
    def models(self) -> str:
        return f"{self.engine_dir}/models"

    @property
    def supervisor_conf(self) -> str:
        return f"{self.state}/supervisor/supervisord.conf"

    @property
    def socket(self) -> str:
        """supervisord's socket; in a private folder below /tmp where the path is too long."""
        path = f"{self.state}/supervisor/s.sock"
        if len(path.encode()) <= _SOCKET_LIMIT:
            return path
        return f"/tmp/ddops-{hashlib.sha256(path.encode()).hexdigest()[:16]}/s.sock"  # noqa: S108

    @property
    def tree(self) -> str:
        """The managed source tree; a tree that people made may lie anywhere."""
        return f"{self.engine_dir}/tree"

    def tree_git(self, tree: str) -> str:
        """Our git folder for the tree at that path.

        Named by its place below the engine folder, so that a restored host goes on with it.
        """
        name = tree.replace(self.engine_dir, "${engine_dir}", 1)
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self.state}/trees/{digest[:12]}.git"

    def inputs(self, digest: str) -> str:
        return f"{self.state}/inputs/{digest[:12]}"

    def env(self, digest: str) -> str:
        return f"{self.engine_dir}/env/{digest[:12]}"

    def code(self, digest: str) -> str:
        """Patched engine code, in front of its environment's own on PYTHONPATH."""
        return f"{self.engine_dir}/code/{digest[:12]}"

    def service(self, name: str) -> ServiceLayout:
        return ServiceLayout(f"{self.state}/services/{name}")


@dataclass(frozen=True, slots=True)
class ServiceLayout:
    """Paths of one service on one host."""

    dir: str

    @property
    def current(self) -> str:
        return f"{self.dir}/current"

    @property
    def committed(self) -> str:
        """Link to the last release that passed its gates here: what a rollback goes to."""
        return f"{self.dir}/committed"

    @property
    def op_id(self) -> str:
        """The operation that the next start belongs to."""
        return f"{self.run}/op_id"

    @property
    def log(self) -> str:
        return f"{self.dir}/log"

    @property
    def run(self) -> str:
        return f"{self.dir}/run"

    @property
    def launch_record(self) -> str:
        return f"{self.run}/launch.json"

    @property
    def proven(self) -> str:
        """The start that passed its gates, where starts come without a deploy behind them."""
        return f"{self.run}/proven.json"

    @property
    def kind(self) -> str:
        """Who was last asked to run it, where the service itself says who."""
        return f"{self.run}/engine"

    @property
    def program(self) -> str:
        return f"{self.dir}/program.conf"

    @property
    def releases(self) -> str:
        return f"{self.dir}/releases"

    def release(self, digest: str) -> str:
        return f"{self.releases}/{digest}"
