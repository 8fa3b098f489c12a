"""Approvals for a conversation or for good: stored with the answer, for what was shown and nothing else."""

from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core, settings
from tests.effects import EffectRecord, ask, asked, asking, configured, results
from tests.tasks import AGENTS, task
from tidegate.errors import Conflict, NotAllowed, NotFound, Refused
from tidegate.security import Principal
from tidegate.store import AuditRow, approval_rules, audit
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.turns import QuestionView, RuleView
from tidegate.values import ApprovalScope

pytestmark = pytest.mark.anyio

ADAM = Principal(id="p_adam", name="adam", role="admin")
GWEN = Principal(id="p_gwen", name="gwen", role="guest")
PUSH = '[tool push {"what": "b", "force": true}] [say done]'
BUILD = '[tool build {"what": "b"}] [say done]'


async def approve(gateway: Core, scope: ApprovalScope, text: str = PUSH, by: Principal = OWNER, **fields: Any) -> str:
    """Starts a turn that asks, and approves the call with this scope. Returns its conversation."""
    turn, [question] = await ask(gateway, text, **{"principal": by.id, **fields})
    await gateway.service.questions.answer(question.id, by, "approved", scope=scope)
    assert (await gateway.answered(turn)).text == "done"
    return (await gateway.service.outcome(turn)).session


async def is_asked(
    gateway: Core,
    text: str = PUSH,
    principal: Principal = OWNER,
    *,
    scope: ApprovalScope | None = None,
    seen: list[QuestionView] | None = None,
    **fields: Any,
) -> bool:
    """True if the calls of this message need an approval. It is denied, or approved with this scope."""
    accepted = await gateway.accept(text, **{"channel": "page", "principal": principal.id, **fields})
    found = [] if seen is None else seen
    decision: Literal["approved", "denied"] = "denied" if scope is None else "approved"
    with anyio.fail_after(WAIT):
        while (await gateway.service.outcome(accepted.turn)).state in ("queued", "running"):
            for person in {principal, OWNER}:
                for view in await gateway.service.questions.open_for(person, session=accepted.session):
                    found.append(view)
                    await gateway.service.questions.answer(view.id, person, decision, scope=scope or "call")
            await anyio.sleep(0.001)
    return bool(found)


async def stored(gateway: Core, principal: Principal = OWNER) -> list[RuleView]:
    return await gateway.service.questions.stored.listing(principal)


async def rule_events(gateway: Core) -> list[AuditRow]:
    return await gateway.store.read(lambda db: audit.listing(db, kind="rule"))


# -- how far it reaches ----------------------------------------------------------------------------------------------


