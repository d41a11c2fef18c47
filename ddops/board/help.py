"""Words of the help screen and of the foot line. Pure."""

from __future__ import annotations

from ddops.board.actions import ACTIONS
from ddops.board.model import DRIFT_EVERY_S, EVERY_S, LOST_S, STALE_S

_KEYS = (
    ("1 2 3 4 5", "hosts, host, runs, tasks, events"),
    ("j k, arrows", "down, up"),
    ("g G", "first, last"),
    ("^f ^b, PgDn PgUp", "a page down, up"),
    ("Enter", "the host's page"),
    ("h l, left right", "on a host's page: the host before, after"),
    ("Esc", "back; leaves a filter"),
    ("/", "filter: every word must stand in the line"),
    ("s", "trouble first, or the inventory's order"),
    ("r", "ask this host again now, its drift too"),
    (":", "palette: pages, hosts, what can be done"),
    ("?", "this help"),
    ("q", "leave"),
)
_SIGNS = f"""
~ before a value   no answer the last time, or none for {STALE_S:.0f} s
? for a value      not seen, or not for {LOST_S:.0f} s
- for a value      looked at, and not there

AGE is that of the last answer. A host is asked every {EVERY_S:.0f} s; one that
does not answer ever more rarely, a minute apart at most. Drift is
looked for every {DRIFT_EVERY_S / 60:.0f} minutes; its age is shown.

TOK/S and COMMIT are never assumed. The letter tells who said it:
  c  /metrics: tokens decoded between the last two looks
  m  /metrics: a gauge, the last interval of work
  i  /server_info: of unknown age, or since the start
  r  the ledger: the last run that counts, of what runs there now;
     its age follows
  idle: the engine says that no request is running

GATE is of now. ok: a 200 from our own process, which is this start
of a release that passed its gates. ungated: it answers, and was
never proven. QUEUE is running+waiting.
"""


def help_text(*, write: bool) -> str:
    """The help screen."""
    lines = [f"  {key:<18}{what}" for key, what in _KEYS]
    if write:
        lines += [f"  {a.key:<18}{a.title}: {a.effect}" for a in ACTIONS]
    return "Keys\n" + "\n".join(lines) + "\n" + _SIGNS


def hints(page: str, words: str, *, write: bool) -> str:
    """The foot line of a page."""
    own = {
        "hosts": "Enter open  / filter  s sort  r ask",
        "host": "h l other host  r ask again  Esc back",
    }.get(page, "/ filter  Esc back")
    kept = f"[filter: {words}]  " if words else ""
    more = "  B U C act" if write else ""
    return f"{kept}{own}{more}  1-5 pages  : palette  ? help  q quit"
