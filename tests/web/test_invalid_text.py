"""Invalid text from a model, a tool or a client: it reaches clients as valid JSON, or is refused."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import CHAT, call, chat, chat_body
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

GARBLED = "[saying l<xff>w] [tool odd {}] [say t<ud83d>de] [garbled chunk=3]"


@tool(effect="read")
async def odd(ctx: ToolContext) -> str:
    """Return half a character."""
    return "half \ud800"


async def test_invalid_text_of_a_model_is_repaired_sent_and_stored(home: Path, model: ScriptedModel) -> None:
    """A2, S33, H10: streamed and complete, after a restart, and with an invalid tool result."""
    tools = '[agents.odd]\nmodel = "main"\ntools = ["odd"]\n'
    toolsets = {"odd": Toolset((odd,))}
    named = {"X-Session-Id": "talk"}
    async with in_process_gateway(home, tools, model=model, toolsets=toolsets) as h:
        streamed = await call(h, "POST", CHAT, json={**chat_body(GARBLED, stream=True), "model": "odd"}, headers=named)
        assert streamed.streamed == "l\ufffdw\n\nt\ufffdde"
        whole = await call(h, "POST", CHAT, json={**chat_body(GARBLED), "model": "odd"}, headers=named)
        assert whole.text == "t\ufffdde"
    async with in_process_gateway(home, tools, model=model, toolsets=toolsets) as h:
        after = await call(h, "POST", CHAT, json={**chat_body("and now?"), "model": "odd"}, headers=named)
        assert after.text.startswith("The tide")
        (session,) = (await call(h, "GET", "/api/sessions")).json["sessions"]
        said = (await call(h, "GET", f"/api/sessions/{session['id']}/messages")).json["messages"]
        assert [each["message"]["text"] for each in said if each["message"]["role"] == "tool"] == ["half ?"] * 2
        assert "l\ufffdw" in [each["message"]["text"] for each in said]


@pytest.mark.parametrize("text", [rb"\ud800", rb"a\ude00b", rb"\ud83d and more", b"\xed\xa0\x80"])
async def test_a_lone_surrogate_in_a_request_is_refused_with_the_reason(gateway: InProcessGateway, text: bytes) -> None:
    """H20: a client's text is not changed; 400 says what is wrong, and nothing is stored."""
    for path, body in (
        (CHAT, b'{"model":"main","messages":[{"role":"user","content":"%b"}]}'),
        ("/api/messages", b'{"agent":"main","text":"%b"}'),
    ):
        reply = await call(gateway, "POST", path, data=body % text, headers={"Content-Type": "application/json"})
        assert reply.status == 400, path
        assert "valid Unicode" in reply.error["message"] or "not UTF-8" in reply.error["message"], reply.error
    assert (await chat(gateway)).status == 200