async def test_an_approval_for_the_conversation_covers_its_further_calls_and_no_other_conversation(
    home: Path, model: ScriptedModel
) -> None:
    """X14: and an approval of one call covers nothing else."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await approve(gateway, "call", by=ANNA)
        assert await is_asked(gateway, principal=ANNA)
        session = await approve(gateway, "conversation", by=ANNA)
        deeds.done.clear()
        assert (await gateway.say('[tool push {"what": "c"}] [say done]', channel="page")).text == "done"
        assert deeds.done == ["c"]
        assert await is_asked(gateway, principal=ANNA, name="other")
        [rule] = await stored(gateway, ANNA)
        assert (rule.conversation, rule.person, rule.given_by, rule.tool, rule.uses) == (
            session, "anna", "anna", "push", 1,
        )  # fmt: skip


async def test_an_approval_for_good_covers_all_conversations_of_the_same_person_and_agent(
    home: Path, model: ScriptedModel
) -> None:
    """X14, X11: also where nobody can be asked, but for nobody else and no other agent."""
    deeds = EffectRecord()
    extra = '[agents.other]\nmodel = "main"\ntools = ["deeds"]\nrules = ["ask push"]'
    async with asking(home, model, deeds, extra) as gateway:
        await approve(gateway, "always")
        deeds.done.clear()
        for fields in ({"name": "other"}, {"name": None}, {"name": "api", "channel": "http"}):
            said = await gateway.say('[tool push {"what": "c"}] [say done]', principal=OWNER.id, **fields)
            assert said.text == "done"
        assert deeds.done == ["c", "c", "c"]
        assert await is_asked(gateway, principal=ANNA)
        assert await is_asked(gateway, agent="other", name="with another agent")
        [rule] = await stored(gateway)
        assert (rule.conversation, rule.agent, rule.call, rule.reasons) == (None, "main", "", ("rule: ask push",))


async def test_a_tool_that_executes_is_covered_only_with_exactly_the_same_arguments(
    home: Path, model: ScriptedModel
) -> None:
    """X12, X14: a command that begins like an approved one is asked about."""
    deeds = EffectRecord()
    config = configured(model, rules=("ask build", "ask effect:execute"))
    async with asking(home, model, deeds, config=config) as gateway:
        await approve(gateway, "always", BUILD)
        assert not await is_asked(gateway, '[tool build { "what" : "b" }] [say done]', name="other")
        for what in ("b; rm -r .", "B", "b ", ""):
            assert await is_asked(gateway, f'[tool build {{"what": "{what}"}}] [say done]', name="other")
        assert deeds.done == ["b", "b"]
        [rule] = await stored(gateway)
        assert rule.call == "build\nwhat: b" and "repeat exactly this call of build in" in rule.allows


async def test_the_question_states_what_each_approval_allows(home: Path, model: ScriptedModel) -> None:
    """S29, X14: to whoever may answer; a member is not offered an approval for good."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await gateway.know(ADAM)
        whole = (
            "The agent main may call push with any arguments in {} without asking, as long as the only reason to ask is"
        )
        for person, scopes in ((ANNA, 2), (ADAM, 3), (OWNER, 3)):
            turn, [question] = await ask(gateway, principal=person.id)
            said = [(choice.scope, choice.allows) for choice in question.scopes]
            assert (
                said
                == [
                    ("call", "Only this call."),
                    ("conversation", f"{whole.format('this conversation')} 'rule: ask push'."),
                    ("always", f"{whole.format(f'every conversation of {person.name}')} 'rule: ask push'."),
                ][:scopes]
            )
            [view] = await gateway.service.questions.open_for(person)
            assert view.scopes == question.scopes
            await gateway.service.questions.answer(question.id, person, "denied")
            await gateway.answered(turn)


async def test_other_calls_that_already_wait_are_approved_with_it(home: Path, model: ScriptedModel) -> None:
    """X14: nobody is asked the same again by a call beside it; calls that it does not cover wait on."""
    deeds = EffectRecord()
    config = configured(model, rules=("ask note",))
    both = '[together push {"what": "a"} push {"what": "b"}] [tool note {"what": "n"}] [say done]'
    async with asking(home, model, deeds, config=config) as gateway:
        accepted = await gateway.accept(both, channel="page")
        first, second = await asked(gateway, accepted.turn, 2)
        other = await gateway.accept(PUSH, channel="page", name="other")
        [elsewhere] = await asked(gateway, other.turn)
        await gateway.service.questions.answer(first.id, ANNA, "approved", scope="conversation")
        assert (await gateway.service.questions.get(second.id, ANNA)).state == "approved"
        assert (await gateway.service.questions.get(elsewhere.id, ANNA)).state == "open"
        *_, note = await asked(gateway, accepted.turn, 3)
        assert note.tool == "note" and sorted(deeds.done) == ["a", "b"]
        for question in (note, elsewhere):
            await gateway.service.questions.answer(question.id, ANNA, "denied")
        assert (await gateway.answered(accepted.turn)).text == (await gateway.answered(other.turn)).text == "done"
        recorded = await gateway.store.read(lambda db: audit.listing(db, kind="approval"))
        assert {row.principal for row in recorded if row.subject.startswith(second.id)} == {ANNA.id}


# -- who may give it -------------------------------------------------------------------------------------------------


