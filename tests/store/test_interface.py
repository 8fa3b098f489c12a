"""The interface between the tables and a database: nothing else of a connection is used, and sessions are locked."""

import ast
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.store.rows import new_session, new_turn
from tests.store.test_plans import scenario
from tidegate.errors import Conflict
from tidegate.store import migrations, sessions, turns
from tidegate.store.interface import ConstraintError, Lockable, Rows
from tidegate.store.sqlite.connections import Connection, connect

TABLES = Path(tidegate.__file__).parent / "store" / "tables"
LOCKED = (
    "approvals", "intents", "messages", "processes", "sessions", "settings", "spooled", "summaries", "turns",
    "workspaces",
)  # fmt: skip
"""The modules whose rows belong to sessions."""
WITHOUT_LOCK = {
    "approvals.expire": "requests of many sessions; each is closed only while it is open",
    "messages.add_notice_lines": "adds notices one by one",
    "sessions.create": "nobody else knows the session yet",
    "sessions.drop_unused_prefix": "prefixes belong to no session",
    "settings.expire": "settings of many sessions; expired ones are not read",
    "settings.take_switches": "changes settings by put and clear",
    "workspaces.add_project_writer": "folders belong to no session",
    "workspaces.trust_files": "files belong to no session",
}


class StrictDb:
    """A connection of which only the interface can be used; it records the locks."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self.calls: list[str] = []
        self.fts5_tokenizer = db.fts5_tokenizer  # for `dialect`

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows:
        self.calls.append(sql)
        return self._db.execute(sql, values)

    def insert_unique(self, sql: str, values: Sequence[Any], /) -> Rows:
        self.calls.append(sql)
        return self._db.insert_unique(sql, values)

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> object:
        return self._db.executemany(sql, values)

    def batch(self, statements: Iterable[tuple[str, Sequence[Any]]], /) -> None:
        self._db.batch(statements)

    def changes(self) -> int:
        return self._db.changes()

    def lock(self, kind: Lockable, key: str, /) -> None:
        self.calls.append(f"lock {kind} {key}")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with contextlib.closing(connect(tmp_path / "t.db", "process", 1 << 20)) as db:
        migrations.migrate(db)
        yield db


def test_functions_of_the_tables_use_only_the_interface(connection: Connection) -> None:
    scenario(StrictDb(connection))
    assert sessions.get(connection, "s_1") is None, "it ends with a deletion"


def test_a_session_is_locked_before_anything_is_read_or_written(connection: Connection) -> None:
    db = StrictDb(connection)
    new_session(db, "s_1")
    new_turn(db, "s_1", "t_1", "hello")
    db.calls.clear()
    turns.take(db, "t_1", 2.0)
    assert db.calls[0] == "lock turn t_1"


@pytest.mark.parametrize("name", LOCKED)
def test_every_function_that_changes_a_session_locks_it_first(name: str) -> None:
    unlocked = set(_unlocked(ast.parse((TABLES / f"{name}.py").read_text())))
    assert unlocked == {each.partition(".")[2] for each in WITHOUT_LOCK if each.startswith(f"{name}.")}


@pytest.mark.parametrize(
    "body", ["db.execute('DELETE FROM turns')", "get(db)\n    db.lock('turn', 't')\n    _remove(db)", "_remove(db)"]
)
def test_a_change_without_a_lock_is_found(body: str) -> None:
    source = f"def f(db):\n    {body}\ndef get(db):\n    pass\ndef _remove(db):\n    db.execute('DELETE FROM turns')\n"
    assert list(_unlocked(ast.parse(source))) == ["f"]


def test_a_violated_constraint_leaves_the_transaction_as_it_was(connection: Connection) -> None:
    """The caller gets an error of our own and can go on."""
    with connection:
        new_session(connection, "s_1", name="work")
        with pytest.raises(ConstraintError):
            connection.insert_unique("INSERT INTO meta(key, value) VALUES('indexed', ?)", (7,))
        with pytest.raises(Conflict):
            new_session(connection, "s_2", name="work")
    assert sessions.get(connection, "s_1") is not None


def _unlocked(tree: ast.Module) -> Iterator[str]:
    """Public functions that change rows, themselves or by a function of their module, before they lock a session."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def changes(name: str, seen: frozenset[str]) -> bool:
        texts = (node.value for node in ast.walk(functions[name]) if isinstance(node, ast.Constant))
        if any(str(text).lstrip().startswith(("INSERT ", "UPDATE ", "DELETE ")) for text in texts):
            return True
        called = {node.func.id for node in ast.walk(functions[name]) if isinstance(node, ast.Call) and _is_name(node)}
        return any(changes(each, seen | {name}) for each in called & functions.keys() - seen - {name})

    for name, function in functions.items():
        if not name.startswith("_") and changes(name, frozenset()) and not _locks_first(function):
            yield name


def _is_name(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name)


def _locks_first(function: ast.FunctionDef) -> bool:
    used = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "db"]
    locks = [
        node.func.value
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "lock"
    ]
    first = min(used, key=lambda node: (node.lineno, node.col_offset))
    return any(first is each for each in locks)
