"""`tidegate approvals`: lists and answers agents' approval requests and questions, without opening a conversation."""

import sys
from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json, strip_controls


@click.group("approvals")
def command() -> None:
    """List or answer agents' approval requests and questions."""


@command.command("list")
@click.option("--session", help="Only show those of the conversation with this id.")
@click.option("--limit", type=click.IntRange(1, 500), default=200, show_default=True)
@home_option
@json_option
def list_(session: str | None, limit: int, home: Path, as_json: bool) -> None:
    """List everything that is waiting for your answer, in full, oldest first."""
    from tidegate.cli.client import GatewayClient
    from tidegate.cli.commands.chat.questions import heading, question_lines
    from tidegate.gateway import command_hint

    found = GatewayClient(home).call("GET", "/api/approvals", query={"session": session, "limit": limit})
    if as_json:
        print_json(found["approvals"])
    elif not found["approvals"]:
        print("Nothing is waiting for an answer.")
    else:
        for question in found["approvals"]:
            print(heading(question))
            print("\n".join(f"    {line}" for line in question_lines(question)))
        how = command_hint(home, "approvals answer ID ANSWER")
        print(f"Answer with {how}; ANSWER is approve, deny [REASON], or the answer to a question.")
    if found["more"]:
        print(f"There are more than {limit}: answer some, or raise --limit.", file=sys.stderr)


@command.command("answer")
@click.argument("id")
@click.argument("words", nargs=-1, required=True)
@home_option
@json_option
def answer(id: str, words: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Answer the request or question ID from `tidegate approvals list`.

    The answer to a request is `approve` or `deny [REASON]`. If a question has choices, answer with one of them or its
    number."""
    from tidegate.cli.client import GatewayClient
    from tidegate.cli.commands.chat.questions import answer_of

    api = GatewayClient(home)
    path = api.approval(id)
    question = api.call("GET", path)
    reply = answer_of(question, " ".join(words))
    if reply is None:
        is_approval = question["kind"] == "approval"
        raise click.UsageError("Answer approve or deny [REASON]." if is_approval else "The answer is empty.")
    answered = api.call("POST", path, reply)
    if as_json:
        print_json(answered)
    else:
        text = strip_controls(answered["answer"] or "")
        print(f"{answered['state'].capitalize()}{': ' + text if text else '.'}")
