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

SOURCE = Path(tidegate.__file__).parent
TABLES = SOURCE / "store" / "tables"
LOCKED = (
    "approvals", "intents", "messages", "processes", "sessions", "settings", "spooled", "summaries", "turns",
    "workspaces",
)  # fmt: skip
"""The modules whose rows belong to sessions."""
SHARED = ("admit", "settle", "start", "stop_session", "stop_turn")
"""Transactions that other modules run too."""
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


def _file(name: str) -> Path:
    [found] = TABLES.rglob(f"{name}.py")
    return found


@pytest.mark.parametrize("name", LOCKED)
def test_every_function_that_changes_a_session_locks_it_first(name: str) -> None:
    unlocked = set(_unlocked(ast.parse(_file(name).read_text())))
    assert unlocked == {each.partition(".")[2] for each in WITHOUT_LOCK if each.startswith(f"{name}.")}


@pytest.mark.parametrize(
    "body", ["db.execute('DELETE FROM turns')", "get(db)\n    db.lock('turn', 't')\n    _remove(db)", "_remove(db)"]
)
def test_a_change_without_a_lock_is_found(body: str) -> None:
    source = f"def f(db):\n    {body}\ndef get(db):\n    pass\ndef _remove(db):\n    db.execute('DELETE FROM turns')\n"
    assert list(_unlocked(ast.parse(source))) == ["f"]


def test_every_transaction_of_the_packages_above_locks_its_session_first() -> None:
    """Before it reads anything: another process may have changed what it would have read."""
    sources = [path for path in sorted(SOURCE.rglob("*.py")) if not path.is_relative_to(SOURCE / "store")]
    found = [(path.name, name) for path in sources for name in Transactions(ast.parse(path.read_text())).unlocked()]
    assert not sorted(set(found))


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("turns.get(db, 't')\n    turns.park(db, 't', 1)", True),
        ("if is_idle(db):\n        turns.park(db, 't', 1)", True),
        ("db.lock('turn', 't')\n    turns.get(db, 't')\n    turns.park(db, 't', 1)", False),
        ("park(db)\n    turns.get(db, 't')", False),
        ("turns.get(db, 't')", False),
    ],
)
def test_a_transaction_that_reads_before_it_locks_is_found(body: str, is_found: bool) -> None:
    helpers = "def park(db):\n    turns.park(db, 't', 1)\ndef is_idle(db):\n    return open_turns.is_idle(db, 's')\n"
    called = "async def run(store):\n    await store.write(work, 1)\n"
    tree = ast.parse(f"{helpers}def work(db):\n    {body}\n{called}")
    assert list(Transactions(tree).unlocked()) == ["work"] * is_found


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


class Transactions:
    """The functions of a module that run as transactions, or in one of another module."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._roots: list[tuple[str, ast.FunctionDef | ast.Lambda]] = []
        for name in self._functions.keys() & set(SHARED):
            self._roots.append((name, self._functions[name]))
        for outer in (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)):
            inner = {node.name: node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef)}
            for call in (node for node in ast.walk(outer) if isinstance(node, ast.Call) and _is_write(node)):
                given = call.args[isinstance(call.func, ast.Attribute) and call.func.attr == "write_then"]
                function = (self._functions | inner).get(given.id) if isinstance(given, ast.Name) else given
                if isinstance(function, ast.FunctionDef | ast.Lambda):
                    self._roots.append((getattr(function, "name", "lambda"), function))

    def unlocked(self) -> Iterator[str]:
        """Those that change a session and use the database before they lock it."""
        for name, function in self._roots:
            calls = _calls_with_db(function)
            if any(self._changes(call) for call in calls) and not self._locks(calls[0]):
                yield name

    def _changes(self, call: ast.Call) -> bool:
        function = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return _changes_session(call) or (function is not None and any(map(self._changes, _calls_with_db(function))))

    def _locks(self, call: ast.Call) -> bool:
        """True if the first thing that the call does with the database is to lock the session."""
        if isinstance(call.func, ast.Attribute):
            return call.func.attr == "lock" or _changes_session(call) or ast.unparse(call.func) in WITHOUT_LOCK
        function = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return function is not None and self._locks(_calls_with_db(function)[0])


def _is_write(call: ast.Call) -> bool:
    """True if the call runs a transaction; `Turn.write` checks the fence, and therefore locks, before its function."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in ("write", "write_then") or not call.args:
        return False
    return ast.unparse(function.value).endswith("store")


def _calls_with_db(function: ast.FunctionDef | ast.Lambda) -> list[ast.Call]:
    """The calls that get the database, or are methods of it, in the order of their first use of it."""
    found = [
        (node.lineno, node.col_offset, node)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and any(_is_db(each) for each in (*node.args, getattr(node.func, "value", None)))
    ]
    return [call for *_, call in sorted(found, key=lambda each: each[:2])]


def _is_db(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id == "db"


def _changes_session(call: ast.Call) -> bool:
    """True if the call is of a function of the tables that locks the session of the rows that it changes."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return False
    return ast.unparse(call.func) in LOCKING


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


LOCKING = {
    f"{name}.{node.name}"
    for name in LOCKED
    for node in ast.parse(_file(name).read_text()).body
    if isinstance(node, ast.FunctionDef) and any(map(_is_db, ast.walk(node))) and _locks_first(node)
}
"""The functions of the tables that lock a session first."""
