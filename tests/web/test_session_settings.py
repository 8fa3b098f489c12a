"""The settings of conversations, and reloading their configuration."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import settings
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import call, chat
from tidegate.store import Db
from tidegate.store import settings as stored
from tidegate.web.api.session_settings import MOST_SETTINGS

pytestmark = pytest.mark.anyio


async def session_of(h: InProcessGateway, name: str, key: str | None = None) -> str:
    """Make a conversation with that name and one answered turn. Returns its id."""
    assert (await chat(h, session=name, key=key)).status == 200
    found = (await call(h, "GET", "/api/sessions", key=key)).json["sessions"]
    return str(next(view["id"] for view in found if view["name"] == name))


async def command(h: InProcessGateway, session: str, line: str, key: str | None = None) -> None:
    reply = await call(h, "POST", "/api/messages", json={"text": line, "session": session}, key=key)
    assert reply.status == 200, reply.body


async def test_the_owner_lists_and_clears_every_sessions_settings(gateway: InProcessGateway) -> None:
    """S06, X06: of all users; anyone else gets 404."""
    anna, bert = await gateway.add_key("anna"), await gateway.add_key("bert")
    theirs, own = await session_of(gateway, "a", anna), await session_of(gateway, "o")
    await command(gateway, theirs, "/model other", anna)
    await command(gateway, theirs, "/reasoning high", anna)
    await command(gateway, own, "/reasoning low")
    answer = (await call(gateway, "GET", "/api/settings")).json
    found = {(row["session"], row["key"]): (row["value"], row["source"], row["expires"]) for row in answer["settings"]}
    assert found == {
        (theirs, "model"): ("other", "command", None),
        (theirs, "reasoning"): ("high", "command", None),
        (own, "reasoning"): ("low", "command", None),
    }
    assert answer["next"] is None
    assert (await call(gateway, "GET", "/api/settings", key=anna)).status == 403
    model = f"/api/sessions/{theirs}/settings/model"
    refused = await call(gateway, "DELETE", model, key=bert)
    assert (refused.status, refused.error["code"]) == (404, "session_not_found")
    assert (await call(gateway, "DELETE", model)).status == 204
    gone = await call(gateway, "DELETE", model)
    assert (gone.status, gone.error["code"]) == (404, "setting_not_found")
    view = (await call(gateway, "GET", f"/api/sessions/{theirs}", key=anna)).json
    assert view["model"] == "main" and set(view["settings"]) == {"reasoning"}
    assert (await call(gateway, "DELETE", f"/api/sessions/{theirs}/settings/reasoning", key=anna)).status == 204
    assert [row["session"] for row in (await call(gateway, "GET", "/api/settings")).json["settings"]] == [own]


async def test_a_setting_that_has_expired_is_not_listed(gateway: InProcessGateway) -> None:
    """S06: it no longer applies, even before it is swept."""
    session = await session_of(gateway, "n")
    now = gateway.components.clock()
    for key, expires in (("past", now - 1), ("future", now + 1000)):
        await gateway.store.write(stored.put, session, key, 1, "test", now, expires)
    [row] = (await call(gateway, "GET", "/api/settings")).json["settings"]
    assert (row["key"], row["expires"]) == ("future", now + 1000)


async def test_settings_are_read_page_by_page_to_the_last(gateway: InProcessGateway) -> None:
    """S06: more than one page, even when made at the same moment; expired ones take no space on a page."""
    now = gateway.components.clock()
    session = await session_of(gateway, "n")

    def choose(db: Db) -> None:
        for number in range(MOST_SETTINGS + 7):
            stored.put(db, session, f"key:{number}", number, "test", now + number // 100)
            stored.put(db, session, f"past:{number}", number, "test", now + number // 100, now)

    await gateway.store.write(choose)
    seen: list[int] = []
    query: dict[str, str] = {"limit": str(MOST_SETTINGS)}
    for _ in range(3):
        answer = (await call(gateway, "GET", "/api/settings", params=query)).json
        seen += [row["value"] for row in answer["settings"]]
        if answer["next"] is None:
            break
        query = {"limit": str(MOST_SETTINGS), "before": answer["next"]}
    assert sorted(seen) == list(range(MOST_SETTINGS + 7))
    assert [value // 100 for value in seen] == sorted((value // 100 for value in seen), reverse=True)
    for wrong in ("x", "1:2", "y:s_1:model"):
        refused = await call(gateway, "GET", "/api/settings", params={"before": wrong})
        assert (refused.status, refused.error["param"]) == (400, "before")


async def test_a_conversation_reloads_its_prompt_on_request(home: Path, model: ScriptedModel) -> None:
    """A4, P18, X06: by its principal or the owner, and only on request; the response says whether anything changed."""
    async with in_process_gateway(home, model=model) as h:
        anna = await h.add_key("anna")
        theirs = await session_of(h, "a", anna)
        assert (await call(h, "POST", f"/api/sessions/{theirs}/reload", key=anna)).json == {"changed": False}
    changed = settings(model).replace("You are a test.", "You are another.")
    async with in_process_gateway(home, toml=changed) as h:
        bert = await h.add_key("bert")

        async def prompt() -> str:
            assert (await chat(h, session="a", key=anna)).status == 200
            return str(model.recorded[-1].decoded()["messages"][0]["content"])

        assert "You are a test." in await prompt()
        reload = f"/api/sessions/{theirs}/reload"
        assert (await call(h, "POST", reload, key=bert)).status == 404
        assert "You are a test." in await prompt()
        assert (await call(h, "POST", reload)).json == {"changed": True}
        assert "You are another." in await prompt()
        assert (await call(h, "POST", reload, key=anna)).json == {"changed": False}


async def test_an_impossible_reload_is_a_conflict(home: Path, model: ScriptedModel) -> None:
    """V19, H20: during a turn, after the end, and when the agent is no longer configured."""
    extra = '[agents.writer]\nmodel = "main"\nprompt = "Write."\n'
    async with in_process_gateway(home, extra, model=model) as h:
        accepted = (await call(h, "POST", "/api/messages", json={"text": "x [hold there]"})).json
        reload = f"/api/sessions/{accepted['session']}/reload"
        refused = await call(h, "POST", reload)
        assert (refused.status, refused.error["code"]) == (409, "mid_turn")
        model.release("there")
        await h.service.wait(accepted["turn"])
        await call(h, "POST", f"/api/sessions/{accepted['session']}/end")
        refused = await call(h, "POST", reload)
        assert (refused.status, refused.error["code"]) == (409, "session_ended")
        writer = (await call(h, "POST", "/api/messages", json={"text": "x", "agent": "writer"})).json
        await h.service.wait(writer["turn"])
    async with in_process_gateway(home, model=model) as h:
        refused = await call(h, "POST", f"/api/sessions/{writer['session']}/reload")
        assert (refused.status, refused.error["code"]) == (409, "agent_not_configured")
