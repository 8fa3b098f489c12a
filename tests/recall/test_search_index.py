"""A plug-in search index: called, fed, bounded, closed, and never trusted."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, core
from tests.gateway.process import gateway
from tests.logs import capture_logs
from tests.recall.recall_store import BERT, RecallStore, open_recall_store
from tests.recall.test_recall import after, quotes
from tidegate.errors import Misconfigured, ToolFailed
from tidegate.gateway.preflight import preflight
from tidegate.recall import search_index
from tidegate.recall.search_index import PluginIndex
from tidegate.store import sessions

pytestmark = pytest.mark.anyio

INDEX = '\n[context]\nindex = "mine"\n'

MINE = '''
"""Finds every message that it was told of, the oldest first; what it does is said in the file `mood`."""
import asyncio
from tidegate.plugins import IndexHit, IndexHits, plugin

class Mine:
    def __init__(self, home):
        self.home = home
        self.told = {}

    def mood(self):
        try:
            return (self.home / "mood").read_text()
        except FileNotFoundError:
            return ""

    async def search(self, query, *, principal, session, limit, after):
        mood = self.mood()
        if mood == "fail":
            raise RuntimeError("no luck")
        if mood == "hang":
            await asyncio.Event().wait()
        if mood == "stubborn":
            while not (self.home / "enough").exists():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass
        if mood == "nonsense":
            return ["everything"]
        first = int(after or 0)
        hits = tuple(IndexHit(message=number) for number in sorted(self.told))[first : first + limit]
        more = first + limit < len(self.told)
        return IndexHits(hits=hits, after=str(first + limit) if more else "")

    async def add(self, messages):
        if self.mood() == "deaf":
            raise RuntimeError("not now")
        for each in messages:
            self.told[each.message] = each.text

    async def forget(self, session):
        with (self.home / "forgotten").open("a") as file:
            file.write(session + "\\n")

    async def stop(self):
        (self.home / "closed").write_text("yes")

@plugin("index")
async def make(ctx):
    return Mine(ctx.folder.parent.parent)
'''


def put(home: Path, text: str = MINE) -> None:
    (home / "plugins").mkdir()
    (home / "plugins" / "mine.py").write_text(text)


def plugged(past: RecallStore) -> PluginIndex:
    assert past.recall.index is not None
    return past.recall.index


async def test_it_is_asked_fed_on_the_books_and_closed(tmp_path: Path) -> None:
    """L06: it answers instead of the full-text index, as long as its process lives."""
    put(tmp_path)
    async with open_recall_store(tmp_path, INDEX, entered=True) as past:
        await past.say("s_1", "one bird", "two birds", "three birds")
        assert await plugged(past).feed() == 3
        assert await plugged(past).feed() == 0
        answer = await past.search("something near")
        assert quotes(answer) == ["one bird", "two birds", "three birds"]
        assert "full-text" not in answer
        assert past.scope.account.ledger.totals()["search index"].count == 1
        # A page that is cut short, and the index's own pages: nothing is passed over.
        first = await past.search("something", limit=2)
        assert quotes(first) == ["one bird", "two birds"]
        assert quotes(await past.search("something", limit=2, after=after(first))) == ["three birds"]
        assert quotes(await past.search("something", limit=2, after="i1.")) == ["two birds"]
        await plugged(past).forget("s_9")
        assert not (tmp_path / "closed").exists()
    assert (tmp_path / "closed").exists() and (tmp_path / "forgotten").read_text() == "s_9\n"


async def test_hits_of_an_index_are_checked_against_the_store(tmp_path: Path) -> None:
    """X06: a hit of another person or conversation, of a one-shot call, undone or invented is dropped."""
    put(tmp_path)
    async with open_recall_store(tmp_path, INDEX, entered=True) as past:
        await past.begin("s_2")
        await past.begin("s_bert", BERT)
        await past.begin("s_once", kind="ephemeral")
        for session in ("s_1", "s_2", "s_bert", "s_once"):
            await past.say(session, f"bird of {session}")
        await past.say("s_1", "regretted", turn="t_1")
        assert past.plugin is not None
        index: Any = past.plugin.object
        index.told = dict.fromkeys(range(-5, 50), "")
        index.told[2**70] = index.told[-(2**70)] = ""
        assert quotes(await past.search("bird", limit=50)) == ["bird of s_1", "regretted"]
        wide = past.context(agent="wide", turn="t_1")
        found = await past.search("bird", limit=50, everywhere=True, context=wide)
        assert sorted(quotes(found)) == ["bird of s_1", "bird of s_2"]


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("fail", r"failed \(RuntimeError\)"),
        ("hang", "did not answer within 0.2 s"),
        ("nonsense", "returned an invalid answer"),
    ],
)
async def test_when_it_does_not_answer_the_full_text_index_does_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mood: str, words: str
) -> None:
    """L20: in bounded time."""
    monkeypatch.setattr(search_index, "SECONDS", 0.2)
    put(tmp_path)
    (tmp_path / "mood").write_text(mood)
    async with open_recall_store(tmp_path, INDEX, entered=True) as past:
        await past.say("s_1", "a heron", "an egret")
        answer = await past.search("heron")
        assert quotes(answer) == ["a heron"]
        assert "the index 'mine' " in answer and "this is the full-text search; " in answer
        with pytest.raises(ToolFailed, match=f"The index 'mine' {words}; search again without `after`"):
            await past.search("heron", after="i0.1", exact=False)
    assert (tmp_path / "closed").exists()


async def test_a_search_cannot_go_on_in_an_index_that_was_removed(tmp_path: Path) -> None:
    """L20: the message says so, although nothing of the index is configured any more."""
    async with open_recall_store(tmp_path) as past:
        await past.say("s_1", "a heron")
        with pytest.raises(
            ToolFailed, match="that this search used is no longer configured; search again without `after`"
        ):
            await past.search("heron", after="i0.1", exact=False)


async def test_a_hung_index_is_not_called_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L20: the caller continues, and the number of hung calls is bounded."""
    monkeypatch.setattr(search_index, "SECONDS", 0.05)
    monkeypatch.setattr(search_index, "AT_ONCE", 2)
    put(tmp_path)
    (tmp_path / "mood").write_text("stubborn")
    async with open_recall_store(tmp_path, INDEX, entered=True) as past:
        await past.say("s_1", "a heron")
        for _ in range(2):
            assert "did not answer within 0.05 s" in await past.search("heron")
        assert past.scope.account.ledger.totals()["search index"].count == 3
        assert "has 2 unanswered calls" in await past.search("heron")
        (tmp_path / "enough").touch()
        with anyio.fail_after(20):
            while past.scope.account.ledger.totals()["search index"].count > 1:
                await anyio.sleep(0.01)