async def test_only_those_with_the_right_store_an_approval_for_good(home: Path, model: ScriptedModel) -> None:
    """X11: a member's is refused with the name of the right, and the call still waits."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await gateway.know(ADAM)
        turn, [question] = await ask(gateway)
        with pytest.raises(NotAllowed, match="for all conversations: this requires the role owner or admin, and yours"):
            await gateway.service.questions.answer(question.id, ANNA, "approved", scope="always")
        assert await stored(gateway, ANNA) == [] and deeds.done == []
        await gateway.service.questions.answer(question.id, ANNA, "denied")
        await gateway.answered(turn)
        await approve(gateway, "always", by=ADAM)
        assert not await is_asked(gateway, principal=ADAM, name="other")


async def test_an_approval_in_a_guests_conversation_is_given_by_the_owner_and_holds_only_there(
    home: Path, model: ScriptedModel
) -> None:
    """X11: the guest cannot give it; it does not hold in the owner's own conversations."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await gateway.know(GWEN)
        for scope in ("conversation", "always"):
            turn, [question] = await ask(gateway, principal=GWEN.id)
            with pytest.raises(NotAllowed):
                await gateway.service.questions.answer(question.id, GWEN, "approved", scope=scope)  # type: ignore[arg-type]
            await gateway.service.questions.answer(question.id, OWNER, "denied")
            await gateway.answered(turn)
        turn, [question] = await ask(gateway, principal=GWEN.id)
        assert question.scopes[-1].allows.count("every conversation of gwen")
        await gateway.service.questions.answer(question.id, OWNER, "approved", scope="always")
        await gateway.answered(turn)
        assert not await is_asked(gateway, principal=GWEN, name="other")
        assert await is_asked(gateway) and await is_asked(gateway, principal=ANNA)


@pytest.mark.parametrize("role", ["guest", "member", None])
async def test_it_ends_with_the_rights_of_the_person_who_gave_it(
    home: Path, model: ScriptedModel, role: str | None
) -> None:
    """X11: whoever may no longer give it has not given it."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await gateway.know(ADAM)
        await approve(gateway, "always", by=ADAM)
        if role is None:
            await gateway.store.write(lambda db: db.execute("DELETE FROM principals WHERE id = ?", (ADAM.id,)) and None)
        else:
            await gateway.store.write(
                lambda db: db.execute("UPDATE principals SET role = ? WHERE id = ?", (role, ADAM.id)) and None
            )
        assert await is_asked(gateway, principal=ADAM, name="other")


async def test_effects_outside_the_sandbox_are_covered_only_by_the_owner(home: Path, model: ScriptedModel) -> None:
    """X11, X14: in anyone's conversation."""
    deeds = EffectRecord()
    deploy = '[tool deploy {"what": "d"}] [say done]'
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway, deploy)
        with pytest.raises(NotAllowed, match="effects outside the sandbox"):
            await gateway.service.questions.answer(question.id, ANNA, "approved", scope="conversation")
        await gateway.service.questions.answer(question.id, OWNER, "approved", scope="conversation")
        await gateway.answered(turn)
        assert not await is_asked(gateway, deploy, principal=ANNA)
        assert await is_asked(gateway, deploy.replace('"d"', '"e"'), principal=ANNA)


# -- when it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [None, 0.05])
@pytest.mark.parametrize("scope", ["conversation", "always"])
async def test_it_survives_restarts_and_kills(
    home: Path, model: ScriptedModel, scope: ApprovalScope, drain: float | None
) -> None:
    """S31, F4: nobody is asked again after a restart, also if the process was killed right after the answer. A kill may
    interrupt the approved call, which is then not run again."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=drain) as gateway:
        turn, [question] = await ask(gateway, principal=OWNER.id)
        await gateway.service.questions.answer(question.id, OWNER, "approved", scope=scope)
    async with asking(home, model, deeds) as gateway:
        assert (await gateway.answered(turn)).text == "done"
        assert not await is_asked(gateway)
        assert len(await stored(gateway)) == 1 and deeds.done in (["a", "b"], ["b"])


async def test_the_answer_and_the_rule_are_stored_together_or_not_at_all(home: Path, model: ScriptedModel) -> None:
    """F4, X14: if the rule cannot be stored, the call is not approved either, and can still be answered."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway, principal=OWNER.id)
        await gateway.store.write(_fill, question.id)
        with pytest.raises(Conflict, match="already 500 stored approvals"):
            await gateway.service.questions.answer(question.id, OWNER, "approved", scope="always")
        assert (await gateway.service.questions.get(question.id, OWNER)).state == "open" and deeds.done == []
        await gateway.service.questions.answer(question.id, OWNER, "approved", scope="conversation")
        assert (await gateway.answered(turn)).text == "done"


