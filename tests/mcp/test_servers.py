"""Servers that behave: what agents see of them, their results and questions, and how they are stored and changed."""

import base64
import json
import time
import zlib
from pathlib import Path

import anyio
import pytest

from tests.mcp.harness import WAIT, bad_server, open_servers
from tidegate.config import AgentSettings
from tidegate.errors import NotFound, ToolFailed
from tidegate.lifetimes import ServiceFailed
from tidegate.mcp.servers import own_secrets
from tidegate.security import Secret
from tidegate.tools import Toolset

pytestmark = pytest.mark.anyio


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    rows = zlib.compress((b"\0" + b"\x80" * 3 * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


async def test_a_conversation_begins_with_the_stored_tools_while_the_server_is_down(home: Path) -> None:
    """A4, E4, S33"""
    settings = bad_server(instructions="Be quick.")
    async with open_servers(home, {"good": settings}) as servers:
        await servers.ready("good")
        tools, part = servers.toolset(), await servers.servers.part("main", "p_1")
        assert "> Be quick." in part
    async with open_servers(home, {"good": settings}) as servers:
        assert servers.toolset().definitions == tools.definitions
        with anyio.fail_after(WAIT):
            assert await servers.servers.part("main", "p_1") == part
        assert servers.state("good").state == "stopped"
        assert (await servers.call("good__say", text="started by this call")).text == "started by this call"


async def test_a_server_that_was_never_listed_is_waited_for_up_to_its_list_timeout(home: Path) -> None:
    """E4: and a broken one delays a conversation once."""
    broken = bad_server(ignores="initialize", revision="2025", list_timeout=0.3)
    async with open_servers(home, {"bad": broken, "good": bad_server()}) as servers:
        with anyio.fail_after(WAIT):
            await servers.servers.part("main", "p_1")
        assert "good__say" in servers.toolset().names
        assert servers.state("bad").tools is None


async def test_changed_settings_make_a_stored_list_void(home: Path) -> None:
    """A4"""
    async with open_servers(home, {"good": bad_server()}) as servers:
        await servers.ready("good")
    async with open_servers(home, {"good": bad_server(more_tools=[{"name": "x", "inputSchema": {}}])}) as servers:
        assert servers.toolset().names == ()


async def test_the_revision_is_found_once_and_remembered(home: Path) -> None:
    """E1: by the same process, and the next one is not asked again."""
    settings = bad_server(record="record")
    record = home / "mcp" / "good" / "work" / "record"
    async with open_servers(home, {"good": settings}) as servers:
        await servers.ready("good")
        assert record.read_text().splitlines()[:2] == ["server/discover", "initialize"]
        assert servers.state("good").revision == "2025-11-25"
    record.unlink()
    async with open_servers(home, {"good": settings}) as servers:
        await servers.ready("good")
        assert record.read_text().splitlines()[0] == "initialize"


async def test_servers_are_added_changed_and_removed_while_others_run(home: Path) -> None:
    """E2: a running conversation keeps its list, and a tool whose server has gone says so."""
    one, two = bad_server(), bad_server()
    async with open_servers(home, {"one": one}) as servers:
        await servers.ready("one")
        pid = servers.state("one").pid
        began_with = servers.toolset().names
        await servers.servers.apply({"one": one, "two": two}, {})
        await servers.ready("two")
        assert servers.state("one").pid == pid
        assert {"one__say", "two__say"} <= set(servers.toolset().names)
        done = await servers.servers.apply({"two": bad_server(without=("do*",))}, {})
        assert done == {"added": [], "changed": ["two"], "removed": ["one"]}
        assert not (home / "mcp" / "one").exists()
        await servers.ready("two")
        assert set(servers.toolset().names) == {"output", "two__say"}
        frozen = servers.servers.frozen_toolset("main", Toolset(), began_with)
        assert frozen.names == began_with
        gone = frozen.get("one__say")
        assert gone is not None
        with pytest.raises(ToolFailed, match="no longer exists"):
            await servers.run(gone.run, "s_1", "p_1", {})


async def test_agents_see_only_the_tools_that_are_allowed_for_them(home: Path) -> None:
    """X12"""
    agents = {
        "main": AgentSettings(),
        "reader": AgentSettings(mcp=("*__say",)),
        "writer": AgentSettings(mcp_without=("one__say",)),
        "other": AgentSettings(),
    }
    server = bad_server(agents=("main", "reader", "writer"))
    async with open_servers(home, {"one": server}, agents=agents) as servers:
        await servers.ready("one")
        assert servers.toolset("reader").names == ("one__say", "output")
        assert servers.toolset("writer").names == ("one__do", "one__do_again", "output")
        assert servers.toolset("other").names == ()


async def test_each_session_or_user_has_its_own_server_if_the_scope_says_so(home: Path) -> None:
    """B1, B3, X23"""
    settings = {"mine": bad_server(scope="session"), "ours": bad_server(scope="principal"), "all": bad_server()}
    async with open_servers(home, settings) as servers:
        await servers.ready("mine", "ours", "all")

        async def pids(name: str) -> list[str]:
            who = [("s_1", "p_1"), ("s_1", "p_1"), ("s_2", "p_1"), ("s_3", "p_2")]
            return [(await servers.call(f"{name}__do", *each, what="pid")).text for each in who]

        one, again, two, three = await pids("mine")
        assert one == again and len({one, two, three}) == 3
        one, again, two, three = await pids("ours")
        assert one == again == two != three
        assert len(set(await pids("all"))) == 1
        folders = {path.name for path in (home / "mcp").iterdir()}
        await servers.servers.end_holder("s_1")
        assert len(folders - {path.name for path in (home / "mcp").iterdir()}) == 1
        assert servers.state("mine").running == 3  # those of the other sessions, and the one that was tested


async def test_an_idle_server_is_stopped_and_started_again_by_a_call(home: Path) -> None:
    """L16"""
    async with open_servers(home, {"good": bad_server(idle_stop=0.001)}) as servers:
        await servers.ready("good")
        first = (await servers.call("good__do", what="pid")).text
        await anyio.sleep(0.01)
        await servers.servers.check()
        assert servers.state("good").state == "stopped"
        assert (await servers.call("good__do", what="pid")).text != first


async def test_a_sandboxed_server_sees_neither_the_gateway_nor_the_secrets_of_others(home: Path) -> None:
    """X15, X18: only its own variables, and no network if it is switched off."""
    secret = Secret("swordfish-12345")
    settings = bad_server(sandbox=True, env={"KEY": "env:KEY", "PLAIN": "text"})
    async with open_servers(home, {"box": settings}, secrets={"env:KEY": secret, "env:OTHER": secret}) as servers:
        await servers.ready("box")
        seen = json.loads((await servers.call("box__do", what="environment")).text)
        assert seen["KEY"] == "swordfish-12345"
        assert seen["HOME"] == "/home/agent"
        assert "OTHER" not in seen and "PYTEST_CURRENT_TEST" not in seen
        looks = f"ls {home}; ls /root; cat /etc/shadow; touch ~/cache && touch /workspace/file && echo written"
        done = (await servers.call("box__do", what="run", command=looks)).text
        assert done.count("No such file or directory") + done.count("Permission denied") >= 3
        assert "written" in done
        assert (home / "mcp" / "box" / "home" / "cache").exists()


def test_a_server_gets_only_its_own_secrets() -> None:
    """X15"""
    secrets = {"env:A": Secret("a"), "env:B": Secret("b"), "env:C": Secret("c")}
    settings = bad_server(env={"KEY": "env:A"}, headers={"x": "env:B"})
    assert set(own_secrets(settings, secrets)) == {"env:A", "env:B"}


async def test_a_secret_in_the_error_output_is_not_shown(home: Path) -> None:
    """X15"""
    settings = bad_server(env={"KEY": "env:KEY"}, exit=3, says="the key swordfish-12345 is wrong")
    async with open_servers(home, {"bad": settings}, secrets={"env:KEY": Secret("swordfish-12345")}) as servers:
        with pytest.raises(ServiceFailed, match=r"the key \[secret\] is wrong"):
            await servers.ready("bad")
        assert "swordfish" not in repr(servers.servers.logs("bad"))


async def test_many_stubborn_servers_are_stopped_at_once(home: Path) -> None:
    """E3: within the time of one."""
    stubborn = bad_server(ignores_sigterm=True, ignores_input_end=True)
    async with open_servers(home, {f"s{number}": stubborn for number in range(8)}) as servers:
        await servers.ready(*(f"s{number}" for number in range(8)))
        began = time.monotonic()
        one = servers.servers.configured("s0")
        assert one is not None
        await one.running[""].stop()
        alone = time.monotonic() - began
        began = time.monotonic()
    assert time.monotonic() - began < 4 * alone


async def test_null_arguments_are_left_out(home: Path) -> None:
    """E4"""
    async with open_servers(home, {"good": bad_server(record="record")}) as servers:
        await servers.ready("good")
        await servers.call("good__say", text="a", other=None)
        assert 'say {"text": "a"}' in (home / "mcp" / "good" / "work" / "record").read_text()
        with pytest.raises(ToolFailed, match="not a valid JSON object"):
            tool = servers.toolset().get("good__say")
            assert tool is not None
            await tool.run(servers.context(), "[1]")


async def test_pictures_sounds_and_resources_reach_the_model_as_media(home: Path) -> None:
    """D3, D8"""
    data = base64.b64encode(png()).decode()
    result = {
        "content": [
            {"type": "text", "text": "look\u200b: \x1b[31m"},
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///a.png", "blob": data, "mimeType": "image/png"}},
            {"type": "resource_link", "uri": "file:///b", "name": "b", "description": "another"},
            {"type": "image", "data": "no base64!", "mimeType": "image/png"},
            {"type": "audio", "data": data[:40], "mimeType": "audio/wav"},
        ],
    }
    async with open_servers(home, {"good": bad_server()}) as servers:
        await servers.ready("good")
        found = await servers.call("good__do", what="result", result=result)
        assert [media.media_type for media in found.media] == ["image/png", "image/png"]
        assert found.text.startswith("look: [31m\n[picture: image/png, 2 x 2]\n[file:///a.txt]\ninside\n")
        assert "[link: file:///b, another]" in found.text
        assert "not valid base64" in found.text
        assert "[sound:" in found.text


async def test_structured_content_is_shown_unless_the_text_says_the_same(home: Path) -> None:
    """D1"""
    async with open_servers(home, {"good": bad_server()}) as servers:
        await servers.ready("good")
        both = {"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}}
        assert (await servers.call("good__do", what="result", result=both)).text == '{"a": 1}'
        only = {"content": [], "structuredContent": {"a": [1, 2]}}
        assert (await servers.call("good__do", what="result", result=only)).text == '{"a":[1,2]}'
        nothing = await servers.call("good__do", what="result", result={"content": []})
        assert nothing.text == "[no content]"
        failed = {"content": [{"type": "text", "text": "no such city"}], "isError": True}
        found = await servers.call("good__do", what="result", result=failed)
        assert (found.failed, found.text) == (True, "no such city")


async def test_an_error_of_the_server_is_told_to_the_model_in_its_words(home: Path) -> None:
    """D1, X19"""
    async with open_servers(home, {"good": bad_server()}) as servers:
        await servers.ready("good")
        with pytest.raises(ToolFailed, match=r"^good__do: the city is unknown$"):
            await servers.call("good__do", what="error", message="the city\u202e is unknown")
        with pytest.raises(ToolFailed) as caught:
            await servers.call("good__do", what="error", message="x" * 100_000)
        assert len(caught.value.message) < 3000


async def test_progress_is_shown(home: Path) -> None:
    """D6"""
    async with open_servers(home, {"good": bad_server()}) as servers:
        await servers.ready("good")
        await servers.call("good__do", what="progress")
        assert servers.progress == ["1/2 going\n", "2/2 going\n"]


async def test_a_server_can_ask_the_person_field_by_field(home: Path) -> None:
    """S29: and the question says who asks."""
    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "string", "enum": ["small", "large"], "title": "Size"},
            "count": {"type": "integer", "minimum": 1},
            "gift": {"type": "boolean"},
            "note": {"type": "string", "description": "What to write"},
        },
        "required": ["size", "count"],
    }
    async with open_servers(home, {"shop": bad_server()}) as servers:
        await servers.ready("shop")
        servers.answers = ["large", "many", "3", "yes", ""]
        found = await servers.call("shop__do", what="ask", message="Your order?", schema=schema)
        assert json.loads(found.text) == {
            "action": "accept",
            "content": {"size": "large", "count": 3, "gift": True},
        }
        questions = [question for question, _ in servers.asked]
        assert all(question.startswith("The server 'shop' asks: \"Your order?\"") for question in questions)
        assert servers.asked[0][1] == ("small", "large", "decline")
        assert "must be a whole number" in questions[2]
        servers.answers = ["decline"]
        found = await servers.call("shop__do", what="ask", message="Again?", schema=schema)
        assert json.loads(found.text)["action"] == "decline"


