"""The SQL of the tables is in the common subset of SQLite and PostgreSQL; what differs is in the dialect module."""

import ast
import contextlib
import re
from pathlib import Path

import pytest

import tidegate
from tests.store.sql_subset import Module, Schema, Statement, check
from tidegate.store import migrations
from tidegate.store.sqlite.connections import connect

SOURCE = Path(tidegate.__file__).parent
STORE = SOURCE / "store"
COMMON = sorted([*(STORE / "tables").rglob("*.py"), STORE / "maintenance.py"])


@pytest.fixture
def schema(tmp_path: Path) -> Schema:
    with contextlib.closing(connect(tmp_path / "t.db", "process", 1 << 20)) as db:
        migrations.migrate(db)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        return {
            table: frozenset(row[1] for row in db.execute(f'PRAGMA table_info("{table}")') if not row[3] and not row[5])
            for table in tables
        }


def test_every_statement_of_the_tables_is_in_the_common_subset(schema: Schema) -> None:
    modules = [Module(path.name, path.read_text()) for path in COMMON]
    statements = [statement for module in modules for statement in module.statements]
    assert len({statement.place for statement in statements}) > 250
    assert not [place for module in modules for place in module.unread]
    assert not [finding for statement in statements for finding in check(statement, schema)]
    assert not [place for module in modules for place in module.unbounded_loops()]


@pytest.mark.parametrize(
    "rule, sql",
    [
        ("bare-condition", "SELECT 1 FROM workspaces WHERE project"),
        ("bare-condition", "SELECT 1 FROM workspaces WHERE (project OR state = 'live')"),
        ("bare-condition", "UPDATE outbox SET state = CASE WHEN ?1 OR attempts > ?2 THEN 'dead' ELSE 'sent' END"),
        ("cast", "SELECT CAST(at / ? AS INTEGER) FROM usage"),
        ("condition-as-number", "UPDATE turns SET attempts = attempts + (NOT EXISTS (SELECT 1 FROM approvals))"),
        (
            "conflict-columns",
            "INSERT INTO meta(key, value) VALUES(?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        ),
        ("function", "UPDATE workspaces SET state = iif(project <> 0, 'gone', 'trash')"),
        ("function", "SELECT strftime('%Y', at, 'unixepoch') FROM usage"),
        ("function", "SELECT 1 FROM spooled WHERE id IN (SELECT value FROM json_each(?))"),
        ("infinity", "SELECT 1 FROM audit WHERE at < 9e999"),
        ("insert-or", "INSERT OR IGNORE INTO meta(key, value) VALUES(?, ?)"),
        ("insert-or", "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)"),
        ("is-value", "SELECT 1 FROM keys WHERE page_digest IS ?"),
        ("is-value", "SELECT 1 FROM messages WHERE turn IS NOT ?"),
        ("mixed-parameters", "SELECT 1 FROM keys WHERE id = ?1 AND kind = ?"),
        ("null-order", "SELECT id FROM messages WHERE session = ? ORDER BY seq LIMIT ?"),
        ("null-order", "SELECT id FROM sessions ORDER BY created, sessions.ended DESC"),
        ("null-order", "SELECT row_number() OVER (ORDER BY seq) FROM messages"),
        ("optional-filter", "SELECT 1 FROM keys WHERE (?1 IS NULL OR principal = ?1)"),
        ("own-syntax", "PRAGMA freelist_count"),
        ("own-syntax", "SELECT rowid FROM messages"),
        ("own-syntax", "SELECT 1 FROM messages_text WHERE messages_text MATCH ?"),
        ("own-syntax", "SELECT 1 FROM usage NOT INDEXED"),
        ("own-syntax", "SELECT 1 FROM turns CROSS JOIN sessions ON sessions.id = session"),
        ("own-syntax", "SELECT seq FROM sqlite_sequence"),
        ("own-syntax", 'SELECT 1 FROM turns WHERE state = "queued"'),
        ("scalar-max", "UPDATE sessions SET active = max(active, ?) WHERE id = ?"),
        ("scalar-max", "SELECT id FROM processes LIMIT min(?, 5)"),
        ("subquery-alias", "SELECT key FROM (SELECT model AS key FROM usage) ORDER BY key"),
        (
            "unqualified-update",
            "INSERT INTO spent(hour, cost) VALUES(?, ?) ON CONFLICT(hour) DO UPDATE SET cost = cost + excluded.cost",
        ),
        (
            "unqualified-update",
            "INSERT INTO meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value"
            " WHERE value < 3 RETURNING 1",
        ),
    ],
)
def test_a_construct_of_one_database_is_found(rule: str, sql: str, schema: Schema) -> None:
    module = Module("planted.py", f"def f(db):\n    db.execute({sql!r})\n")
    assert rule in {finding.rule for each in module.statements for finding in check(each, schema)}


@pytest.mark.parametrize(
    "source",
    [
        '_WHERE = "project"\ndef f(db):\n    db.execute(f"SELECT 1 FROM workspaces WHERE {_WHERE}")',
        'def f(db, x):\n    where = "TRUE" if x else "project"\n    db.execute(f"SELECT 1 FROM w WHERE {where}")',
        'def f(db, x):\n    end, v = ("", 0) if x else (" AND project", 1)\n    db.execute("SELECT WHERE TRUE" + end)',
        'def f(db):\n    db.execute(f"SELECT 1 FROM w WHERE {_w()}")\ndef _w():\n    return "project"',
        'def f(db):\n    where = []\n    where.append("id = ? AND project")',
    ],
)
def test_statements_are_found_however_they_are_composed(source: str, schema: Schema) -> None:
    module = Module("planted.py", source)
    assert {finding.rule for each in module.statements for finding in check(each, schema)} == {"bare-condition"}


def test_a_statement_that_cannot_be_read_is_reported() -> None:
    assert Module("planted.py", 'def f(db):\n    db.execute("x")').unread == ["planted.py:2"]


def test_a_loop_that_relies_on_lazy_rows_is_found() -> None:
    lazy = 'def f(db):\n    for row in db.execute("SELECT id FROM messages{}"):\n        if row:\n            break\n'
    assert list(Module("planted.py", lazy.format("")).unbounded_loops()) == ["planted.py:2"]
    assert list(Module("planted.py", lazy.format(" LIMIT 5")).unbounded_loops()) == []


def test_no_module_outside_the_store_contains_sql_or_names_the_database() -> None:
    """Only the command line names the library, and it asks the store for the name."""
    sql = re.compile(r"\b(SELECT .+ FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|PRAGMA) ?|sqlite|apsw", re.IGNORECASE)
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(STORE):
            continue
        tree = ast.parse(path.read_text())
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        texts = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        found += [(path.name, text) for text in (*names, *texts) if sql.search(text)]
    assert not found


def test_a_dialect_part_is_not_checked(schema: Schema) -> None:
    source = (
        "from tidegate.store import dialect\nfrom tidegate.store.dialect import ID_LIST\n"
        'def f(db):\n    db.execute(f"SELECT 1 FROM turns WHERE id IN {ID_LIST}")\n'
        "    db.execute(dialect.FIND_ENTRIES)\n"
    )
    module = Module("planted.py", source)
    assert not module.unread and not [finding for each in module.statements for finding in check(each, schema)]
    assert isinstance(module.statements[0], Statement)
