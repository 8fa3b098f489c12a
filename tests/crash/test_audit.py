"""The audit of a crash run finds each kind of loss and repetition, shown by planting it in a store that was whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from bench.audit import audit
from bench.crash import Sent

SCHEMA = """
CREATE TABLE sessions(id TEXT PRIMARY KEY, name TEXT);
CREATE TABLE turns(id TEXT PRIMARY KEY, session TEXT, state TEXT, attempts INTEGER, finish TEXT, error BLOB);
CREATE TABLE messages(
    id INTEGER PRIMARY KEY, session TEXT, turn TEXT, seq INTEGER, step TEXT, role TEXT, body BLOB, packed INTEGER
);
CREATE TABLE intents(turn TEXT, step TEXT);
CREATE TABLE receipts(source TEXT, key TEXT, turn TEXT);
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
    """A store in which one message was answered after a tool call."""
    path = tmp_path / "tidegate.db"
    db = apsw.Connection(str(path))
    db.execute(SCHEMA)
    db.execute("INSERT INTO sessions VALUES ('s_1', 'crash-0')")
    db.execute("INSERT INTO turns VALUES ('t_1', 's_1', 'answered', 1, 'stop', NULL)")
    db.execute("INSERT INTO receipts VALUES ('idempotency', 'key-0', 't_1')")
    add(db, "t_1", 1, "in-0", "user", text="<crash-0.0> a tool message [say To <crash-0.0> yes]")
    add(db, "t_1", 2, "model-0", "assistant", calls=[{"id": "call_1", "name": "clock", "arguments": "{}"}])
    add(db, "t_1", 3, "tool-0-0", "tool", text="noon", call_id="call_1")
    add(db, "t_1", 4, "model-1", "assistant", text="To <crash-0.0> yes")
    db.close()
    return path


@pytest.fixture
def sent() -> Sent:
    one = Sent(tag="<crash-0.0>", key="key-0", session="crash-0", kind="tool", text="…")
    one.turns.append("t_1")
    one.answers.append("To <crash-0.0> yes")
    return one


def change(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


def test_a_store_that_lost_and_repeated_nothing_has_no_findings(file: Path, sent: Sent) -> None:
    """F4: the audit does not cry wolf."""
    assert audit(file, [sent], HEALTHY) == []


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("DELETE FROM messages WHERE step = 'in-0'", "is lost"),
        ("UPDATE messages SET seq = NULL, step = NULL WHERE step = 'in-0'", "never taken"),
        (
            "INSERT INTO messages SELECT 99, session, 't_2', 5, 'in-0', role, body, 0 FROM messages WHERE id = 1",
            "2 times",
        ),
        (
            "INSERT INTO messages SELECT 99, session, turn, 5, step, role, body, 0 FROM messages WHERE id = 4",
            "2 answers",
        ),
        ("INSERT INTO messages SELECT 99, session, turn, 5, step, role, body, 0 FROM messages WHERE id = 3", "2 times"),
        ("DELETE FROM messages WHERE step = 'tool-0-0'", "have no result"),
        ("DELETE FROM messages WHERE step = 'model-0'", "without a call"),
        ("UPDATE messages SET seq = 9 WHERE step = 'model-1'", "gaps or doubles"),
        ("UPDATE turns SET state = 'running'", "still running"),
        ("UPDATE turns SET state = 'failed'", "ended as failed"),
        ("INSERT INTO intents VALUES ('t_1', 'tool-0-0')", "an intent without a result"),
        ("UPDATE receipts SET turn = 't_other'", "the store remembers"),
        ("UPDATE sessions SET name = 'crash-7'", "in another session"),
        ("UPDATE messages SET turn = 't_2'", "promised to"),
        ("""UPDATE messages SET body = '{"text": "To <crash-0.9> yes"}' WHERE step = 'model-1'""", "was told"),
    ],
)
def test_a_planted_fault_in_the_store_is_found(file: Path, sent: Sent, fault: str, finding: str) -> None:
    """F4, S14: each way to lose or repeat something has its finding."""
    change(file, fault)
    assert any(finding in found for found in audit(file, [sent], HEALTHY))


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        ({"refused": 1, "refusals": ["tool calls without results: call_1"]}, "refused a request"),
        ({"violations": [{"reason": "messages went missing"}]}, "asked anew"),
        ({"whole_prefix": 2}, "asked anew"),
    ],
)
def test_a_planted_fault_before_the_model_is_found(
    file: Path, sent: Sent, planted: dict[str, Any], finding: str
) -> None:
    """F4, S32: what the model saw counts as much as what the store holds."""
    assert any(finding in found for found in audit(file, [sent], {**HEALTHY, **planted}))


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda sent: sent.turns.append("t_2"), "told of several turns"),
        (lambda sent: sent.answers.append("Something else"), "was told"),
    ],
)
def test_a_planted_fault_in_what_a_client_was_told_is_found(
    file: Path, sent: Sent, spoil: Callable[[Sent], None], finding: str
) -> None:
    """F4: a retry that finds another turn, or another answer, is a broken promise."""
    spoil(sent)
    assert any(finding in found for found in audit(file, [sent], HEALTHY))