def _fill(db: Any, id: str) -> None:
    for number in range(approval_rules.RULES_EACH):
        db.execute(
            "INSERT INTO approval_rules(id, principal, agent, tool, fingerprint, offer, summary, approval, given_by,"
            " given) SELECT ?, ?, 'x', 'x', x'00', offer, '', 'x', 'x', 1 FROM approvals WHERE id = ?",
            (f"ar_{number}", OWNER.id, id),
        )


@pytest.mark.parametrize("how", ["new", "reset", "delete"])
async def test_an_approval_for_a_conversation_ends_with_it(home: Path, model: ScriptedModel, how: str) -> None:
    """V04, B3: the next conversation of the same name asks; approvals for good stay."""
    deeds = EffectRecord()
    config = configured(model, rules=("ask note",))
    async with asking(home, model, deeds, config=config) as gateway:
        session = await approve(gateway, "conversation")
        await approve(gateway, "always", '[tool note {"what": "n"}] [say done]')
        assert await gateway.service.end(session, OWNER, "new" if how == "delete" else how)
        if how == "delete":
            await gateway.service.delete(session, OWNER)
        assert [rule.tool for rule in await stored(gateway)] == ["note"]
        assert await is_asked(gateway)
        assert not await is_asked(gateway, '[tool note {"what": "m"}] [say done]')


async def test_a_removed_rule_asks_again(home: Path, model: ScriptedModel) -> None:
    """S31, X06: its owner and the operator may remove it; for anyone else it does not exist."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        rules = gateway.service.questions.stored
        for remover in (ANNA, OWNER):
            await approve(gateway, "conversation", by=ANNA)
            [rule] = await stored(gateway, ANNA)
            assert await stored(gateway, BERT) == [] and await rules.listing(BERT, person="anna") == []
            assert await rules.listing(OWNER, person="anna") == [rule] == await stored(gateway, OWNER)
            for id in (rule.id, "ar_" + "0" * 32, ""):
                with pytest.raises(NotFound, match="no stored approval"):
                    await rules.remove(id, BERT)
            await rules.remove(rule.id, remover)
            with pytest.raises(NotFound):
                await rules.remove(rule.id, remover)
            assert await is_asked(gateway, principal=ANNA)


# -- the policy stands first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "mode"),
    [
        (("deny push what=b", "ask push"), "balanced"),
        (("ask push what=b", "ask push"), "balanced"),
        ((), "strict"),
    ],
    ids=["denied", "asked for another reason", "a stricter mode"],
)
async def test_a_stricter_policy_is_never_outlived(
    home: Path, model: ScriptedModel, rules: tuple[str, ...], mode: str
) -> None:
    """X14, X11: a denial is final; a reason to ask that the person did not see is asked about."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        await approve(gateway, "always")
        assert not await is_asked(gateway, name="other")
    deeds.done.clear()
    async with asking(home, model, deeds, config=configured(model, mode=mode, rules=rules)) as gateway:
        asked_again = await is_asked(gateway, name="third")
        assert asked_again == (rules[:1] != ("deny push what=b",)) and deeds.done == []
        assert asked_again or results(gateway)[-1] == "Not run: denied (rule: deny push what=b)."
    async with asking(home, model, deeds) as gateway:
        assert not await is_asked(gateway, name="fourth")


async def test_an_approval_in_a_sandbox_does_not_hold_without_one(home: Path, model: ScriptedModel) -> None:
    """X14: the same command, of the same tool, on another backend."""
    deeds = EffectRecord()
    asks = configured(model, '[workspaces]\nbackend = "bubblewrap"', rules=("ask build",))
    async with asking(home, model, deeds, config=asks) as gateway:
        await approve(gateway, "always", BUILD)
        assert not await is_asked(gateway, BUILD)
    async with asking(home, model, deeds, config=asks.replace("bubblewrap", "local")) as gateway:
        assert await is_asked(gateway, BUILD)


def _drawn(description: str, owner: str) -> Toolset:
    async def draw(ctx: ToolContext, *, what: str = "") -> str:
        return "drawn"

    draw.__doc__ = description
    return Toolset([tool(effect="write", owner=owner)(draw)])


