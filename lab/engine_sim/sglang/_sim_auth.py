"""Who may ask what: upstream's two keys and its open paths."""

from __future__ import annotations

OPEN = ("/health", "/ready", "/metrics")
ADMIN = ("/flush_cache",)


def refusal(path: str, header: str, key: str | None, admin: str | None) -> bool:
    """Whether the request is turned away with 401."""
    if path.startswith(OPEN):
        return False
    wanted = (admin or key) if path in ADMIN else key
    return bool(wanted) and not _holds(header, str(wanted))


def _holds(header: str, wanted: str) -> bool:
    scheme, _, token = header.partition(" ")
    return scheme.lower() == "bearer" and token == wanted
