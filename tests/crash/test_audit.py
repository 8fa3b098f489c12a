"""The audit of a crash run finds each kind of loss and repetition, shown by planting it in an intact store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from bench.audit import audit
from bench.crash import Sent

SCHEMA = """
CREATE TABLE sessions(id TEXT PRIMARY KEY, name TEXT, kind TEXT);
CREATE TABLE turns(id TEXT PRIMARY KEY, session TEXT, state TEXT, attempts INTEGER, finish TEXT, error BLOB);
CREATE TABLE messages(
    id INTEGER PRIMARY KEY, session TEXT, turn TEXT, seq INTEGER, step TEXT, role TEXT, body BLOB, packed INTEGER
);
CREATE TABLE intents(turn TEXT, step TEXT);
CREATE TABLE receipts(source TEXT, key TEXT, turn TEXT, outcome BLOB);
"""
HEALTHY: dict[str, Any] = {
    "refused": 0,
    "refusals": [],
    "violations": [],
    "followups": 3,
    "whole_prefix": 3,
}


def add(db: apsw.Connection, turn: str, seq: int | None, step: str | None, role: str, **body: Any) -> None:
    db.execute(
        "INSERT INTO messages(session, turn, seq, step, role, body, packed) VALUES ('s_1', ?, ?, ?, ?, ?, 0)",
        (turn, seq, step, role, json.dumps({"role": role, **body})),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store in which one message was answered after a tool call, one was interrupted, and one left its outcome."""
    path = tmp_path / "tidegate.db"
    db = apsw.Connection(str(path))
    db.execute(SCHEMA)
    db.execute("INSERT INTO sessions VALUES ('s_1', 'crash-0', 'named')")
    db.execute("INSERT INTO turns VALUES ('t_1', 's_1', 'answered', 1, 'stop', NULL)")
    db.execute("INSERT INTO turns VALUES ('t_2', 's_1', 'stopped', 1, 'stopped', 'stopped by a newer message')")
    db.execute("INSERT INTO receipts VALUES ('idempotency', 'key-0', 't_1', NULL)")
    db.execute("INSERT INTO receipts VALUES ('idempotency', 'key-1', 't_2', NULL)")
    outcome = json.dumps({"turn": "t_3", "state": "answered", "text": "To <crash-0.2> yes"})
    db.execute("INSERT INTO receipts VALUES ('idempotency', 'key-2', 't_3', ?)", (outcome,))
    add(db, "t_1", 1, "in-0", "user", text="<crash-0.0> a tool message [say To <crash-0.0> yes]")
    add(db, "t_1", 2, "model-0", "assistant", calls=[{"id": "call_1", "name": "clock", "arguments": "{}"}])
    add(db, "t_1", 3, "tool-0-0", "tool", text="noon", call_id="call_1")
    add(db, "t_1", 4, "model-1", "assistant", text="To <crash-0.0> yes")
    add(db, "t_2", 5, "in-0", "user", text="<crash-0.1> a plain message")
    add(db, "t_2", 6, "partial", "assistant", text="To <crash")
    db.close()
    return path


@pytest.fixture
def sent() -> list[Sent]:
    """The replies to clients: for an answered message, an interrupted one, a one-shot call and a message that was not
    accepted; the interrupting message was lost in transit."""
    answered = Sent(tag="<crash-0.0>", key="key-0", session="crash-0", kind="tool", turns=["t_1"])
    answered.answers.append("To <crash-0.0> yes")
    interrupted = Sent(tag="<crash-0.1>", key="key-1", session="crash-0", kind="plain", turns=["t_2"], stopped=True)
    interrupted.answers.append("To <crash")
    once = Sent(tag="<crash-0.2>", key="key-2", session=None, kind="once", turns=["t_3"])
    once.answers.append("To <crash-0.2> yes")
    interrupting = Sent(tag="<crash-0.3>", key="key-3", session="crash-0", kind="interrupt")
    return [answered, interrupted, once, interrupting]


