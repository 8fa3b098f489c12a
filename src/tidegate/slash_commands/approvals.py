"""Commands that answer an agent's questions and approval requests: approve, deny, answer; and that list and remove
stored approvals: rules.

The id can be omitted if only one question is open in this conversation or, before the first message, in all of the
user's conversations.
"""

import re
from typing import Literal

from tidegate.errors import Conflict, NotFound, Refused
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand
from tidegate.turns import QuestionView
from tidegate.values import ApprovalScope

LISTED = 10
"""Maximum number of open questions in a list."""

RULES_LISTED = 50
"""Maximum number of stored approvals in a list."""

LINE_CHARACTERS = 80
"""Maximum length of each line in the list."""

_ID = re.compile(r"(ap_\w+)(?:\s+|$)")


async def approve(context: CommandContext, words: str) -> CommandReply:
    id, rest = _split(words)
    if (scope := _SCOPES.get(rest.strip().lower())) is None:
        raise Refused(
            "Use /approve [ID], /approve [ID] conversation or /approve [ID] always; only /deny accepts a reason.",
            code="bad_argument",
        )
    return await _answer(context, id, "approved", "", "Approved", scope)


async def deny(context: CommandContext, words: str) -> CommandReply:
    id, reason = _split(words)
    return await _answer(context, id, "denied", reason, "Denied")


async def answer(context: CommandContext, words: str) -> CommandReply:
    id, text = _split(words)
    if not text:
        raise Refused("The answer is missing: use /answer TEXT or /answer NUMBER.", code="missing_argument")
    return await _answer(context, id, "answered", text, "Answered")


async def rules(context: CommandContext, words: str) -> CommandReply:
    stored = context.service.questions.stored
    verb, _, id = words.partition(" ")
    if verb == "remove" and id.strip():
        await stored.remove(id.strip(), context.principal)
        return CommandReply(text="Removed. The agent asks again.", session=context.session)
    if words:
        raise Refused("Use /rules or /rules remove ID.", code="bad_argument")
    found = await stored.listing(context.principal, person=context.principal.id, limit=RULES_LISTED + 1)
    lines = []
    for rule in found[:RULES_LISTED]:
        lines.append(f"{rule.id}  {rule.allows}" + (f"\n    {_shortened(rule.call)}" if rule.call else ""))
    if len(found) > RULES_LISTED:
        lines.append("…")
    return CommandReply(
        text="\n".join(lines) or "No approval is stored for your conversations.", session=context.session
    )


async def _answer(
    context: CommandContext,
    id: str,
    decision: Literal["approved", "denied", "answered"],
    text: str,
    done: str,
    scope: ApprovalScope = "call",
) -> CommandReply:
    question = await _find(context, id, "question" if decision == "answered" else "approval")
    answered = await context.service.questions.answer(question.id, context.principal, decision, text, scope)
    here = answered.session == context.session
    what = answered.answer if decision == "answered" else first_line(answered)
    if scope != "call":
        what = "\n".join([f"{what}", *(choice.allows for choice in question.scopes if choice.scope == scope)])
    return CommandReply(text=f"{done}: {what}", session=context.session, turn=answered.turn if here else None)


async def _find(context: CommandContext, id: str, kind: Literal["approval", "question"]) -> QuestionView:
    """Finds the question to answer. If several questions are possible, or none of this kind is open, the error lists
    the open ones."""
    questions = context.service.questions
    if id:
        return await questions.get(id, context.principal)
    found = await questions.open_for(context.principal, session=context.session)
    matching = [question for question in found if question.kind == kind]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise Conflict(
            f"Several questions are open: choose one by its id.\n{listing(matching)}", code="several_questions"
        )
    if found:
        raise Conflict(f"No question of this kind is open here. Use instead:\n{listing(found)}", code="answer_unfit")
    if others := await questions.open_for_others(context.principal, context.session):
        return others[0]  # answering it is refused with the name of the missing permission
    elsewhere = await questions.open_for(context.principal, limit=LISTED) if context.session else []
    if elsewhere:
        raise NotFound(
            f"No question is open in this conversation. In others:\n{listing(elsewhere)}", code="question_not_found"
        )
    raise NotFound("No question is open.", code="question_not_found")


def listing(questions: list[QuestionView]) -> str:
    lines = [f"{_COMMANDS[question.kind]} {question.id}  {first_line(question)}" for question in questions[:LISTED]]
    return "\n".join([*lines, *(["…"] if len(questions) > LISTED else [])])


def first_line(question: QuestionView) -> str:
    return _shortened(question.summary)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"


def _split(words: str) -> tuple[str, str]:
    found = _ID.match(words)
    return (found[1], words[found.end() :]) if found else ("", words)


_SCOPES: dict[str, ApprovalScope] = {"": "call", "call": "call", "conversation": "conversation", "always": "always"}
_COMMANDS = {"approval": "/approve", "question": "/answer"}

COMMANDS = (
    SlashCommand(
        name="approve",
        arguments="[ID] [conversation|always]",
        help="Approve the action that the agent wants to take: once or, as the question says, for this conversation or "
        "always.",
        handler=approve,
    ),
    SlashCommand(
        name="deny",
        arguments="[ID] [REASON]",
        help="Deny the action that the agent wants to take. The agent sees the reason and continues.",
        handler=deny,
    ),
    SlashCommand(
        name="answer",
        arguments="[ID] TEXT|NUMBER",
        help="Answer the agent's question: with one of its choices or, if it has none, in your own words.",
        handler=answer,
    ),
    SlashCommand(
        name="rules",
        arguments="[remove ID]",
        help="List what agents may do in your conversations without asking again, or remove an entry.",
        handler=rules,
    ),
)
