"""The first process of a systemd lab's namespaces: it boots the hosts, and all ends with it.

    python -m ddops.lab.holder PLAN

Started by `ddops lab up` inside `unshare` (see `needs.UNSHARE`). The kernel ends every process of
a pid namespace with its first one, and drops the mounts and the network with the last process: so
ending this one, by whatever means, is taking the lab down. Standard input is the lifeline: when
`lab up` ends before it has written `ready`, so does the lab.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddops.errors import DdopsError
from ddops.lab import cgroups, netplan
from ddops.lab.booted import Booted, LabCommandError, run
from ddops.lab.faults import Fault
from ddops.lab.relay import serve_tcp

READY = b"ready\n"
_REQUEST_LIMIT = 4096
_LOOK_S = 5.0


class Holder:
    """All hosts of one lab."""

    def __init__(self, plan: Mapping[str, object]) -> None:
        self.dir = Path(str(plan["dir"]))
        self.plan = self.dir / "holder.json"
        self.group = str(plan["group"])
        wheels = plan["wheelhouse"]
        names = plan["hosts"]
        assert isinstance(names, list)  # noqa: S101 - our own file
        self.hosts = {
            name: Booted(
                name, index, self.dir / "hosts" / name, self.group, str(plan["rootfs"]),
                str(wheels) if wheels else None,
            )
            for index, name in enumerate(names, 1)
        }  # fmt: skip
        self.busy = asyncio.Lock()
        self.changed = asyncio.Event()

    async def start(self) -> None:
        # What systemd-nspawn writes below /run is for machines that go on; this is a lab.
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        for words in netplan.network():
            run(*words)
        authorized = (self.dir / "authorized_keys").read_text()
        for host in self.hosts.values():
            host.mount()
            host.seed(authorized)
        await asyncio.gather(*(host.boot() for host in self.hosts.values()))

    async def watch(self) -> None:
        """Collect what ended; boot again whatever asked for it."""
        while self.plan.exists():  # a lab whose folder was deleted has nobody to end it
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), _LOOK_S)
            self.changed.clear()
            async with self.busy:
                for host in self.hosts.values():
                    if host.ended():
                        await self._boot_again(host)
            reap({h.process.pid for h in self.hosts.values() if h.process})

    async def _boot_again(self, host: Booted) -> None:
        try:
            await host.boot()
            print(f"{host.name}: boot {host.boots}", flush=True)
        except (LabCommandError, OSError) as error:
            print(f"{host.name}: did not boot again: {error}", flush=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one JSON line; what fails is told to whoever asked."""
        try:
            request = json.loads(await reader.readline())
            async with self.busy:
                reply = await self.do(request)
        except (LabCommandError, OSError, ValueError, KeyError, TypeError) as error:
            reply = {"error": str(error) or type(error).__name__}
        writer.write(json.dumps(reply).encode() + b"\n")
        with suppress(ConnectionError):  # whoever asked has gone
            await writer.drain()
        writer.close()

    async def do(self, request: Mapping[str, object]) -> dict[str, object]:
        if request["do"] == "status":
            return {"hosts": {n: self._told(h) for n, h in self.hosts.items()}}
        host = self.hosts[str(request["host"])]
        if request["do"] == "fault":
            fault = Fault(str(request["kind"]), float(str(request["amount"])))
            await self._fault(host, fault)
        elif request["do"] == "heal":
            host.heal()
            self._loss()
            if host.process is None:
                await host.boot()
        else:
            raise ValueError(f"no such request: {request['do']}")
        return self._told(host)

    async def _fault(self, host: Booted, fault: Fault) -> None:
        if fault.kind == "reboot" and host.process is None:
            await host.boot()
        elif fault.kind == "reboot":
            host.power_cycle()
            assert host.process is not None  # noqa: S101 - it was on
            await asyncio.to_thread(host.process.wait, 30)
            host.ended()
            await host.boot()
        elif host.process is None:
            raise LabCommandError(f"{host.name} is off; `ddops lab heal` switches it on")
        else:
            host.fault(fault)
            self._loss()

    def _loss(self) -> None:
        lost = {n: h.faults["netloss"].amount for n, h in self.hosts.items()
                if "netloss" in h.faults}  # fmt: skip
        run("nft", "-f", "-", stdin=netplan.loss_rules(lost))

    def _told(self, host: Booted) -> dict[str, object]:
        return {
            "state": host.state,
            "boots": host.boots,
            "faults": [str(f) for f in host.faults.values()],
        }


def reap(known: set[int]) -> None:
    """Collect orphans, which come to the first process of a namespace, and nothing of ours."""
    while True:
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if seen is None or seen.si_pid in known:
            return
        with suppress(ChildProcessError):
            os.waitpid(seen.si_pid, os.WNOHANG)


async def _lifeline(ended: asyncio.Event) -> None:
    """Until `lab up` says that the lab is ready, its end is ours."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    if line != READY:
        print("`lab up` ended before the lab was ready", flush=True)
        ended.set()


async def hold(plan: Mapping[str, object]) -> int:
    ended = asyncio.Event()
    holder = Holder(plan)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGCHLD, holder.changed.set)
    life = asyncio.create_task(_lifeline(ended))
    await holder.start()
    fds = plan["fds"]
    assert isinstance(fds, dict)  # noqa: S101 - our own file
    jobs = [life, asyncio.create_task(holder.watch())]
    for name, host in holder.hosts.items():
        listener = socket.socket(fileno=int(fds[name]))
        listener.setblocking(False)
        target = (netplan.address(host.index), 22)
        jobs.append(asyncio.create_task(serve_tcp(listener, target)))
    control = socket.socket(fileno=int(fds[""]))
    async with await asyncio.start_unix_server(holder.answer, sock=control, limit=_REQUEST_LIMIT):
        stop = asyncio.create_task(ended.wait())
        await asyncio.wait([stop, *jobs[1:]], return_when=asyncio.FIRST_COMPLETED)
    for host in holder.hosts.values():
        host.power_off()
    cgroups.remove(holder.group)
    for job in jobs[1:]:
        if job.done() and (error := job.exception()):
            raise error
    return 0


def main(argv: list[str]) -> int:
    try:
        return asyncio.run(hold(json.loads(Path(argv[0]).read_text())))
    except (LabCommandError, DdopsError, OSError) as error:
        print(f"error: {error}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
