"""A long conversation answers a question about its beginning with the exact words, through a real gateway."""

import asyncio
from pathlib import Path
from typing import Any

from tests.gateway.process import gateway
from tests.store.rows import user_message
from tidegate.store import Db, Store, messages, sessions
from tidegate.values import Message

LENGTH = 10_000
THIRD = "The third buoy off Skerry Point flashes “red, red — white”, every 7.5 s; the key is tide-4471."

SETTINGS = """
[models.main]
api = "demo"
context_window = 16000
[agents.main]
tools = ["context"]
[agents.wide]
tools = ["context"]
recall = "person"
"""


def _fill(db: Db, name: str) -> int:
    session = next(row for row in sessions.listing(db, principal=None) if row.name == name)
    messages.append(db, session=session.id, turn=None, step=None, message=user_message(THIRD), now=session.created)
    for number in range(4, LENGTH + 1):
        text = f"Entry {number} of the harbour log: wind and tide as usual."
        message = user_message(text) if number % 2 else Message(role="assistant", text=text, finish="stop")
        row = messages.append(
            db, session=session.id, turn=None, step=None, message=message, now=session.created + number
        )
    return row.seq or 0


async def _lengthen(home: Path, name: str) -> int:
    async with Store.open(home / "tidegate.db") as store:
        return await store.write(_fill, name)


def _ask(running: Any, agent: str, text: str, session: str) -> str:
    body = {"model": agent, "messages": [{"role": "user", "content": text}]}
    answer = running.call("POST", "/v1/chat/completions", body, **{"X-Session-Id": session})
    return str(answer["choices"][0]["message"]["content"])


def test_after_ten_thousand_messages_the_third_is_still_complete(tmp_path: Path) -> None:
    """S19: over HTTP, whatever of the conversation still fits into the model's window; and again after a restart,
    from another conversation where the agent may."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(SETTINGS)
    with gateway(home) as running:
        assert running.say("hello", "log").startswith("Hello!")
        running.process.terminate()
        assert running.wait() == 0
    assert asyncio.run(_lengthen(home, "log")) == LENGTH
    with gateway(home) as running:
        answer = running.say("what was message 3", "log")
        assert f"| {THIRD}\n" in answer and "message 3 · user ·" in answer
        found = running.say("search for third buoy Skerry", "log")
        assert f"| {THIRD}\n" in found and "message 3 · user ·" in found and found.endswith("that is all]")
        assert "| hello\n" in running.say("what did I say first", "log")
        (log,) = (view for view in running.call("GET", "/api/sessions")["sessions"] if view["name"] == "log")
        filling = running.call("GET", f"/api/sessions/{log['id']}/context")
        assert filling["tokens"] <= filling["hard"] < filling["window"] == 16_000
        assert filling["summarised"] > 9_000, "the third message is not shown any more"
        assert THIRD in _ask(running, "wide", "search everywhere for Skerry", "elsewhere")
        refused = running.say("search everywhere for Skerry", "another")
        assert 'recall = "person"' in refused and THIRD not in refused
