"""Records of tool calls that were in progress when their turn ended: every way to end, every kind of tool."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, idle, live_turn, settings
from tests.effects import asked, until
from tidegate.agent import is_balanced
from tidegate.errors import StoreFull
from tidegate.sessions.lifecycle import HookPostponed, Write
from tidegate.slash_commands import build
from tidegate.store import Db, SessionRow, intents, messages, sessions
from tidegate.tools import Tool, ToolContext, Toolset, tool
from tidegate.tools.tool import Effect
from tidegate.values import Message, ToolEnded, ToolStarted

pytestmark = pytest.mark.anyio

UNKNOWN = "Interrupted: its effect is unknown, and it was not run again."
HARMLESS = "Interrupted before it finished."
NOT_RUN = "Not run: "

KINDS: dict[str, tuple[Effect, bool | None, str]] = {
    "look": ("read", None, HARMLESS),
    "look_once": ("read", False, UNKNOWN),
    "fetch": ("network", True, UNKNOWN),
    "post": ("network", None, UNKNOWN),
    "note": ("write", None, UNKNOWN),
    "hand_over": ("write", True, UNKNOWN),
    "launch": ("execute", None, UNKNOWN),
}
"""Tools that have their effect and then do not return: effect, whether they may be run again, expected record."""

EXPECTED = {kind: text for kind, (_, _, text) in KINDS.items()} | {"quick": "quick is done", "later": NOT_RUN}
ASKING = {"wonder": UNKNOWN, "guarded": NOT_RUN}
"""One asks a person while it runs, the other needs an approval before it runs."""


class World:
    """The effects of tools, as files: they outlive a core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: Counter[str] = Counter()
        self.may_finish = anyio.Event()
        folder.mkdir(exist_ok=True)

    def act(self, name: str) -> None:
        self.runs[name] += 1
        (self.folder / name).touch()

    @property
    def effects(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def lasting(self, name: str, effect: Effect, repeatable: bool | None) -> Tool:
        async def run(ctx: ToolContext) -> str:
            """Has its effect, and does not return."""
            self.act(name)
            await self.may_finish.wait()
            return f"{name} is done"

        return tool(effect=effect, repeatable=repeatable, parallel=True, timeout=None, name=name)(run)

    def toolset(self) -> Toolset:
        @tool(effect="write", parallel=True)
        async def quick(ctx: ToolContext) -> str:
            """Returns at once."""
            self.act("quick")
            return "quick is done"

        @tool(effect="execute", parallel=True, timeout=None)
        async def wonder(ctx: ToolContext) -> str:
            """Does something, then asks."""
            self.act("wonder")
            return await ctx.ask("And now?", ())

        @tool(effect="execute", parallel=True)
        async def guarded(ctx: ToolContext) -> str:
            """Needs an approval."""
            self.act("guarded")
            return "guarded is done"

        @tool(effect="write")
        async def later(ctx: ToolContext) -> str:
            """Runs alone."""
            self.act("later")
            return "later is done"

        lasting = [self.lasting(name, effect, repeatable) for name, (effect, repeatable, _) in KINDS.items()]
        return Toolset((*lasting, quick, wonder, guarded, later))

    def options(self, model: ScriptedModel, limits: str = "") -> dict[str, Any]:
        toml = settings(model, f"[limits]\ntools_parallel = 20\n{limits}", tools='"world"')
        return {
            "model": model,
            "toml": toml.replace('"autonomous"', '"autonomous"\nrules = ["ask guarded"]'),
            "toolsets": {"world": self.toolset()},
        }


def script(expected: Mapping[str, str]) -> str:
    calls = [name for name in expected if name != "later"]
    return f"[together {' '.join(f'{name} {{}}' for name in (*calls, 'later'))}] [say well]"


async def under_way(gateway: Core, world: World, expected: Mapping[str, str]) -> str:
    """A turn that has called every tool: lasting ones have had their effect, asking ones wait, quick ones are
    committed."""
    accepted = await gateway.accept(script(expected), channel="page")
    if "wonder" in expected:
        await asked(gateway, accepted.turn, 2)
    await until(lambda: world.effects == set(expected) - {"guarded", "later"})
    with anyio.fail_after(WAIT):
        while not any(row.message.role == "tool" for row in await gateway.store.read(messages.journal, accepted.turn)):
            await anyio.sleep(0.001)
    return accepted.turn


async def recorded(gateway: Core, turn: str) -> dict[str, Message]:
    """The tool results of the turn, by tool."""
    rows = await gateway.store.read(messages.journal, turn)
    return {row.message.name: row.message for row in rows if row.message.role == "tool"}


def check(found: Mapping[str, Message], expected: Mapping[str, str], why: str) -> None:
    assert set(found) == set(expected)
    for name, message in found.items():
        begun = expected[name] in (UNKNOWN, HARMLESS)
        assert message.text.startswith(expected[name]), (name, message.text)
        assert message.interrupted is begun and message.failed is (name != "quick")
        assert name == "quick" or why in message.text


async def _stop(gateway: Core, session: str, turn: str) -> None:
    assert await gateway.service.stop(session, ANNA) == turn


async def _interrupt(gateway: Core, session: str, turn: str) -> None:
    assert (await gateway.accept("[say newer]", busy="interrupt")).how == "interrupting"


async def _new(gateway: Core, session: str, turn: str) -> None:
    await build(gateway.service).run("/new", principal=ANNA, channel="page", session=session, agent="main")


async def _end(gateway: Core, session: str, turn: str) -> None:
    assert await gateway.service.end(session, ANNA, "api")


async def _delete(gateway: Core, session: str, turn: str) -> None:
    assert not await gateway.service.delete(session, ANNA), "a hook keeps the rows"


async def _caller_gone(gateway: Core, session: str, turn: str) -> None:
    assert await gateway.components.engine.stop(turn, "because its caller went away", abandoned=True)


WAYS: dict[str, tuple[Callable[[Core, str, str], Awaitable[None]], str]] = {
    "stop": (_stop, "stopped by its user"),
    "interrupt": (_interrupt, "stopped by a newer message"),
    "/new": (_new, "its session ended"),
    "end": (_end, "its session ended"),
    "delete": (_delete, "its session ended"),
    "caller gone": (_caller_gone, "its caller went away"),
}


async def unready(session: SessionRow) -> Write | None:
    raise HookPostponed


@pytest.mark.parametrize("way", WAYS)
async def test_however_a_turn_is_stopped_a_call_that_began_is_never_reported_as_not_run(
    tmp_path: Path, model: ScriptedModel, way: str
) -> None:
    """P05, F4, L04: the effect of a call in progress is unknown, and the row says so; only a call without an intent was
    not run. Live readers receive the same results."""
    go, why = WAYS[way]
    world, expected = World(tmp_path / "world"), EXPECTED | ASKING
    async with core(tmp_path / "home", hooks={"unready": unready}, **world.options(model)) as gateway:
        turn = await under_way(gateway, world, expected)
        log = gateway.service.turn_log(turn)
        assert log is not None
        await go(gateway, log.session, turn)
        assert (await gateway.answered(turn)).state == "stopped"
        check(await recorded(gateway, turn), expected, why)
        assert await gateway.store.read(intents.open_of, turn) == {}
        assert is_balanced(await gateway.store.read(messages.history, log.session))
        started = [event.name for event in log.events if isinstance(event, ToolStarted)]
        ended = {event.name: event for event in log.events if isinstance(event, ToolEnded)}
        assert set(started) == set(ended) == set(expected) - {"later"}
        for name, event in ended.items():
            assert event.excerpt.startswith(expected[name])
            assert event.interrupted is (expected[name] in (UNKNOWN, HARMLESS))
    assert world.effects == set(expected) - {"guarded", "later"}


async def test_whoever_follows_a_one_shot_call_that_is_stopped_is_told_what_was_under_way(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, V18: nothing of the session is kept, so this is the only chance for its readers."""
    world = World(tmp_path / "world")
    async with core(tmp_path / "home", **world.options(model)) as gateway:
        accepted = await gateway.accept(script(EXPECTED), name=None)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await until(lambda: world.effects == set(EXPECTED) - {"later"})
        await gateway.service.abandon(accepted.turn)
        with anyio.fail_after(WAIT):
            await log.ended()
        told = {event.name: event.excerpt for event in log.events if isinstance(event, ToolEnded)}
        assert all(told[kind].startswith(text) for kind, (_, _, text) in KINDS.items())
        assert await gateway.store.read(sessions.get, accepted.session) is None


async def test_when_a_turn_times_out_a_call_that_began_is_never_reported_as_not_run(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, L23: the same for limits.turn_seconds."""
    world = World(tmp_path / "world")
    async with core(tmp_path / "home", **world.options(model)) as gateway:
        turn = await under_way(gateway, world, EXPECTED)
        live_turn(gateway, (await gateway.service.outcome(turn)).session).expire()
        assert (await gateway.answered(turn)).state == "failed"
        check(await recorded(gateway, turn), EXPECTED, "The turn took longer than limits.turn_seconds")


@pytest.mark.parametrize("ended", [False, True])
async def test_a_turn_not_resumed_after_a_crash_reports_begun_calls_as_interrupted(
    tmp_path: Path, model: ScriptedModel, ended: bool
) -> None:
    """P05, S17, F4: the process that ends the turn has other tools than the one that began the calls; their possible
    effects are recorded in the store. The same for a session that had ended when the process died."""
    world, expected = World(tmp_path / "world"), EXPECTED | ASKING
    options = world.options(model, "resumes = 0")
    async with core(tmp_path / "home", drain=None, **options) as gateway:
        turn = await under_way(gateway, world, expected)
        if ended:
            session = (await gateway.service.outcome(turn)).session
            await gateway.store.write(sessions.end, session, reason="new", hooks=(), now=gateway.components.clock())
    options["toml"] = settings(model, "[limits]\nresumes = 0", tools='"clock"')
    async with core(tmp_path / "home", **options) as gateway:
        outcome = await gateway.answered(turn)
        assert outcome.state == ("stopped" if ended else "failed")
        check(await recorded(gateway, turn), expected, "its session ended" if ended else "was given up")
        assert is_balanced(await gateway.store.read(messages.history, outcome.session))
    assert all(times == 1 for times in world.runs.values())


async def test_a_resumed_turn_reports_calls_of_removed_tools_as_interrupted(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, F4: "there is no such tool" is only reported for a call that did not begin."""
    world, expected = World(tmp_path / "world"), EXPECTED | ASKING
    async with core(tmp_path / "home", drain=None, **world.options(model)) as gateway:
        turn = await under_way(gateway, world, expected)
    async with core(tmp_path / "home", model=model, tools='"clock"') as gateway:
        assert (await gateway.answered(turn)).text == "well"
        found = await recorded(gateway, turn)
        for name in ("guarded", "later"):
            assert found.pop(name).text == f"There is no tool named {name!r} here."
        check(found, {name: text for name, text in expected.items() if name in found}, "The gateway stopped")
        assert await gateway.store.read(intents.open_of, turn) == {}


async def test_an_interrupted_call_is_not_repeated_because_its_tool_became_read_only(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, F4: the tool's properties at the time it began decide."""
    world = World(tmp_path / "world")
    options: dict[str, Any] = {"model": model, "tools": '"one"'}
    for effect, drain in (("write", None), ("read", 5)):
        toolset = Toolset((world.lasting("deed", effect, None),))  # type: ignore[arg-type]
        async with core(tmp_path / "home", toolsets={"one": toolset}, drain=drain, **options) as gateway:
            if drain is None:
                turn = (await gateway.accept("[tool deed {}] [say well]")).turn
                await until(lambda: bool(world.effects))
            else:
                assert (await gateway.answered(turn)).text == "well"
                assert (await recorded(gateway, turn))["deed"].text.startswith(UNKNOWN)
        world.may_finish.set()
    assert world.runs == {"deed": 1}


async def test_an_intent_of_an_older_format_counts_as_having_effects(tmp_path: Path, model: ScriptedModel) -> None:
    """P05, L18: if its turn is not resumed. If the turn continues, the tool decides whether it runs again."""
    world = World(tmp_path / "world")

    def age(db: Db) -> None:
        db.execute("UPDATE intents SET read_only = 0, repeatable = NULL")

    for name, limits in (("given up", "resumes = 0"), ("goes on", "")):
        world.may_finish = anyio.Event()
        options = world.options(model, limits)
        async with core(tmp_path / name, drain=None, **options) as gateway:
            turn = (await gateway.accept("[together look {} note {}] [say well]")).turn
            await until(lambda: world.effects == {"look", "note"})
            await gateway.store.write(age)
        world.may_finish.set()
        async with core(tmp_path / name, **options) as gateway:
            await gateway.answered(turn)
            found = await recorded(gateway, turn)
            assert found["note"].text.startswith(UNKNOWN)
            assert found["look"].text.startswith(UNKNOWN if limits else "look is done")
        for effect in world.folder.iterdir():
            effect.unlink()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_refused_by_the_store_leaves_the_effect_unknown(
    tmp_path: Path, model: ScriptedModel, kind: str
) -> None:
    """P05, P02: the tool has finished and its row was refused; the turn fails and does not claim that nothing ran."""
    world, refusing = World(tmp_path / "world"), False

    def fault(point: str, names: tuple[str, ...]) -> None:
        if refusing and point == "before-commit" and "settle" not in names:
            raise StoreFull("disk is full")

    async with core(tmp_path / "home", fault=fault, **world.options(model)) as gateway:
        accepted = await gateway.accept(f"[tool {kind} {{}}] [say well]")
        await until(lambda: bool(world.effects))
        refusing = True
        world.may_finish.set()
        assert (await gateway.answered(accepted.turn)).state == "failed"
        refusing = False
        await idle(gateway, accepted.session)
        check(await recorded(gateway, accepted.turn), {kind: EXPECTED[kind]}, "disk is full")
        assert (await gateway.say("[say free]")).text == "free"


@pytest.mark.parametrize("kind", ["read", "write", "execute", "network"])
@pytest.mark.parametrize("how", ["slow", "broken", "patient"])
async def test_a_tool_that_times_out_or_fails_leaves_its_effect_unknown(
    home: Path, model: ScriptedModel, kind: Effect, how: str
) -> None:
    """P05, L23: it took too long, failed, or something it awaited failed; the turn continues, and the model is
    informed."""

    @tool(effect=kind, timeout=0.02)
    async def slow(ctx: ToolContext) -> str:
        """Never returns."""
        await anyio.sleep_forever()
        return ""

    @tool(effect=kind)
    async def broken(ctx: ToolContext) -> str:
        """Fails."""
        raise RuntimeError(ctx.session)

    @tool(effect=kind, timeout=None)
    async def patient(ctx: ToolContext) -> str:
        """Has its own timeout."""
        raise TimeoutError

    options = {"tools": '"cut"', "toolsets": {"cut": Toolset((slow, broken, patient))}}
    async with core(home, model=model, **options) as gateway:
        outcome = await gateway.say(f"[tool {how} {{}}] [say went on]")
        assert outcome.text == "went on"
        result = (await recorded(gateway, outcome.turn))[how]
        why = {"slow": "did not finish within 0.02 s", "broken": "RuntimeError", "patient": "TimeoutError"}[how]
        assert why in result.text and result.failed
        assert (result.text.startswith(UNKNOWN), result.interrupted) == ((kind != "read"),) * 2


async def test_an_unanswered_question_of_a_running_tool_does_not_claim_that_nothing_was_done(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, S29: the call that asks has begun; if the turn ends with the question, its effect is unknown."""
    world = World(tmp_path / "world")
    options = world.options(model)
    for number, unanswered in enumerate(("go_on", "end")):
        toml = options["toml"].replace("rules =", f'unanswered = "{unanswered}"\nrules =')
        async with core(tmp_path / f"home {number}", **{**options, "toml": toml}) as gateway:
            accepted = await gateway.accept("[tool wonder {}] [say well]", channel="page")
            await asked(gateway, accepted.turn)
            await gateway.store.write(lambda db: db.execute("UPDATE approvals SET expires = 1"))
            await gateway.service.questions.expire()
            outcome = await gateway.answered(accepted.turn)
            text = (await recorded(gateway, accepted.turn))["wonder"].text
            if unanswered == "end":
                assert outcome.state == "failed" and text.startswith(UNKNOWN)
            else:
                assert outcome.text == "well" and text == "Nobody answered in time (limits.answer_within)."


async def test_the_model_reads_interrupted_calls_next_and_undo_and_retry_work(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """P05, P02, S32: interrupted calls stay in the conversation until the user undoes them; a retry asks the model
    again and repeats no call automatically."""
    world = World(tmp_path / "world")
    async with core(tmp_path / "home", **world.options(model)) as gateway:
        turn = await under_way(gateway, world, EXPECTED)
        session = (await gateway.service.outcome(turn)).session
        await gateway.service.stop(session, ANNA)
        await gateway.answered(turn)
        await gateway.say("[say go on]")
        shown = [said["content"] for said in gateway.requests()[-1]["messages"] if said["role"] == "tool"]
        assert sum(text.startswith(UNKNOWN) for text in shown) == list(EXPECTED.values()).count(UNKNOWN)
        await gateway.service.operations.undo(session, ANNA)
        world.may_finish.set()
        again = await gateway.service.operations.retry(session, ANNA)
        assert (await gateway.answered(again.turn)).text == "well"
        assert all(text.endswith(" is done") for text in map(str, await texts(gateway, again.turn)))
        assert is_balanced(await gateway.store.read(messages.history, session))
    assert model.stats()["refusals"] == []


async def texts(gateway: Core, turn: str) -> list[str]:
    return [message.text for message in (await recorded(gateway, turn)).values()]