async def test_a_batch_that_an_index_does_not_accept_is_sent_again(tmp_path: Path) -> None:
    """At least once, in order; nothing of one-shot calls, and again a message that got the number of a deleted one."""
    put(tmp_path)
    (tmp_path / "mood").write_text("deaf")
    async with open_recall_store(tmp_path, INDEX, entered=True) as past:
        await past.begin("s_once", kind="ephemeral")
        await past.say("s_1", "one", "two")
        await past.say("s_once", "nothing")
        with capture_logs() as logs:
            assert await plugged(past).feed() == 0
        assert any("does not accept" in entry["event"] for entry in logs)
        (tmp_path / "mood").unlink()
        assert await plugged(past).feed() == 2
        await past.begin("s_2")
        await past.say("s_2", "three")
        assert await plugged(past).feed() == 1
        await past.store.write(sessions.delete, "s_2")
        await past.begin("s_3")
        await past.say("s_3", "four")
        assert await plugged(past).feed() == 1


def test_a_missing_index_is_reported_before_the_start(tmp_path: Path) -> None:
    """By `config check` too, if an agent would use it."""
    tools = '[models.main]\napi = "demo"\n[agents.main]\ntools = ["{}"]\n' + INDEX
    (tmp_path / "tidegate.toml").write_text(tools.format("clock"))
    preflight.examine(tmp_path, {})
    (tmp_path / "tidegate.toml").write_text(tools.format("context"))
    missing = r"tidegate\.toml: \[context\] index = 'mine': there is no plug-in 'mine': no file .*plugins/mine\.py"
    with pytest.raises(Misconfigured, match=missing):
        preflight.examine(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [("1 / 0", "line 1: ZeroDivisionError"), ("x = 1", "declares no plug-in"), ("def", "line 1: SyntaxError")],
)
def test_a_broken_index_is_a_warning_since_the_full_text_index_answers(tmp_path: Path, text: str, fault: str) -> None:
    """L20: with its file and line; the gateway starts."""
    put(tmp_path, text)
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["context"]\n' + INDEX)
    (warning,) = [each for each in preflight.examine(tmp_path, {}).warnings if "plug-in" in each]
    assert str(tmp_path / "plugins" / "mine.py") in warning and fault in warning


@pytest.mark.parametrize("way", ["deleted", "past its retention"])
async def test_an_index_forgets_a_deleted_session(home: Path, model: ScriptedModel, way: str) -> None:
    """V06, X07: with the rows and the files."""
    home.mkdir()
    put(home)
    async with core(home, INDEX, model=model, tools='"context"') as house:
        session = (await house.say("one bird")).session
        if way == "deleted":
            assert await house.service.delete(session, ANNA)
        else:
            await house.service.end(session, ANNA, "new")
            assert not (home / "forgotten").exists()
            await house.store.write(lambda db: db.execute("UPDATE sessions SET ended = 1"))
            assert await house.components.endings.purge(3600.0) == 1
        assert (home / "forgotten").read_text() == f"{session}\n"


def test_a_gateway_closes_it_at_its_stop(tmp_path: Path) -> None:
    """L06: the process's own lifetime, through a real start and stop."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    put(home)
    text = '[models.main]\napi = "demo"\n[agents.main]\ntools = ["context"]\n' + INDEX
    (home / "tidegate.toml").write_text(text)
    with gateway(home) as running:
        assert "gave me this" in running.say("search for birds", "talk")
        running.process.terminate()
        assert running.wait() == 0
    assert (home / "closed").read_text() == "yes"
