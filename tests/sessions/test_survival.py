"""What survives what: every cell of the table, for what exists."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.store.making import ask
from tidegate.agent import Conversation
from tidegate.sessions import changes
from tidegate.store import Db, SummaryRow, approvals, messages, notes, sessions, settings, summaries, turns

pytestmark = pytest.mark.anyio

EVENTS = ("turn ends", "unload", "stop", "kill", "end", "delete")
STAYS, GOES = True, False

TABLE: dict[str, tuple[bool, ...]] = {
    #                       turn    unload stop   kill   end    delete
    "resident": (STAYS, GOES, GOES, GOES, GOES, GOES),
    "setting": (STAYS, STAYS, STAYS, STAYS, GOES, GOES),
    "pending approval": (STAYS, STAYS, STAYS, STAYS, GOES, GOES),
    "queued message": (STAYS, STAYS, STAYS, STAYS, GOES, GOES),
    "transcript": (STAYS, STAYS, STAYS, STAYS, STAYS, GOES),
    "frozen prompt": (STAYS, STAYS, STAYS, STAYS, STAYS, GOES),
    "summary": (STAYS, STAYS, STAYS, STAYS, STAYS, GOES),
    "memory of the person": (STAYS, STAYS, STAYS, STAYS, STAYS, STAYS),
    "usage": (STAYS, STAYS, STAYS, STAYS, STAYS, STAYS),
}
"""A queued message "stays" when it is still queued or was taken by a turn; it "goes" when it was refused."""


class Witness:
    """A session with one of each thing, and a look at which are left."""

    def __init__(self, session: str, queued: str) -> None:
        self.session = session
        self.queued = queued

    async def look(self, house: Core) -> dict[str, bool]:
        record = house.door.presence.get(self.session)
        left: dict[str, bool] = await house.store.read(self._rows)
        left["resident"] = record is not None and record.resident is not None
        return left

    def _rows(self, db: Db) -> dict[str, bool]:
        row = sessions.get(db, self.session)
        approval = approvals.get(db, "ap_1")
        queued = turns.get(db, self.queued)
        prefix = row.prefix if row is not None else None
        return {
            "setting": bool(settings.get_all(db, self.session, 0.0)),
            "pending approval": approval is not None and approval.state == "open",
            "queued message": queued is not None and queued.state in ("queued", "running", "answered"),
            "transcript": bool(messages.page(db, self.session)),
            "frozen prompt": prefix is not None and bool(sessions.prefix(db, prefix).prompt),
            "summary": bool(summaries.shown(db, self.session)),
            "memory of the person": [note.text for note in notes.listing(db, "person", ANNA.id)] == ["likes tea"],
            "usage": int(db.execute("SELECT count(*) FROM usage").get) > 0,
        }


def summarise(db: Db, session: str) -> None:
    """Its first message is shown by a summary."""
    row = SummaryRow(0, 0, 1, 1, None, "applied", "model", "m", 1.0, "It began.")
    summaries.apply(db, session, [summaries.add(db, session, row, 1.0)])


async def furnish(house: Core) -> Witness:
    """A session that has been used, and has a message waiting for the one place that another session holds."""
    first = await house.say("one")
    await changes.set_setting(house.door, first.session, ANNA, "reasoning", "low", source="command")
    await house.store.write(ask, first.session, "ap_1")
    await house.store.write(summarise, first.session)
    await house.store.write(
        notes.put,
        about="person",
        whose=ANNA.id,
        text="likes tea",
        author=ANNA.id,
        source="tool",
        session=first.session,
        now=1.0,
        most=1000,
        replaces=None,
    )
    await house.accept("[hold gate]", name="the one in the way")
    with anyio.fail_after(WAIT):
        await house.model.held("gate")
    queued = await house.accept("two")
    return Witness(first.session, queued.turn)


async def _turn_ends(house: Core, witness: Witness) -> None:
    house.model.release("gate")
    await house.answered(witness.queued)


async def _unload(house: Core, witness: Witness) -> None:
    house.door.presence.unload(witness.session, reason="test")


async def _end(house: Core, witness: Witness) -> None:
    await house.door.end(witness.session, ANNA, "new")


async def _delete(house: Core, witness: Witness) -> None:
    await house.door.delete(witness.session, ANNA)


HAPPENINGS: dict[str, Callable[[Core, Witness], Awaitable[None]]] = {
    "turn ends": _turn_ends,
    "unload": _unload,
    "end": _end,
    "delete": _delete,
}


@pytest.mark.parametrize("event", EVENTS)
async def test_the_table_of_what_survives_what_holds(home: Path, model: ScriptedModel, event: str) -> None:
    """V01, V02, V03, V04, V05, V06, V08, V14, V15: one event, and a look at everything the session had."""
    extra = "[limits]\nturns = 1"
    expected = {thing: row[EVENTS.index(event)] for thing, row in TABLE.items()}
    async with core(home, extra, model=model, drain=0.1 if event == "stop" else None) as house:
        witness = await furnish(house)
        if event in HAPPENINGS:
            await HAPPENINGS[event](house, witness)
            assert await witness.look(house) == expected
    model.release("gate")
    if event in ("stop", "kill"):
        # The next process is looked at before it takes anything up: its one place is held by the turn in the way.
        model.latch("gate").opened.clear()
        async with core(home, extra, model=model) as house:
            assert await witness.look(house) == expected
            model.release("gate")
            assert (await house.answered(witness.queued)).state == "answered"


async def test_a_resident_that_was_replaced_in_mid_turn_is_released_when_that_turn_ends(
    home: Path, model: ScriptedModel
) -> None:
    """V20, A8: what counts is the instance that runs."""
    async with core(home, model=model) as house:
        first = await house.say("one")
        record = house.door.presence.get(first.session)
        assert record is not None
        running = record.resident
        assert isinstance(running, Conversation)
        accepted = await house.accept("[hold gate] two")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert house.door.presence.unload(first.session, reason="test")
        assert running.history.parts
        model.release("gate")
        assert (await house.answered(accepted.turn)).state == "answered"
        with anyio.fail_after(WAIT):
            while running.history.parts:
                await anyio.lowlevel.checkpoint()
