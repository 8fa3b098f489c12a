"""Switches of a session's model by /model, and what the next model is told of them.

A switch is told once, with the next message, in the transaction that takes its turn; it survives every restart until
then. A choice that is taken back before any message is not told. A choice for a time is told at its beginning and at
its end. Kept as a setting of the session, so a turn without one costs no read.
"""

from collections.abc import Sequence

import msgspec

from tidegate.store.rows import Db, SettingRow
from tidegate.store.tables import messages, settings

KEY = f"{settings.OWN}switch"
"""Of the setting."""

TOLD = "The user switched this conversation from model {before} to model {after}; earlier answers are {before}'s."


class Switch(msgspec.Struct, frozen=True, array_like=True):
    """From one model to another, by their configured names, at a time."""

    before: str
    after: str
    at: float


def note(db: Db, session: str, *, before: str, after: str, own: str, ends: float | None, now: float) -> None:
    """The user has chosen another model, until `ends` if that is given; then the agent's `own` answers again."""
    held = _switches(settings.get_all(db, session, now))
    told = held[0].before if held else before
    switches: list[Switch] = []
    if told != after and messages.last_turn(db, session) is not None:
        switches.append(Switch(told, after, now))
    if ends is not None and after != own:
        switches.append(Switch(after, own, ends))
    if switches:
        settings.put(db, session, KEY, switches, "model", now)
    elif held:
        settings.clear(db, session, KEY)


def take(db: Db, session: str, held: Sequence[SettingRow], now: float) -> str:
    """What the model is to be told now; nearly always nothing. `held` are the session's settings."""
    switches = _switches(held)
    due = [switch for switch in switches if switch.at <= now]
    if not due:
        return ""
    if left := switches[len(due) :]:
        settings.put(db, session, KEY, left, "model", now)
    else:
        settings.clear(db, session, KEY)
    before, after = due[0].before, due[-1].after
    return "" if before == after else TOLD.format(before=before, after=after)


def _switches(held: Sequence[SettingRow]) -> list[Switch]:
    for setting in held:
        if setting.key == KEY:
            return msgspec.convert(setting.value, list[Switch])
    return []
