"""The API with and without a session, the terminal and the page use one service: compared as the model was asked and
as the store keeps it, in a gateway that runs as a process of its own."""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple
from urllib.error import HTTPError

import apsw
import pytest
from playwright.sync_api import Browser, expect

from bench.subjects import ScriptedModel
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tests.page import browser as chromium
from tidegate.gateway import ask

pytestmark = pytest.mark.slow

TEXT = 'Which tide is it? [tool read_file {"path": "tide.txt"}] [hold gate step=1] [say The ebb.]'
TOO_LONG = "tide " * 300
LIMIT = "limits.message_bytes"
CHANNELS = {"named": "http", "once": "http", "terminal": "http", "page": "page"}
"""The entry points and their channel in the store: a pipe into the terminal client is a program, not a person."""

Told = Callable[[], str]
"""Waits for what is said to a message: its answer, or the refusal as its sender reads it."""


class Doors:
    """Sends a text through each entry point without waiting for the result."""

    def __init__(self, running: GatewayProcess, browser: Browser, workers: ThreadPoolExecutor) -> None:
        self._running = running
        self._browser = browser
        self._workers = workers

    def send(self, entry_point: str, text: str) -> Told:
        if entry_point == "page":
            return self._type(text)
        sent = self._workers.submit(
            self._pipe if entry_point == "terminal" else self._post, text, named=entry_point == "named"
        )
        return lambda: sent.result(2 * WAIT)

    def _post(self, text: str, *, named: bool) -> str:
        try:
            return self._running.say(text, "talk" if named else None)
        except HTTPError as refused:
            with closing(refused):
                return str(json.loads(refused.read())["error"]["message"])

    def _pipe(self, text: str, *, named: bool) -> str:
        run = tidegate("chat", home=self._running.home, input=text + "\n")
        return (run.stdout or run.stderr).strip()

    def _type(self, text: str) -> Told:
        """As a person does it: a link that opens once, the box, Enter."""
        page = chromium.visit(self._browser).page
        page.goto(ask(self._running.home, {"do": "code"})["link"])
        page.locator("#composer").fill(text)
        page.locator("#composer").press("Enter")

        def told() -> str:
            words = page.locator(".answer:not(.draft) .markdown, .banner .note.error").first
            expect(words).to_be_visible(timeout=chromium.PATIENCE)
            return words.inner_text().strip()

        return told


