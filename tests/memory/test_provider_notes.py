"""A memory provider as a plug-in: over a real socket, found by name, bounded in every wait, closed at the end."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core
from tests.tools.contexts import bare
from tidegate.errors import Misconfigured, Refused, ToolFailed
from tidegate.gateway.preflight import preflight
from tidegate.memory import provider_notes
from tidegate.store import notes, sessions

pytestmark = pytest.mark.anyio

PROVIDER = """
import asyncio, json
from tidegate.plugins import Note, plugin

@plugin("memory")
async def make(ctx):
    port = int((ctx.folder.parent.parent / "port").read_text())
    return Remote(*await asyncio.open_connection("127.0.0.1", port))

class Remote:
    def __init__(self, reader, writer):
        self.reader, self.writer, self.lock = reader, writer, asyncio.Lock()
    async def ask(self, **what):
        async with self.lock:
            self.writer.write(json.dumps(what).encode() + b"\\n")
            await self.writer.drain()
            answer = json.loads(await self.reader.readline())
        if answer == "missing":
            raise LookupError
        return answer
    async def part(self, agent, principal):
        found = await self.ask(do="list", about="person", whose=principal)
        return "\\n".join(f"- {note['id']} ({note['by']}): {note['text']}" for note in found)
    async def listing(self, about, whose):
        return [Note(**note) for note in await self.ask(do="list", about=about, whose=whose)]
    async def remember(self, draft):
        fields = {name: getattr(draft, name) for name in draft.__struct_fields__}
        return Note(**await self.ask(do="put", **fields))
    async def forget(self, about, whose, note):
        await self.ask(do="drop", id=note)
    async def stop(self):
        self.writer.close()
        await self.writer.wait_closed()
"""


class Remote:
    """The other side: keeps notes in a list, and may hang."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []
        self.keys: dict[str, int] = {}
        self.open = self.calls = 0
        self.hang = False

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.open += 1
        rest = b""
        try:
            async with stream:
                async for data in stream:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self.calls += 1
                        if self.hang:
                            await anyio.sleep_forever()
                        await stream.send(json.dumps(self.do(**json.loads(line))).encode() + b"\n")
        finally:
            self.open -= 1

    def do(self, do: str, **what: Any) -> Any:
        if do == "list":
            found = (note for note in self.notes if (note["about"], note["whose"]) == (what["about"], what["whose"]))
            return [{key: note[key] for key in ("id", "text", "author", "by", "source", "at")} for note in found]
        known = {note["id"]: note for note in self.notes}
        if do == "drop":
            self.notes.remove(known[what["id"]])
            return None
        if what["replaces"] is not None and what["replaces"] not in known:
            return "missing"
        number = what["replaces"] or self.keys.get(what["key"]) or len(self.notes) + 100
        note = {**what, "id": number, "at": 1.0}
        self.notes = [each for each in self.notes if each["id"] != number] + [note]
        if what["key"]:
            self.keys[what["key"]] = number
        return {key: note[key] for key in ("id", "text", "author", "by", "source", "at")}


@asynccontextmanager
async def remote(home: Path) -> AsyncIterator[Remote]:
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "far.py").write_text(PROVIDER)
    there = Remote()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        (home / "port").write_text(str(listener.extra(anyio.abc.SocketAttribute.local_port)))
        group.start_soon(listener.serve, there.serve)
        try:
            yield there
        finally:
            group.cancel_scope.cancel()


FAR = '[memory]\nprovider = "far"\n'


def system(gateway: Core) -> str:
    return str(gateway.requests()[-1]["messages"][0]["content"])


