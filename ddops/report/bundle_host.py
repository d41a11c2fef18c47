"""What a bundle takes from a host: state, unit, launch, logs. Secrets are learned first.

The values that could stand in a log are the ones that lie with the staged releases. They are read
from there into the redactor, and nowhere else. Where they cannot be read, no text of the host is
taken: what is not known cannot be masked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import quote

from ddops.command import Secret
from ddops.deploy import look
from ddops.deploy.host import ServiceOnHost
from ddops.errors import DdopsError, UnreachableError
from ddops.report.bundle import Bundle
from ddops.transport.files import read_file

#: Bytes of the end of each log.
TAIL = 1_000_000
_SECRETS = ("secrets.json", "secret-args.yaml")


def add_host(bundle: Bundle, target: ServiceOnHost) -> None:
    """One service on one host. Raises what the transport raises."""
    folder = f"hosts/{target.host.name}/{target.service.name}"
    try:
        learn_secrets(bundle, target)
    except UnreachableError:
        raise
    except (DdopsError, ValueError) as error:
        bundle.without(
            folder, f"its secrets could not be read, so its texts could not be masked: {error}"
        )
        return
    _state(bundle, target, folder)
    _texts(bundle, target, folder)


def learn_secrets(bundle: Bundle, target: ServiceOnHost) -> None:
    """Every value of every staged release, as it is and as JSON and addresses spell it."""
    for digest in target.staged():
        for name in _SECRETS:
            data = read_file(target.transport, f"{target.where.release(digest)}/{name}")
            if data is not None:
                for value in _values(json.loads(data)):
                    for form in (value, json.dumps(value)[1:-1], quote(value, safe="")):
                        bundle.redactor.add(Secret(form))


def _values(found: object) -> list[str]:
    if isinstance(found, Mapping):
        return [v for item in found.values() for v in _values(item)]
    if isinstance(found, list):
        return [v for item in found for v in _values(item)]
    return [found] if isinstance(found, str) else []


def _state(bundle: Bundle, target: ServiceOnHost, folder: str) -> None:
    """As observed now. One part that fails does not take the others with it."""
    try:
        seen = look(target)
        if seen is None:
            bundle.without(f"{folder}/observation.json", "provision has never been here")
            return
        bundle.json(f"{folder}/observation.json", asdict(seen))
        status = target.orchestrator.status(target.service.name)
        bundle.json(f"{folder}/supervisor.json", asdict(status))
        links = target.links()
        bundle.json(f"{folder}/links.json", asdict(links))
        for digest in {d for d in (links.current, links.committed) if d}:
            for name, text in target.staged_files(digest).items():
                bundle.text(f"{folder}/releases/{digest[:12]}/{name}", text)
    except DdopsError as error:
        bundle.without(f"{folder}: state", str(error))


def _texts(bundle: Bundle, target: ServiceOnHost, folder: str) -> None:
    for file, command in target.orchestrator.logs(target.service.name, TAIL).items():
        try:
            done = target.transport.run(command, limit=2 * TAIL)
        except DdopsError as error:
            bundle.without(f"{folder}/{file}", str(error))
            continue
        if not done.ok:
            bundle.without(f"{folder}/{file}", done.err.strip()[-300:] or f"ended with {done.rc}")
            continue
        bundle.text(f"{folder}/{file}", whole_lines(done.stdout, TAIL))


def whole_lines(data: bytes, limit: int) -> str:
    """The text; without its first line where it was cut: half a secret is not recognised."""
    if len(data) >= limit:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "backslashreplace")