class Books:
    """Rows of the gateway's store, looked at from outside."""

    def __init__(self, running: GatewayProcess) -> None:
        self._file = running.home / "tidegate.db"

    def at_work(self) -> dict[str, Any]:
        """The session that has a turn in progress."""
        (row,) = self._rows("SELECT s.* FROM sessions s JOIN turns t ON t.session = s.id WHERE t.state = 'running'")
        return row

    def turns(self, session: str) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM turns WHERE session = ?", session)

    def messages(self, session: str) -> list[dict[str, Any]]:
        rows = self._rows("SELECT * FROM messages WHERE session = ? ORDER BY id", session)
        for row in rows:
            row["body"] = json.loads(zlib.decompress(row["body"]) if row["packed"] else row["body"])
        return rows

    def usage(self) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM usage ORDER BY id")

    def sizes(self) -> dict[str, int]:
        tables = ("sessions", "turns", "messages", "usage", "receipts")
        return {table: self._rows(f"SELECT count(*) AS rows FROM {table}")[0]["rows"] for table in tables}

    def _rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        with closing(apsw.Connection(str(self._file), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            db.row_trace = lambda cursor, row: {
                name: value for (name, _), value in zip(cursor.get_description(), row, strict=True)
            }
            return list(db.execute(sql, values))


class Seen(NamedTuple):
    """One message through one entry point: the rows during the second model call of its turn, and those left after
    it has ended."""

    answer: str
    asked: list[str]
    session: dict[str, Any]
    running: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    ended: list[dict[str, Any]]
    transcript: list[dict[str, Any]]
    usage: list[dict[str, Any]]


def _until_held(model: ScriptedModel) -> None:
    """Until a request waits at the gate. Each look is a round trip, so this does not spin."""
    deadline = time.monotonic() + WAIT
    while not model.call("GET", "/stats")["holding"]:
        assert time.monotonic() < deadline, model.call("GET", "/stats")


def _through(entry_point: str, doors: Doors, books: Books, model: ScriptedModel) -> Seen:
    """The text through one entry point, with a fresh model."""
    model.call("POST", "/reset")
    before = len(books.usage())
    told = doors.send(entry_point, TEXT)
    _until_held(model)
    session = books.at_work()
    id = session["id"]
    running, journal = books.turns(id), books.messages(id)
    model.call("POST", "/release/gate")
    return Seen(
        answer=told(),
        asked=[request["body"] for request in model.call("GET", "/requests")],
        session=session,
        running=running,
        journal=journal,
        ended=books.turns(id),
        transcript=books.messages(id),
        usage=books.usage()[before:],
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedModel]:
    with ScriptedModel(tmp_path_factory.mktemp("model")) as model:
        yield model


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("entry_point") / "home"
    (home / "papers").mkdir(parents=True)
    (home / "papers" / "tide.txt").write_text("It is ebbing.\n")
    model_settings = f'[models.main]\napi = "openai-chat"\nbase_url = "{model.url}/v1"\nmodel = "scripted"\n'
    agent_settings = '[agents.main]\ntools = ["files"]\nworkspace = "papers"\n'
    (home / "tidegate.toml").write_text(f"{model_settings}{agent_settings}[limits]\nmessage_bytes = 1024\n")
    with gateway(home) as running:
        yield running


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, running: GatewayProcess) -> Iterator[Doors]:
    executable = chromium.installed()
    if executable is None:
        pytest.fail("The page is one of the doors, and needs Chromium: apt install chromium")
    with (
        ThreadPoolExecutor(1) as workers,
        chromium.running(executable, tmp_path_factory.mktemp("chromium")) as browser,
    ):
        yield Doors(running, browser, workers)


@pytest.fixture(scope="module")
def seen(doors: Doors, running: GatewayProcess, model: ScriptedModel) -> dict[str, Seen]:
    return {entry_point: _through(entry_point, doors, Books(running), model) for entry_point in CHANNELS}


def _same(found: dict[str, list[dict[str, Any]]], *but: str) -> None:
    """Every entry point leaves the same rows, apart from ids, times and given names."""
    dropped = {"id", "session", "turn", "created", "active", "accepted", "started", "finished", "at", *but}
    bare = {
        entry_point: [{name: value for name, value in row.items() if name not in dropped} for row in rows]
        for entry_point, rows in found.items()
    }
    assert bare == dict.fromkeys(bare, next(iter(bare.values())))


def test_the_model_receives_the_same_bytes_from_every_entry_point(seen: dict[str, Seen]) -> None:
    """V18, S33: prompt, tools, messages and parameters of both steps of the turn; and everybody gets the answer."""
    assert {entry_point: one.answer for entry_point, one in seen.items()} == dict.fromkeys(CHANNELS, "The ebb.")
    asked = {entry_point: one.asked for entry_point, one in seen.items()}
    assert len(asked["page"]) == 2
    assert asked == dict.fromkeys(CHANNELS, asked["page"])


def test_the_store_gets_the_same_rows_from_every_entry_point(seen: dict[str, Seen]) -> None:
    """V18, P01, S19: roles, steps, bodies, tokens and states, in the middle of the turn and after it. Only the channel
    differs, and that a one-shot call is gone with its answer."""
    kinds = {entry_point: "ephemeral" if entry_point == "once" else "named" for entry_point in CHANNELS}
    assert {entry_point: one.session["kind"] for entry_point, one in seen.items()} == kinds
    assert {entry_point: one.running[0]["channel"] for entry_point, one in seen.items()} == CHANNELS
    _same({entry_point: [one.session] for entry_point, one in seen.items()}, "kind", "channel", "name", "title")
    _same({entry_point: one.running for entry_point, one in seen.items()}, "channel", "on_disconnect")
    _same({entry_point: one.journal for entry_point, one in seen.items()})
    steps = [(row["role"], row["step"]) for row in seen["page"].journal]
    assert steps == [("user", "in-0"), ("assistant", "model-0"), ("tool", "tool-0-0")]

    once = seen["once"]
    assert (once.ended, once.transcript) == ([], [])
    kept = {entry_point: one for entry_point, one in seen.items() if entry_point != "once"}
    _same({entry_point: one.ended for entry_point, one in kept.items()}, "channel")
    _same({entry_point: one.transcript for entry_point, one in kept.items()})
    assert [turn["state"] for turn in seen["page"].ended] == ["answered"]
    assert [row["step"] for row in seen["page"].transcript] == ["in-0", "model-0", "tool-0-0", "model-1"]


def test_the_same_tokens_are_accounted_for_at_every_entry_point(seen: dict[str, Seen]) -> None:
    """V18, V15: a row for each answer of the model, with its channel; also for a call that left nothing else."""
    for entry_point, one in seen.items():
        assert [row["channel"] for row in one.usage] == [CHANNELS[entry_point]] * 2
        assert all(row["input"] and row["output"] for row in one.usage)
    _same({entry_point: one.usage for entry_point, one in seen.items()}, "channel")


@pytest.mark.parametrize("entry_point", CHANNELS)
def test_a_message_that_is_too_long_is_refused_at_every_entry_point_with_the_name_of_the_limit(
    doors: Doors, running: GatewayProcess, model: ScriptedModel, entry_point: str
) -> None:
    """H20, V18: nothing is cut short, nothing is kept, no model is asked, and the sender reads which bound it was."""
    model.call("POST", "/reset")
    books = Books(running)
    before = books.sizes()
    assert LIMIT in doors.send(entry_point, TOO_LONG)()
    assert books.sizes() == before
    assert model.call("GET", "/requests") == []
