"""The audit of a crash run: checks of the store's database file and of the model's request counts.

The audit opens the file read-only after the gateway has stopped, and uses none of the gateway's code. Each finding is
one sentence; no findings mean that nothing was lost or repeated.
"""

import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from bench.crash import Sent

TAG = re.compile(r"<[\w-]+\.\d+>")
SHOWN = 20
"""Findings of one kind that are listed; the rest are counted."""


class Row:
    """One message of the store, decoded."""

    __slots__ = ("call_id", "calls", "role", "seq", "session", "step", "text", "turn")

    def __init__(self, session: str, turn: str, seq: int | None, step: str | None, role: str, body: Any) -> None:
        self.session, self.turn, self.seq, self.step, self.role = session, turn, seq, step, role
        self.text: str = body.get("text", "")
        self.calls: list[str] = [call["id"] for call in body.get("calls", ())]
        self.call_id: str = body.get("call_id", "")


class StoreRows:
    """The rows of the store that the audit checks, read at once."""

    def __init__(self, file: Path) -> None:
        database = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            self.integrity = [row[0] for row in database.execute("PRAGMA integrity_check")]
            self.turns = {
                turn: (session, state, attempts, finish, error)
                for turn, session, state, attempts, finish, error in database.execute(
                    "SELECT id, session, state, attempts, finish, error FROM turns"
                )
            }
            self.names: dict[str, str | None] = dict(database.execute("SELECT id, name FROM sessions"))
            self.ephemeral = [row[0] for row in database.execute("SELECT id FROM sessions WHERE kind = 'ephemeral'")]
            self.rows = [
                Row(session, turn, seq, step, role, json.loads(zlib.decompress(body) if packed else body))
                for session, turn, seq, step, role, body, packed in database.execute(
                    "SELECT session, turn, seq, step, role, body, packed FROM messages ORDER BY session, seq, id"
                )
            ]
            self.intents = list(database.execute("SELECT turn, step FROM intents"))
            self.receipts: dict[str, str] = {}
            self.outcomes: dict[str, Any] = {}
            for key, turn, outcome in database.execute(
                "SELECT key, turn, outcome FROM receipts WHERE source = 'idempotency'"
            ):
                self.receipts[key] = turn
                if outcome is not None:
                    self.outcomes[key] = json.loads(outcome)
        finally:
            database.close()

    def state(self, turn: str) -> str | None:
        return self.turns[turn][1] if turn in self.turns else None


def audit(file: Path, sent: Sequence[Sent], stats: dict[str, Any]) -> list[str]:
    """All findings. `stats` are the counts of the model server."""
    stored = StoreRows(file)
    found: list[str] = []
    for check in (
        whole(stored),
        taken_once(stored, sent),
        answered_once(stored, sent),
        told_truly(stored, sent),
        steps_once(stored),
        balanced(stored),
        same_turn(stored, sent),
        never_backwards(stats),
    ):
        findings = list(check)
        found += findings[:SHOWN]
        if len(findings) > SHOWN:
            found.append(f"… and {len(findings) - SHOWN} more like the last")
    return found


def whole(stored: StoreRows) -> Iterator[str]:
    """The file is intact, and nothing in it is unfinished."""
    if stored.integrity != ["ok"]:
        yield f"the database is damaged: {stored.integrity[:3]}"
    for turn, (_, state, *_) in stored.turns.items():
        if state in ("queued", "running"):
            yield f"turn {turn} is still {state}"
    for turn, step in stored.intents:
        yield f"turn {turn} has an intent without a result: {step}"
    for session in stored.ephemeral:
        yield f"session {session} served one call and is still there"


def taken_once(stored: StoreRows, sent: Sequence[Sent]) -> Iterator[str]:
    """Each accepted message is in exactly one transcript, once, in the promised turn (a message that was steered too
    late may be in a later turn of the same session). A one-shot call is in no transcript; its outcome is stored with
    its key. A turn that was stopped before it started has taken no message."""
    places: dict[str, list[Row]] = defaultdict(list)
    for row in stored.rows:
        if row.role == "user":
            for tag in dict.fromkeys(TAG.findall(row.text)):
                places[tag].append(row)
    for one in sent:
        rows = places.pop(one.tag, [])
        if one.kind == "once":
            if rows:
                yield f"{one.tag} (once) is still in the store, in turn {rows[0].turn}"
            elif one.accepted and one.key not in stored.outcomes:
                yield f"{one.tag} (once) was accepted as {one.turns} and its outcome is lost"
        elif len(rows) > 1:
            yield f"{one.tag} ({one.kind}) was taken {len(rows)} times: {[row.turn for row in rows]}"
        elif not rows and one.accepted:
            yield f"{one.tag} ({one.kind}) was accepted as {one.turns} and is lost"
        elif rows and rows[0].seq is None and stored.state(rows[0].turn) != "stopped":
            yield f"{one.tag} ({one.kind}) was accepted as {one.turns} and never taken"
        elif rows and stored.names.get(rows[0].session) != one.session:
            yield f"{one.tag} ({one.kind}) is in another session"
        elif rows and one.accepted and rows[0].turn not in one.turns and one.kind != "steer":
            yield f"{one.tag} ({one.kind}) was promised to {one.turns} and taken by {rows[0].turn}"
    for tag in places:
        yield f"{tag} is in the store, and nobody sent it"