def change(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


def test_a_store_that_lost_and_repeated_nothing_has_no_findings(file: Path, sent: list[Sent]) -> None:
    """F4: no false alarm."""
    assert audit(file, sent, HEALTHY) == []


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("DELETE FROM messages WHERE step = 'in-0'", "is lost"),
        ("UPDATE messages SET seq = NULL, step = NULL WHERE id = 1", "never taken"),
        (
            "INSERT INTO messages SELECT 99, session, 't_4', 7, 'in-0', role, body, 0 FROM messages WHERE id = 1",
            "2 times",
        ),
        (
            "INSERT INTO messages SELECT 99, session, turn, 7, step, role, body, 0 FROM messages WHERE id = 4",
            "2 answers",
        ),
        ("INSERT INTO messages SELECT 99, session, turn, 7, step, role, body, 0 FROM messages WHERE id = 3", "2 times"),
        ("DELETE FROM messages WHERE step = 'tool-0-0'", "have no result"),
        ("DELETE FROM messages WHERE step = 'model-0'", "without a call"),
        ("UPDATE messages SET seq = 9 WHERE step = 'model-1'", "gaps or doubles"),
        ("UPDATE turns SET state = 'running'", "still running"),
        ("UPDATE turns SET state = 'failed'", "ended as failed"),
        ("INSERT INTO intents VALUES ('t_1', 'tool-0-0')", "an intent without a result"),
        ("UPDATE receipts SET turn = 't_other'", "the store remembers"),
        ("UPDATE sessions SET name = 'crash-7'", "in another session"),
        ("UPDATE messages SET turn = 't_2'", "promised to"),
        ("UPDATE turns SET error = 'stopped by its user' WHERE id = 't_2'", "ended as stopped"),
        ("UPDATE turns SET state = 'stopped' WHERE id = 't_1'", "ended as stopped"),
        ("UPDATE turns SET state = 'answered', error = NULL WHERE id = 't_2'", "was told that it was stopped"),
        (
            "INSERT INTO messages SELECT 99, session, turn, 7, 'partial-2', role, body, 0 FROM messages WHERE id = 6",
            "was stopped and has 2 answers",
        ),
        ("""UPDATE messages SET body = '{"text": "Something"}' WHERE step = 'partial'""", "was told"),
        ("INSERT INTO sessions VALUES ('s_9', NULL, 'ephemeral')", "is still there"),
        ("UPDATE receipts SET outcome = NULL", "its outcome is lost"),
        ("UPDATE receipts SET outcome = replace(outcome, 'answered', 'failed')", "has the outcome"),
        ("UPDATE receipts SET outcome = replace(outcome, '0.2', '0.9')", "was told"),
        ("""UPDATE messages SET body = '{"text": "<crash-0.2>"}' WHERE id = 5""", "is still in the store"),
        ("""UPDATE messages SET body = '{"text": "To <crash-0.9> yes"}' WHERE step = 'model-1'""", "was told"),
    ],
)
def test_a_planted_fault_in_the_store_is_found(file: Path, sent: list[Sent], fault: str, finding: str) -> None:
    """F4, S14: each kind of loss or repetition has its finding."""
    change(file, fault)
    assert any(finding in found for found in audit(file, sent, HEALTHY))


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        ({"refused": 1, "refusals": ["tool calls without results: call_1"]}, "refused a request"),
        ({"violations": [{"reason": "messages went missing"}]}, "asked anew"),
        ({"whole_prefix": 2}, "asked anew"),
    ],
)
def test_a_planted_fault_before_the_model_is_found(
    file: Path, sent: list[Sent], planted: dict[str, Any], finding: str
) -> None:
    """F4, S32: the requests to the model are checked as well as the store."""
    assert any(finding in found for found in audit(file, sent, {**HEALTHY, **planted}))


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda sent: sent[0].turns.append("t_2"), "told of several turns"),
        (lambda sent: sent[0].answers.append("Something else"), "was told"),
        (lambda sent: sent[1].answers.append("Something else"), "was told"),
        (lambda sent: sent[2].answers.append("Something else"), "was told"),
        (lambda sent: sent.pop(), "ended as stopped"),
    ],
)
def test_a_planted_fault_in_what_a_client_was_told_is_found(
    file: Path, sent: list[Sent], spoil: Callable[[list[Sent]], Any], finding: str
) -> None:
    """F4: a retry that finds another turn, or another answer, is a broken promise."""
    spoil(sent)
    assert any(finding in found for found in audit(file, sent, HEALTHY))
