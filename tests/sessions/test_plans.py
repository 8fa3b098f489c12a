"""The statements of a turn, as the store sees them: the cost of none grows with the amount of stored data."""

import re
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tidegate.store import Db

pytestmark = pytest.mark.anyio

TABLES = "sessions|turns|messages|receipts|usage|intents|settings|approvals"
WHOLE = re.compile(rf"SCAN ({TABLES})\b(?! USING COVERING INDEX turns_open\b)")
"""The index `turns_open` has only open turns, of which limits.waiting_total allows a bounded number."""
ALL_ROWS = re.compile(r"SEARCH (turns USING INDEX turns_number|messages USING INDEX messages_seq) \(session=\?\)$")


async def test_no_statement_of_a_real_turn_reads_more_than_its_own_rows(home: Path, model: ScriptedModel) -> None:
    """L20, P15: plain, with a tool, steered, queued, one-shot, ended: each statement finds its rows by an index, and
    none scans a session's history."""
    seen: dict[str, Any] = {}

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen.setdefault(sql, bindings)
        return True

    async with core(home, model=model) as gateway:
        first = await gateway.say("warm up")
        await gateway.store.write(lambda db: setattr(db, "exec_trace", note))
        await gateway.say("plain")
        await gateway.say("[tool clock {}]")
        await gateway.say("one-shot", name=None)
        accepted = await gateway.accept("[tool clock {}] [hold gate step=0]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        await gateway.accept("steered", busy="steer")
        queued = await gateway.accept("queued")
        model.release("gate")
        for turn in (accepted, queued):
            await gateway.answered(turn.turn)
        await gateway.service.end(first.session, ANNA, "new")
        await gateway.store.write(lambda db: setattr(db, "exec_trace", None))

        def plans(db: Db) -> list[tuple[str, str]]:
            return [
                (row[3], sql)
                for sql, bindings in seen.items()
                if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)", sql)
                for row in db.execute("EXPLAIN QUERY PLAN " + sql, bindings)
            ]

        found = await gateway.store.read(plans)
    assert len(seen) > 25
    dear = [
        f"{line}: {sql}" for line, sql in found if WHOLE.match(line) or (ALL_ROWS.match(line) and "max(" not in sql)
    ]
    assert dear == []