async def test_a_changed_definition_of_the_tool_voids_its_rules_for_good(home: Path, model: ScriptedModel) -> None:
    """X14: also if the tool changes back; other tools' rules stay, and the audit log has the event."""
    draw = "[tool draw {}] [say done]"
    toml = settings(model, tools='"deeds", "drawings"').replace(
        'approvals = "autonomous"', 'approvals = "balanced"\nrules = ["ask push"]'
    )

    def gateway_with(description: str, owner: str = "the server A") -> Any:
        toolsets = {"deeds": EffectRecord().toolset(), "drawings": _drawn(description, owner)}
        return core(home, model=model, toml=toml, toolsets=toolsets)

    async with gateway_with("Draws a line.") as gateway:
        await gateway.know(OWNER)
        await approve(gateway, "always", draw)
        await approve(gateway, "always")
        assert not await is_asked(gateway, draw)
        [rule] = [rule for rule in await stored(gateway) if rule.tool == "draw"]
        assert "may call draw (of the server A) with any arguments" in rule.allows
    async with gateway_with("Draws a line, and sends it to a printer.") as gateway:
        assert await is_asked(gateway, draw)
        assert [rule.tool for rule in await stored(gateway)] == ["push"]
        [event] = [row for row in await rule_events(gateway) if row.outcome == "void"]
        assert event.subject.endswith(" draw")
    async with gateway_with("Draws a line.") as gateway:
        assert await is_asked(gateway, draw) and not await is_asked(gateway)
        await approve(gateway, "always", draw)
    async with gateway_with("Draws a line.", "the server B") as gateway:
        assert await is_asked(gateway, draw)


async def test_a_tool_that_asks_by_default_needs_approval_even_if_it_only_reads(
    home: Path, model: ScriptedModel
) -> None:
    """X11: unless a rule allows it or the mode allows everything."""

    @tool(effect="read", asks=True)
    async def peek(ctx: ToolContext) -> str:
        """Looks at something private."""
        return "seen"

    @tool(effect="network", contained=True, approval_covers="call")
    async def send(ctx: ToolContext, *, to: str) -> str:
        """Sends something."""
        return "sent"

    call = "[tool peek {}] [say done]"
    for policy, asks in (
        ('"balanced"', True), ('"strict"', True), ('"autonomous"', False), ('"strict"\nrules = ["allow peek"]', False),
    ):  # fmt: skip
        toml = settings(model, tools='"private"').replace('"autonomous"', policy)
        async with core(home, model=model, toml=toml, toolsets={"private": Toolset([peek, send])}) as gateway:
            await gateway.know(OWNER)
            assert await is_asked(gateway, call, name=policy[:8]) == asks
            if policy == '"strict"':
                await approve(gateway, "always", '[tool send {"to": "a"}] [say done]')
                assert not await is_asked(gateway, '[tool send {"to": "a"}] [say done]')
                assert await is_asked(gateway, '[tool send {"to": "b"}] [say done]')


# -- tasks -----------------------------------------------------------------------------------------------------------


async def test_tasks_of_a_conversation_are_covered_by_its_approval_and_by_no_looser_one(
    home: Path, model: ScriptedModel
) -> None:
    """X14, S29: given in a task, it covers the next task of that agent. Given where only one agent's policy asked, it
    does not answer for the other."""
    deeds = EffectRecord()
    toml = settings(model, AGENTS.format(approvals="balanced", more=', "deeds"'), tools='"delegate", "deeds"')
    toml = toml.replace('approvals = "autonomous"', 'approvals = "balanced"\nrules = ["ask push"]', 1)
    helped = toml.replace("[agents.helper]", '[agents.helper]\nrules = ["ask push"]')
    work = task("helper", '[tool push {"what": "t"}] [say done]') + " [say done]"
    direct = '[tool push {"what": "d"}] [say done]'
    async with core(home, model=model, toml=helped, toolsets={"deeds": deeds.toolset()}) as gateway:
        await gateway.know(OWNER)
        await approve(gateway, "always", direct, agent="helper", name="direct")
        views: list[QuestionView] = []
        assert await is_asked(gateway, work, scope="conversation", seen=views, name="tasks")
        assert views[0].scopes[1].allows.endswith("reasons to ask are 'rule: ask push' and 'main: rule: ask push'.")
        assert not await is_asked(gateway, work, name="tasks")
        assert not await is_asked(gateway, direct, agent="helper", name="direct")
        assert await is_asked(gateway, work, name="another")
        rules = await stored(gateway)
        assert [(rule.agent, rule.reasons) for rule in rules] == [
            ("helper", ("rule: ask push", "main: rule: ask push")), ("helper", ("rule: ask push",)),
        ]  # fmt: skip
        assert rules[0].conversation is not None and rules[0].uses == 1


