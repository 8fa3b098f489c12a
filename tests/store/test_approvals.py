"""Approvals and questions: asked once, answered once, by those who may, in time."""

import pytest

from tests.store.rows import OWNER, new_session, new_turn
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.store import ApprovalAnswer, ApprovalRow, Decision, NewApproval, Store, approvals, sessions

pytestmark = pytest.mark.anyio

OTHER = "p_other"
REMOVE = approvals.action_digest("shell", '{"command": "rm x"}')


def new_request(**changes: object) -> NewApproval:
    values: dict[str, object] = {"kind": "approval", "tool": "shell", "digest": REMOVE, "summary": "rm x", **changes}
    return NewApproval(**values)  # type: ignore[arg-type]


async def ask(
    store: Store, id: str, step: str = "tool-0-0", *, turn: str = "t_1", expires: float | None = None, **changes: object
) -> ApprovalRow:
    return await store.write(
        approvals.ask,
        id=id,
        session="s_1",
        turn=turn,
        step=step,
        request=new_request(**changes),
        now=1.0,
        expires=expires,
    )


async def answer(
    store: Store, id: str, decision: Decision, *, by: str = OWNER, role: str = "user", text: str = "", now: float = 5.0
) -> ApprovalAnswer:
    return await store.write(approvals.answer, id, decision=decision, text=text, principal=by, role=role, now=now)


@pytest.fixture
async def asked(store: Store) -> Store:
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "hello")
    return store


def test_a_digest_depends_on_the_exact_action_and_not_on_its_formatting() -> None:
    """S29: exactly the approved action is run."""
    same = approvals.action_digest("shell", '{"a":1,"b":[true, null]}')
    assert same == approvals.action_digest("shell", ' { "b": [true,null], "a": 1 } ')
    others = [
        approvals.action_digest(tool, arguments)
        for tool, arguments in (
            ("shell", '{"a":2,"b":[true,null]}'),
            ("shel", '{"a":1,"b":[true,null]}'),
            ("shell", '{"a":1,"b":[null,true]}'),
            ("shell", '{"a":"1","b":[true,null]}'),
            ("shell", "no json"),
            ("shell", '"no json"'),
            ("shellno", " json"),
        )
    ]
    assert len({same, *others}) == 8
    with pytest.raises(Refused):
        approvals.action_digest("shell", "\ud800")


async def test_a_step_that_asks_again_after_a_crash_finds_its_question_and_its_answer(asked: Store) -> None:
    """S29, S31: the row is durable; asking again adds no second one, and an answer given in the meantime counts."""
    first = await ask(asked, "ap_1")
    assert (first.state, first.may_answer, first.answer) == ("open", OWNER, None)
    assert await ask(asked, "ap_2") == first
    await answer(asked, "ap_1", "approved")
    again = await ask(asked, "ap_3")
    assert (again.id, again.state, again.answered_by) == ("ap_1", "approved", OWNER)
    assert await asked.read(approvals.of_step, "t_1", "tool-0-0") == again


async def test_a_step_cannot_ask_about_two_actions(asked: Store) -> None:
    """S29: an answer to one request never counts for another."""
    await ask(asked, "ap_1")
    with pytest.raises(Conflict, match="another action"):
        await ask(asked, "ap_2", digest=approvals.action_digest("shell", '{"command": "rm y"}'))


async def test_the_first_answer_counts_and_the_same_one_may_be_sent_twice(asked: Store) -> None:
    """S29: each answer gets a reply that says whether it counted."""
    await ask(asked, "ap_1")
    counted = await answer(asked, "ap_1", "approved", text="go on")
    assert counted.how == "counted" and counted.row is not None
    assert (counted.row.state, counted.row.answer, counted.row.answered_at) == ("approved", "go on", 5.0)
    assert (await answer(asked, "ap_1", "approved", text="go on", now=6.0)).how == "repeated"
    assert await answer(asked, "ap_1", "denied", now=7.0) == ApprovalAnswer("closed", counted.row)


async def test_an_answer_in_time_counts_and_a_late_one_does_not(asked: Store) -> None:
    """S29: also before the timer has closed the request."""
    await ask(asked, "ap_1", expires=10.0)
    assert await asked.read(approvals.open_for, principal=OWNER, role="member", now=10.0) == []
    assert (await answer(asked, "ap_1", "approved", now=10.0)).how == "expired"
    assert [row.id for row in await asked.write(approvals.expire, 10.0)] == ["ap_1"]
    late = await answer(asked, "ap_1", "approved", now=11.0)
    assert late.how == "expired" and late.row is not None and late.row.state == "expired"


async def test_only_those_who_may_answer_can_see_a_question(asked: Store) -> None:
    """X06, S29: another principal's answer finds nothing; a role can answer requests to that role."""
    await ask(asked, "ap_mine")
    await ask(asked, "ap_owners", "tool-0-1", may_answer="role:owner")
    await ask(asked, "ap_others", "tool-0-2", may_answer=OTHER)
    assert await answer(asked, "ap_mine", "approved", by=OTHER) == ApprovalAnswer("unknown", None)
    assert await answer(asked, "ap_none", "approved") == ApprovalAnswer("unknown", None)
    assert (await answer(asked, "ap_owners", "approved")).how == "unknown"
    assert (await answer(asked, "ap_owners", "approved", by="p_root", role="owner")).how == "counted"

    async def open_for(principal: str, role: str) -> list[str]:
        return [row.id for row in await asked.read(approvals.open_for, principal=principal, role=role, now=5.0)]

    assert await open_for(OWNER, "user") == ["ap_mine"]
    assert await open_for(OTHER, "owner") == ["ap_others"]
    assert await asked.read(approvals.visible_to, "ap_mine", principal=OTHER, role="owner") is None
    for id in ("ap_mine", "ap_owners", "ap_others"):
        assert await asked.read(approvals.visible_to, id, principal=OWNER, role="member") is not None
    assert await asked.read(approvals.of_session, "s_1", principal=OTHER) == []
    assert len(await asked.read(approvals.of_session, "s_1", principal=OWNER)) == 3
    assert len(await asked.read(approvals.of_session, "s_1", principal=None, limit=2)) == 2