async def test_a_provider_keeps_the_notes_and_is_closed_with_the_process(home: Path, model: ScriptedModel) -> None:
    """X20: the gateway decides who may write, and notifies running conversations; its own store has no notes."""
    async with remote(home) as there:
        async with core(home, FAR, model=model, tools='"memory"') as gateway:
            memory = gateway.service.memory
            assert memory is not None and there.open == 1
            await gateway.say('[tool remember {"text": "likes tea"}]')
            assert [(note["text"], note["author"], note["source"]) for note in there.notes] == [
                ("likes tea", ANNA.id, "tool")
            ]
            await gateway.say("elsewhere", name="other")
            assert "# Notes about the person" in system(gateway) and "likes tea" in system(gateway)
            mine = await memory.subject(ANNA)
            await memory.put(ANNA, mine, "likes green tea", 100)
            await gateway.say("again", name="other")
            assert "Changed note 100 (anna wrote): likes green tea" in str(gateway.requests()[-1]["messages"])
            with pytest.raises(ToolFailed, match="owner"):
                await memory.remember(bare(principal=BERT.id), "I am the owner", about="agent", replaces=None)
            with pytest.raises(Refused, match="no note 7"):
                await memory.put(ANNA, mine, "x", 7)
            book = await memory.notebook(mine)
            await memory.rewrite(ANNA, mine, "[100] likes black tea\nand cake\n", book.version)
            assert [note["text"] for note in there.notes] == ["likes black tea", "and cake"]
            with pytest.raises(Refused, match="changed in the meantime"):
                await memory.rewrite(ANNA, mine, "", book.version)
            await memory.drop(OWNER, mine, 100)
            assert [note["text"] for note in there.notes] == ["and cake"]
            assert await gateway.store.read(notes.listing, "person", ANNA.id) == []
            assert there.open == 1
        with anyio.fail_after(WAIT):
            while there.open:
                await anyio.lowlevel.checkpoint()


async def test_extracted_notes_are_stored_once_by_key(home: Path, model: ScriptedModel) -> None:
    """B6: even if they are sent again after a crash."""
    toml = '[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\ntools = ["memory"]\n' + FAR
    async with remote(home) as there, core(home, model=model, toml=toml) as gateway:
        for text in ("one", "two", "note: likes tea"):
            session = (await gateway.say(text)).session
        await gateway.service.end(session, ANNA, "new")
        with anyio.fail_after(WAIT):
            while await gateway.store.read(sessions.pending_hooks):
                await anyio.lowlevel.checkpoint()
        row = await gateway.service.row(session, ANNA)
        assert gateway.components.extractor is not None and gateway.service.memory is not None
        await gateway.service.memory.note_store.add_extracted(row, "anna", ["likes tea"])
        assert [(note["text"], note["source"], note["key"]) for note in there.notes] == [
            ("likes tea", "end", f"{session}/0")
        ]


async def test_a_provider_that_hangs_or_is_gone_keeps_no_conversation_from_beginning(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S36: the wait is bounded, the provider is not called for a while, and the prompt says what is missing."""
    monkeypatch.setattr(provider_notes, "WAIT_SECONDS", 0.05)
    now = [1000.0]
    async with remote(home) as there:
        there.hang = True
        async with core(home, FAR, model=model, tools='"memory"', clock=lambda: now[0]) as gateway:
            for name in ("one", "two"):
                assert (await gateway.say("hello", name=name)).state == "answered"
                assert "The memory provider 'far' does not answer" in system(
                    gateway
                ) and "begins without them" in system(gateway)
            assert there.calls == 1, "it rests"
            memory = gateway.service.memory
            assert memory is not None
            with pytest.raises(Refused, match="does not answer") as refused:
                await memory.notebook(await memory.subject(ANNA))
            assert (refused.value.status, refused.value.code) == (429, "memory_unavailable")
            now[0] += provider_notes.REST_SECONDS
            (home / "port").write_text("1")
            assert (await gateway.say("hello", name="three")).state == "answered"


@pytest.mark.parametrize(
    ("name", "says"),
    [("near", "there is no plug-in 'near'"), ("../far", "is not a valid plug-in name")],
)
def test_a_missing_provider_is_reported_in_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    """X07: a name is not a path."""
    (tmp_path / "tidegate.toml").write_text(f'[agents.main]\ntools = ["memory"]\n[memory]\nprovider = "{name}"\n')
    with pytest.raises(Misconfigured, match=says) as raised:
        preflight.examine(tmp_path, {})
    assert "\n" not in raised.value.message


async def test_a_provider_that_cannot_start_is_tried_again(home: Path, model: ScriptedModel) -> None:
    """S36: the gateway starts without it; its file and line are in the status until it runs."""
    now = [1000.0]
    async with remote(home) as there:
        port = (home / "port").read_text()
        (home / "port").write_text("1")
        async with core(home, FAR, model=model, tools='"memory"', clock=lambda: now[0]) as gateway:
            assert gateway.plugins is not None
            (status,) = gateway.plugins.status()
            assert status.state == "failed" and f"{home}/plugins/far.py, line 8: ConnectionRefused" in status.fault
            await gateway.say("hello", name="one")
            assert "does not answer" in system(gateway)
            (home / "port").write_text(port)
            now[0] += provider_notes.REST_SECONDS
            await gateway.say("hello", name="two")
            assert "does not answer" not in system(gateway) and there.open == 1
            assert [each.state for each in gateway.plugins.status()] == ["running"]