def answered_once(stored: StoreRows, sent: Sequence[Sent]) -> Iterator[str]:
    """Each turn has one answer, its last row, to the last of its messages. Only a turn that was interrupted by a newer
    message of the same conversation has none, or a partial one."""
    finals = _finals(stored)
    asked: dict[str, list[str]] = defaultdict(list)
    last: dict[str, Row] = {}
    for row in stored.rows:
        if row.seq is not None:
            last[row.turn] = row
            if row.role == "user":
                asked[row.turn] += TAG.findall(row.text)[:1]
    interrupted = {one.session for one in sent if one.kind == "interrupt"}
    for turn, (session, state, attempts, finish, error) in stored.turns.items():
        if state == "stopped" and stored.names.get(session) in interrupted and b"newer message" in _bytes(error):
            if len(finals[turn]) > 1:
                yield f"turn {turn} was stopped and has {len(finals[turn])} answers"
        elif state != "answered":
            yield f"turn {turn} ended as {state} ({finish}) after {attempts} attempts: {error!r}"
        elif len(finals[turn]) != 1:
            yield f"turn {turn} has {len(finals[turn])} answers"
        elif last[turn] is not finals[turn][0]:
            yield f"turn {turn} goes on after its answer"
        elif not all(tag in finals[turn][0].text for tag in asked[turn][-1:]):
            yield f"turn {turn} was asked {asked[turn]} and answered {finals[turn][0].text[:80]!r}"
    for one in sent:
        outcome = stored.outcomes.get(one.key)
        if outcome is not None and (outcome["state"] != "answered" or one.tag not in outcome.get("text", "")):
            yield f"{one.tag} ({one.kind}) has the outcome {outcome}"


def told_truly(stored: StoreRows, sent: Sequence[Sent]) -> Iterator[str]:
    """Every response to a client agrees with the store."""
    finals = _finals(stored)
    for one in sent:
        truth = {row.text for turn in one.turns for row in finals.get(turn, ())}
        states = {stored.state(turn) for turn in one.turns}
        if one.key in stored.outcomes:
            truth.add(stored.outcomes[one.key].get("text", ""))
        elif states == {"stopped"}:
            truth.add("")  # it may have been stopped before any text
        for answer in one.answers:
            if answer not in truth:
                yield f"{one.tag} ({one.kind}) was told {answer[:80]!r}, and the store has {sorted(truth)}"
        if one.stopped and "stopped" not in states:
            yield f"{one.tag} ({one.kind}) was told that it was stopped, and the store says {sorted(map(str, states))}"


def _finals(stored: StoreRows) -> dict[str, list[Row]]:
    """The final answers by turn."""
    finals: dict[str, list[Row]] = defaultdict(list)
    for row in stored.rows:
        if row.seq is not None and row.role == "assistant" and not row.calls:
            finals[row.turn].append(row)
    return finals


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def steps_once(stored: StoreRows) -> Iterator[str]:
    """No step of a turn is stored twice, and the positions in a transcript have no gaps or duplicates."""
    steps = Counter((row.turn, row.step) for row in stored.rows if row.step is not None)
    for (turn, step), count in steps.items():
        if count > 1:
            yield f"step {step} of turn {turn} was committed {count} times"
    places: dict[str, list[int]] = defaultdict(list)
    for row in stored.rows:
        if row.seq is not None:
            places[row.session].append(row.seq)
            if row.step is None:
                yield f"a row of turn {row.turn} is in the transcript without a step"
    for session, seqs in places.items():
        if sorted(seqs) != list(range(min(seqs), min(seqs) + len(seqs))):
            yield f"the places of session {session} have gaps or doubles"


def balanced(stored: StoreRows) -> Iterator[str]:
    """Each tool call has one result before any other message, and the rows of a turn are contiguous."""
    wanted: list[str] = []
    turn_now: dict[str, str] = {}
    closed: set[str] = set()
    for row in (row for row in stored.rows if row.seq is not None):
        if row.role == "tool":
            if row.call_id not in wanted:
                yield f"turn {row.turn}: a result without a call ({row.call_id})"
            else:
                wanted.remove(row.call_id)
        elif wanted:
            yield f"turn {row.turn}: {wanted} have no result"
            wanted = []
        wanted += row.calls
        if turn_now.get(row.session) != row.turn:
            closed.add(turn_now.get(row.session, ""))
            turn_now[row.session] = row.turn
            if row.turn in closed:
                yield f"turn {row.turn} is interleaved with another"


def same_turn(stored: StoreRows, sent: Sequence[Sent]) -> Iterator[str]:
    """Every attempt under one key found the same turn, which is the stored one."""
    for one in sent:
        if len(one.turns) > 1:
            yield f"{one.tag} ({one.kind}) was told of several turns: {one.turns}"
        if one.key and one.turns and stored.receipts.get(one.key) not in one.turns:
            yield f"{one.tag} ({one.kind}) was told of {one.turns}, the store remembers {stored.receipts.get(one.key)}"


def never_backwards(stats: dict[str, Any]) -> Iterator[str]:
    """From the model's point of view: no malformed requests (such as an orphan call or result), and each request of a
    conversation starts with the complete previous one (an identical one is a call that was in flight at a kill). A
    shorter or changed request would be a committed step that was repeated."""
    for refusal in stats["refusals"]:
        yield f"the model refused a request: {refusal}"
    if stats["refused"] and not stats["refusals"]:
        yield f"the model refused {stats['refused']} requests"
    for broken in stats["violations"]:
        yield f"the model was asked anew: {broken}"
    if stats["whole_prefix"] != stats["followups"] and not stats["violations"]:
        yield f"the model was asked anew {stats['followups'] - stats['whole_prefix']} times"
