"""What a start says: how to use a real model, and why it does not start on a database that it cannot use."""

import signal
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from anyio import to_thread

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tidegate.config import load
from tidegate.errors import TidegateError
from tidegate.gateway import holder_of
from tidegate.gateway.gateway import Gateway
from tidegate.store import migrations
from tidegate.store.migrations import CURRENT


def test_the_demo_start_prints_a_configuration_that_works_unchanged(tmp_path: Path) -> None:
    """H02: the printed example is a valid configuration, starts, and is no longer the demo."""
    home = tmp_path / "home"
    with gateway(home) as running:
        told = running.said
    place = next(number for number, line in enumerate(told) if str(home / "tidegate.toml") in line)
    shown = [line for line in told if line.startswith("    ")]
    assert shown and told[place + 1 : place + 1 + len(shown)] == shown
    (home / "tidegate.toml").write_text(textwrap.dedent("\n".join(shown)))
    config = load(home)
    assert not config.demo
    (model,) = config.models.values()
    assert model.api == "openai-chat" and model.base_url.startswith("https://") and model.model
    assert model.key is not None and model.key.startswith("env:")
    missing = tidegate("up", "--port", "0", home=home)
    assert missing.returncode == 1 and model.key in missing.stderr
    with gateway(home, **{model.key.removeprefix("env:"): "not a real one"}) as running:
        assert not any("demo" in line for line in running.said)
        assert not any(line.startswith("    ") for line in running.said)


def _used_home(tmp_path: Path) -> Path:
    """A home folder whose database holds a conversation, and which no gateway has open."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    return home


def _refused(home: Path) -> str:
    """The one sentence with which a start is refused."""
    run = tidegate("up", "--port", "0", home=home)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("tidegate: ") and run.stderr.count("\n") == 1
    assert "Traceback" not in run.stderr
    assert holder_of(home) is None
    return run.stderr


def _names(running: GatewayProcess) -> list[str]:
    return [session["name"] for session in running.call("GET", "/api/sessions")["sessions"]]


def test_a_database_of_a_newer_program_is_left_as_it_is(tmp_path: Path) -> None:
    """L18, F3: one sentence, nothing written, and the newer program finds everything."""
    home = _used_home(tmp_path)
    database = home / "tidegate.db"
    with closing(apsw.Connection(str(database))) as db:
        db.execute(f"PRAGMA user_version = {CURRENT + 1}")
    before = database.read_bytes()
    assert f"newer Tidegate (format {CURRENT + 1}" in _refused(home)
    assert database.read_bytes() == before
    assert [path.name for path in home.iterdir() if path.name.startswith("tidegate.db")] == ["tidegate.db"]
    with closing(apsw.Connection(str(database))) as db:
        db.execute(f"PRAGMA user_version = {CURRENT}")
    with gateway(home) as running:
        assert _names(running) == ["talk"]


def test_a_damaged_database_is_kept_under_another_name_and_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    """L18, F3: one sentence that says where it is now; a service manager's next start is refused too, until the key is
    removed."""
    home = _used_home(tmp_path)
    database = home / "tidegate.db"
    damaged = b"\x00" * 16 + database.read_bytes()[16:]
    database.write_bytes(damaged)
    told = _refused(home)
    assert not database.exists()
    (aside,) = home.glob("tidegate.db.*")
    assert str(aside) in told and "damaged" in told
    assert aside.read_bytes() == damaged
    again = _refused(home)
    assert f"{database} is missing" in again and f"{aside} is the damaged file" in again
    (home / "api-key").unlink()
    with gateway(home) as running:
        assert _names(running) == []
        assert running.say("say hello") != ""
    assert aside.read_bytes() == damaged


def _contents(database: Path) -> dict[str, Any]:
    """Everything in it: its format, the shape of its tables, and their rows."""
    with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        shape = db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        tables = [name for name, sql in shape if (sql or "").startswith("CREATE TABLE")]
        rows = {name: db.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
        return {"format": db.execute("PRAGMA user_version").get, "shape": shape, "rows": rows}


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["sql", "code"])
async def test_a_failed_migration_changes_nothing_and_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """L18, F3: wherever it fails, the previous version still starts on the file."""

    def broken(db: apsw.Connection) -> None:
        db.execute("CREATE TABLE half(way)")
        db.execute("UPDATE principals SET name = 'somebody else'")
        db.execute("DELETE FROM keys")
        if fault == "code":
            raise ValueError("the step met a row that it did not expect")
        db.execute("INSERT INTO nowhere VALUES(1)")

    home = tmp_path / "home"
    with anyio.fail_after(3 * WAIT):
        first = Gateway(home, port=0, say=lambda line: None)
        assert await first.build()
        await first.close()
        before = await to_thread.run_sync(_contents, home / "tidegate.db")
        with monkeypatch.context() as patched:
            patched.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
            with pytest.raises(TidegateError) as failed:
                await Gateway(home, port=0, say=lambda line: None).build()
        assert ("did not expect" if fault == "code" else "nowhere") in failed.value.message
        assert "\n" not in failed.value.message
        assert await to_thread.run_sync(holder_of, home) is None
        assert await to_thread.run_sync(_contents, home / "tidegate.db") == before
        again = Gateway(home, port=0, say=lambda line: None)
        assert await again.build()
        await again.close()