async def test_the_time_limit_of_a_call_does_not_run_while_a_person_is_asked(home: Path) -> None:
    """S30"""
    async with open_servers(home, {"shop": bad_server(call_timeout=0.5)}) as servers:
        await servers.ready("shop")
        slow = servers.context()

        async def ask(question: str, choices: object) -> str:
            await anyio.sleep(1)
            return "yes"

        import msgspec

        tool = servers.toolset().get("shop__do")
        assert tool is not None
        schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
        arguments = json.dumps({"what": "ask", "message": "Sure?", "schema": schema})
        found = await tool.run(msgspec.structs.replace(slow, ask=ask), arguments)
        assert '"sure": true' in str(found)


async def test_resources_are_listed_and_read_by_tools(home: Path) -> None:
    """D1"""
    resources = [{"uri": "memo://1", "name": "first", "description": "A memo"}]
    async with open_servers(home, {"good": bad_server(resources=resources)}) as servers:
        await servers.ready("good")
        assert (await servers.call("good__list_resources")).text == "memo://1  first: A memo"
        assert (await servers.call("good__read_resource", uri="memo://1")).text == "[memo://1]\nthe content"


async def test_prompts_are_texts_for_the_user_to_send(home: Path) -> None:
    """D1"""
    prompts = [{"name": "greet", "description": "Greets.", "arguments": [{"name": "who", "required": True}]}]
    async with open_servers(home, {"good": bad_server(prompts=prompts)}) as servers:
        await servers.ready("good")
        [(server, prompt)] = servers.servers.prompts("main")
        assert (server, prompt.name) == ("good", "greet")

        async def text(name: str, **arguments: str) -> str:
            return await servers.servers.prompt("main", "good", name, arguments, session="s_1", principal="p_1")

        assert await text("greet", who="Anna") == 'greet {"who": "Anna"}'
        with pytest.raises(ToolFailed, match="needs who="):
            await text("greet")
        with pytest.raises(NotFound):
            await text("other")


async def test_a_call_that_is_cancelled_leaves_the_connection(home: Path) -> None:
    """E1, S30"""
    async with open_servers(home, {"good": bad_server(record="record")}) as servers:
        await servers.ready("good")
        pid = (await servers.call("good__do", what="pid")).text
        with anyio.move_on_after(0.2):
            await servers.call("good__do", what="never")
        record = home / "mcp" / "good" / "work" / "record"
        await servers.until(lambda: "notifications/cancelled" in record.read_text())
        assert (await servers.call("good__do", what="pid")).text == pid


async def test_a_hundred_conversations_at_once_start_one_server(home: Path) -> None:
    """L25, A9"""
    async with open_servers(home, {"good": bad_server(record="record")}) as servers:
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(servers.servers.part, "main", "p_1")
        record = (home / "mcp" / "good" / "work" / "record").read_text()
        assert record.count("initialize\n") == 1


async def test_an_eager_server_starts_with_the_gateway_in_the_background(home: Path) -> None:
    """E4"""
    async with open_servers(home, {"good": bad_server(start="eager")}) as servers:
        await servers.until(lambda: servers.state("good").state == "ready")
