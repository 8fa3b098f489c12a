"""Stored approvals: stored with their answer, matched in every part, and gone with what they name."""

from typing import Any

import msgspec
import pytest

from tests.store.rows import OFFER, OWNER, ask, count, new_session, new_turn
from tidegate.errors import Conflict, Refused
from tidegate.store import (
    ApprovalAnswer,
    ApprovalRuleRow,
    Db,
    RuleOffer,
    Store,
    approval_rules,
    approvals,
    audit,
    sessions,
)
from tidegate.values import ApprovalScope

pytestmark = pytest.mark.anyio


@pytest.fixture
async def asked(store: Store) -> Store:
    """Two conversations of one person; in each, two calls wait for the same approval."""

    def furnish(db: Db) -> None:
        for number in (1, 2):
            new_session(db, f"s_{number}")
            new_turn(db, f"s_{number}", f"t_{number}", "hello")
            for letter in "ab":
                ask(db, f"s_{number}", f"ap_{number}{letter}", turn=f"t_{number}", offer=OFFER)

    await store.write(furnish)
    return store


async def approve(store: Store, id: str, scope: ApprovalScope, **changes: Any) -> ApprovalAnswer:
    answer = {"decision": "approved", "principal": OWNER, "role": "owner", "now": 5.0, "rule": f"ar_{id}", **changes}
    return await store.write(lambda db: approvals.answer(db, id, scope=scope, **answer))


async def rules(store: Store, offer: RuleOffer = OFFER, digest: bytes = b"d", here: str = "s_1") -> list[str]:
    """The ids of the rules that allow this call in the conversation `here`."""

    def find(db: Db) -> list[ApprovalRuleRow]:
        return approval_rules.of_tool(db, offer, digest, here)

    return [row.id for row in await store.read(find) if approval_rules.allows(row, offer, digest)]


async def states(store: Store) -> str:
    rows = [await store.read(approvals.get, id) for id in ("ap_1a", "ap_1b", "ap_2a", "ap_2b")]
    return "".join("-" if row is None else row.state[0] for row in rows)


@pytest.mark.parametrize(
    ("scope", "here", "elsewhere", "after"),
    [
        ("call", [], [], "aooo"),
        ("conversation", ["ar_ap_1a"], [], "aaoo"),
        ("always", ["ar_ap_1a"], ["ar_ap_1a"], "aaaa"),
    ],
)
async def test_the_scope_decides_where_the_rule_applies_and_what_is_approved_with_it(
    asked: Store, scope: ApprovalScope, here: list[str], elsewhere: list[str], after: str
) -> None:
    """X14: in the transaction of the answer."""
    answer = await approve(asked, "ap_1a", scope)
    assert answer.row is not None and (answer.how, answer.row.scope) == ("counted", scope)
    assert (await rules(asked), await rules(asked, here="s_2"), await states(asked)) == (here, elsewhere, after)
    assert len(answer.covered) == after.count("a") - 1


@pytest.mark.parametrize(
    "change",
    [
        {"principal": "p_other"},
        {"agent": "other"},
        {"tool": "other"},
        {"fingerprint": b"g"},
        {"place": "local"},
        {"grounds": (("main", "rule: ask shell"),)},
        {"grounds": (*OFFER.grounds, ("main", "rule: ask shell"))},
        {"grounds": (("other", "approvals = strict"),)},
    ],
)
async def test_a_rule_allows_nothing_that_differs_in_any_part(asked: Store, change: dict[str, Any]) -> None:
    """X14: who, where, what and why it is asked."""
    await approve(asked, "ap_1a", "always")
    assert await rules(asked) == ["ar_ap_1a"]
    assert await rules(asked, msgspec.structs.replace(OFFER, **change)) == []


async def test_a_rule_of_several_reasons_answers_each_of_them(asked: Store) -> None:
    """X14: the person saw all of them."""
    both = msgspec.structs.replace(OFFER, grounds=(*OFFER.grounds, ("outer", "approvals = strict")))
    await asked.write(ask, "s_1", "ap_1", turn="t_1", offer=both)
    await approve(asked, "ap_1", "conversation")
    assert await rules(asked, both) == await rules(asked) == ["ar_ap_1"]


