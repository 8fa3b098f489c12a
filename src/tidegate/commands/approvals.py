"""Commands that answer an agent's questions: approve, deny, answer.

The id may be left out if only one question is open: in this conversation or, before there is one, in all of them.
"""

import re
from typing import Literal

from tidegate.commands.registry import CommandContext, CommandReply, SlashCommand
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.turns import QuestionView

LISTED = 10
"""Open questions that are listed."""

LINE_CHARACTERS = 80
"""Characters of each of them."""

_ID = re.compile(r"(ap_\w+)(?:\s+|$)")


async def approve(context: CommandContext, words: str) -> CommandReply:
    id, rest = _split(words)
    if rest:
        raise Refused("Use /approve or /approve ID; only a denial takes a reason.", code="bad_argument")
    return await _answer(context, id, "approved", "", "Approved")


async def deny(context: CommandContext, words: str) -> CommandReply:
    id, reason = _split(words)
    return await _answer(context, id, "denied", reason, "Denied")


async def answer(context: CommandContext, words: str) -> CommandReply:
    id, text = _split(words)
    if not text:
        raise Refused("Add the answer: /answer TEXT, or its number.", code="missing_argument")
    return await _answer(context, id, "answered", text, "Answered")


async def _answer(
    context: CommandContext, id: str, decision: Literal["approved", "denied", "answered"], text: str, done: str
) -> CommandReply:
    question = await _find(context, id, "question" if decision == "answered" else "approval")
    answered = await context.service.questions.answer(question.id, context.principal, decision, text)
    here = answered.session == context.session
    what = answered.answer if decision == "answered" else first_line(answered)
    return CommandReply(text=f"{done}: {what}", session=context.session, turn=answered.turn if here else None)


async def _find(context: CommandContext, id: str, kind: Literal["approval", "question"]) -> QuestionView:
    """The question that is meant. If there are several, or none of this kind, the error lists the open ones."""
    questions = context.service.questions
    if id:
        return await questions.get(id, context.principal)
    found = await questions.open_for(context.principal, session=context.session)
    fitting = [question for question in found if question.kind == kind]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Conflict(
            f"Several questions are open: choose one by its id.\n{listing(fitting)}", code="several_questions"
        )
    if found:
        raise Conflict(
            f"No question of that kind is open here, but this one is.\n{listing(found)}", code="answer_unfit"
        )
    if others := await questions.open_for_others(context.principal, context.session):
        return others[0]  # refused later, with the name of the right that is missing
    elsewhere = await questions.open_for(context.principal, limit=LISTED) if context.session else []
    if elsewhere:
        raise NotFound(f"No question is open here, but elsewhere.\n{listing(elsewhere)}", code="question_not_found")
    raise NotFound("No question is open.", code="question_not_found")


def listing(questions: list[QuestionView]) -> str:
    lines = [f"{_COMMANDS[question.kind]} {question.id}  {first_line(question)}" for question in questions[:LISTED]]
    return "\n".join([*lines, *(["…"] if len(questions) > LISTED else [])])


def first_line(question: QuestionView) -> str:
    line = " ".join(question.summary.split())
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"


def _split(words: str) -> tuple[str, str]:
    found = _ID.match(words)
    return (found[1], words[found.end() :]) if found else ("", words)


_COMMANDS = {"approval": "/approve", "question": "/answer"}

COMMANDS = (
    SlashCommand(
        name="approve",
        arguments="[ID]",
        help="Approve the action that the agent asks permission for.",
        handler=approve,
    ),
    SlashCommand(
        name="deny",
        arguments="[ID] [REASON]",
        help="Deny the action that the agent asks permission for; it is told the reason and continues.",
        handler=deny,
    ),
    SlashCommand(
        name="answer",
        arguments="[ID] TEXT|NUMBER",
        help="Answer a question of the agent, with one of its choices or, if it has none, in your own words.",
        handler=answer,
    ),
)