async def test_a_question_is_answered_with_text_and_an_approval_with_a_decision(asked: Store) -> None:
    row = await ask(asked, "ap_1", kind="question", summary="Which one?", choices=("red", "blue"))
    assert row.choices == ("red", "blue")
    with pytest.raises(Refused):
        await answer(asked, "ap_1", "approved")
    counted = await answer(asked, "ap_1", "answered", text="blue")
    assert counted.row is not None and (counted.row.state, counted.row.answer) == ("answered", "blue")
    await ask(asked, "ap_2", "tool-0-1")
    with pytest.raises(Refused):
        await answer(asked, "ap_2", "answered", text="yes")


async def test_summaries_and_answers_that_are_too_long_are_refused_and_never_truncated(asked: Store) -> None:
    """S29: refused when they arrive, with the reason."""
    for changes in (
        {"summary": "x" * (approvals.SUMMARY_CHARACTERS + 1)},
        {"kind": "question", "choices": ("x",) * (approvals.CHOICES + 1)},
        {"kind": "question", "choices": ("x" * (approvals.CHOICE_CHARACTERS + 1),)},
        {"choices": ("yes",)},
    ):
        with pytest.raises(Refused):
            await ask(asked, "ap_1", **changes)
    await ask(asked, "ap_1", summary="x" * approvals.SUMMARY_CHARACTERS)
    with pytest.raises(Refused):
        await answer(asked, "ap_1", "denied", text="x" * (approvals.ANSWER_CHARACTERS + 1))


async def test_a_stopped_turn_and_an_ended_session_cancel_their_requests(asked: Store) -> None:
    """S30, V04: nothing waits for an answer any more, and none is accepted."""
    await ask(asked, "ap_1")
    await ask(asked, "ap_2", "tool-0-1")
    await ask(asked, "ap_3", turn="t_2")
    await answer(asked, "ap_2", "denied")
    assert [row.id for row in await asked.write(approvals.cancel_turn, "t_1", 6.0)] == ["ap_1"]
    assert (await answer(asked, "ap_1", "approved")).how == "closed"
    await asked.write(sessions.end, "s_1", reason="new", hooks=(), now=7.0)
    row = await asked.read(approvals.get, "ap_3")
    assert row is not None and (row.state, row.answered_at) == ("cancelled", 7.0)
    assert await asked.write(approvals.cancel_session, "s_1", 8.0) == []
    with pytest.raises(Conflict, match="ended"):
        await ask(asked, "ap_4", "tool-0-3")
    await asked.write(sessions.delete, "s_1")
    with pytest.raises(NotFound):
        await ask(asked, "ap_5", "tool-0-4")


async def test_expiry_closes_a_bounded_number_at_a_time(asked: Store) -> None:
    """S29: unanswered requests are closed, in short writes."""
    for number in range(5):
        await ask(asked, f"ap_{number}", f"tool-0-{number}", expires=float(number + 2))
    assert len(await asked.write(approvals.expire, 5.0, 3)) == 3
    assert len(await asked.write(approvals.expire, 5.0, 3)) == 1
    assert await asked.write(approvals.expire, 5.0, 3) == []
    assert [row.id for row in await asked.read(approvals.open_for, principal=OWNER, role="", now=5.0)] == ["ap_4"]


async def test_the_requests_of_one_call_are_closed_without_those_of_others(asked: Store) -> None:
    """S30: the request of the call's own step, and those of steps whose name begins with it."""
    for number, step in enumerate(("tool-0-1", "tool-0-1-abc-0", "tool-0-10", "tool-0-10-abc-0", "tool-1-1")):
        await ask(asked, f"ap_{number}", step)
    closed = await asked.write(approvals.cancel_call, "t_1", "tool-0-1", 2.0)
    assert [row.id for row in closed] == ["ap_0", "ap_1"] and {row.state for row in closed} == {"cancelled"}
    assert await asked.write(approvals.cancel_call, "t_1", "tool-0-1", 2.0) == []
    left = await asked.read(approvals.open_of, "s_1", 2.0)
    assert [row.id for row in left] == ["ap_2", "ap_3", "ap_4"]
    one = await asked.read(lambda db: approvals.open_for(db, principal=OWNER, role="member", now=2.0, session="s_1"))
    assert one == left
    assert (
        await asked.read(lambda db: approvals.open_for(db, principal=OWNER, role="member", now=2.0, session="s")) == []
    )


def test_arguments_that_are_nested_too_deeply_have_a_digest_too() -> None:
    """X14: they are used unparsed."""
    deep = "[" * 5000 + "]" * 5000
    assert approvals.action_digest("shell", deep) != approvals.action_digest("shell", deep + " ")