async def test_a_rule_of_one_exact_call_allows_only_this_call(asked: Store) -> None:
    """X14: by the digest of the action."""
    exact = msgspec.structs.replace(OFFER, digest=b"d")
    await asked.write(ask, "s_1", "ap_1", turn="t_1", offer=exact)
    await approve(asked, "ap_1", "conversation")
    assert (await rules(asked, exact), await rules(asked, exact, b"e")) == (["ar_ap_1"], [])
    [rule] = await asked.read(approval_rules.listing)
    assert rule.summary == "rm x" and (await states(asked)) == "oooo"


async def test_an_equal_rule_is_stored_once_and_belongs_to_who_gave_it_last(asked: Store) -> None:
    """X11: so that it holds if the first person has lost the right."""
    await approve(asked, "ap_1a", "always")
    await asked.write(ask, "s_1", "ap_1", turn="t_1", offer=OFFER)
    await asked.write(lambda db: db.execute("UPDATE approvals SET may_answer = 'p_two' WHERE id = 'ap_1'") and None)
    await approve(asked, "ap_1", "always", principal="p_two", now=6.0)
    [rule] = await asked.read(approval_rules.listing)
    assert (rule.id, rule.approval, rule.given_by, rule.given) == ("ar_ap_1a", "ap_1", "p_two", 6.0)


async def test_another_definition_of_the_tool_removes_its_rules(asked: Store) -> None:
    """X14: in every conversation of the person, and only this tool's; recorded for each."""
    await approve(asked, "ap_1a", "conversation")
    await approve(asked, "ap_2a", "always")
    other = msgspec.structs.replace(OFFER, tool="other")
    await asked.write(ask, "s_1", "ap_1", turn="t_1", offer=other)
    await approve(asked, "ap_1", "always")
    changed = msgspec.structs.replace(OFFER, fingerprint=b"g")
    assert await asked.read(approval_rules.has_void, changed) and not await asked.read(approval_rules.has_void, OFFER)
    await asked.write(approval_rules.remove_void, changed, 7.0)
    assert [row.id for row in await asked.read(approval_rules.listing)] == ["ar_ap_1"]
    events = await asked.read(lambda db: audit.listing(db, kind="rule"))
    assert sorted(row.subject for row in events if row.outcome == "void") == ["ar_ap_1a shell", "ar_ap_2a shell"]


async def test_the_end_of_a_conversation_removes_its_rules_and_no_others(asked: Store) -> None:
    """V04: in the transaction that ends it. A late answer stores nothing."""
    await approve(asked, "ap_1a", "conversation")
    await approve(asked, "ap_2a", "conversation")
    await asked.write(sessions.end, "s_1", reason="new", hooks=(), now=7.0)
    assert [row.session for row in await asked.read(approval_rules.listing)] == ["s_2"]
    with pytest.raises(Conflict, match="ended"):
        await asked.write(
            lambda db: approval_rules.put(
                db, OFFER, id="ar_1", session="s_1", summary="", approval="ap_1b", by=OWNER, now=8.0
            )
        )
    await asked.write(sessions.end, "s_2", reason="new", hooks=(), now=7.0)
    await asked.write(sessions.delete, "s_2")
    assert await asked.read(count, "approval_rules") == 0


async def test_a_rule_that_was_removed_is_not_used(asked: Store) -> None:
    """X14: also if it was found a moment before."""

    def use(db: Db) -> bool:
        return approval_rules.use(db, "ar_ap_1a", turn="t_1", step="tool-0-0", session="s_1", digest=b"d", now=6.0)

    await approve(asked, "ap_1a", "always")
    assert await asked.write(use)
    for principal, removes in (("p_other", False), (OWNER, True), (OWNER, False)):
        remove = {"principal": principal, "by": principal, "now": 7.0}
        assert await asked.write(lambda db, how=remove: approval_rules.remove(db, "ar_ap_1a", **how)) is removes
    assert not await asked.write(use)


async def test_what_was_asked_before_there_were_rules_is_approved_only_for_itself(asked: Store) -> None:
    """L18, S29: and a question can never be."""
    await asked.write(ask, "s_1", "ap_old", turn="t_1")
    for scope in ("conversation", "always"):
        with pytest.raises(Refused, match="Only this one call can be approved"):
            await approve(asked, "ap_old", scope)  # type: ignore[arg-type]
    row = await asked.read(approvals.get, "ap_old")
    assert row is not None and row.state == "open" and await asked.read(count, "approval_rules") == 0
    assert (await approve(asked, "ap_old", "call")).how == "counted"