# -- answers ---------------------------------------------------------------------------------------------------------


async def test_an_approval_is_given_once_and_with_one_scope(home: Path, model: ScriptedModel) -> None:
    """S29, X14: repeating it stores nothing twice; another scope is refused like another answer."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        turn, [question] = await ask(gateway)
        answer = gateway.service.questions.answer
        with pytest.raises(Refused, match="Only an approval can have the scope 'conversation'"):
            await answer(question.id, ANNA, "denied", scope="conversation")
        first = await answer(question.id, ANNA, "approved", scope="conversation")
        assert await answer(question.id, ANNA, "approved", scope="conversation") == first
        assert (first.scope, first.scopes) == ("conversation", ())
        with pytest.raises(Conflict, match="it was approved"):
            await answer(question.id, ANNA, "approved")
        await gateway.answered(turn)
        assert len(await stored(gateway, ANNA)) == 1


async def test_a_call_that_was_denied_is_not_run_by_a_rule_that_was_stored_since(
    home: Path, model: ScriptedModel
) -> None:
    """X14: the denied step is repeated after a crash; its own answer counts."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, drain=None) as gateway:
        turn, [question] = await ask(gateway, principal=OWNER.id)
        other = await gateway.accept(PUSH, channel="page", principal=OWNER.id, name="other")
        [second] = await asked(gateway, other.turn)
        await gateway.store.write(_deny, question.id)
        await gateway.service.questions.answer(second.id, OWNER, "approved", scope="always")
        await gateway.answered(other.turn)
        deeds.done.clear()
    async with asking(home, model, deeds) as gateway:
        assert (await gateway.answered(turn)).text == "done"
        assert deeds.done == []


def _deny(db: Any, id: str) -> None:
    db.execute("UPDATE approvals SET state = 'denied', answer = '', answered_by = 'p_owner' WHERE id = ?", (id,))


async def test_a_call_too_long_to_list_is_approved_only_for_itself(home: Path, model: ScriptedModel) -> None:
    """X14: for a tool of which exact calls are covered."""
    deeds = EffectRecord()
    async with asking(home, model, deeds, config=configured(model, rules=("ask build",))) as gateway:
        turn, [question] = await ask(gateway, f'[tool build {{"what": "{"x" * 4_000}"}}] [say done]')
        assert [choice.scope for choice in question.scopes] == ["call"]
        with pytest.raises(Refused, match="Only this one call can be approved"):
            await gateway.service.questions.answer(question.id, ANNA, "approved", scope="conversation")
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        await gateway.answered(turn)
        assert len(deeds.done) == 1


async def test_every_rule_and_every_use_of_one_is_in_the_audit_log(home: Path, model: ScriptedModel) -> None:
    """X24: who stored and removed it, and the digest of each call that it allowed."""
    deeds = EffectRecord()
    async with asking(home, model, deeds) as gateway:
        session = await approve(gateway, "conversation", by=ANNA)
        outcome = await gateway.say(PUSH, channel="page")
        [rule] = await stored(gateway, ANNA)
        await gateway.service.questions.stored.remove(rule.id, OWNER)
        removed, used, given = await rule_events(gateway)
        assert (given.outcome, given.principal, given.session) == ("stored", ANNA.id, session)
        assert (removed.outcome, removed.principal) == ("removed", OWNER.id)
        assert used.outcome == "used" and used.subject.startswith(f"{rule.id} push {outcome.turn} ")
        calls = await gateway.store.read(lambda db: audit.listing(db, kind="tool"))
        ran = {row.digest for row in calls if outcome.turn in row.subject}
        assert ran == {used.digest} and used.digest is not None
