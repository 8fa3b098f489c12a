"""`tidegate approvals`: lists and answers agents' approval requests and questions, without opening a conversation."""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import local_time, plural, print_json, strip_controls

_ANSWERS = {"conversation": "approve conversation", "always": "approve always"}


@click.group("approvals")
def command() -> None:
    """List or answer agents' approval requests and questions, or list and remove stored approvals."""


@command.command("list")
@click.option("--session", help="Show only those in the conversation with this id.")
@click.option("--limit", type=click.IntRange(1, 500), default=200, show_default=True)
@home_option
@json_option
def list_(session: str | None, limit: int, home: Path, as_json: bool) -> None:
    """List everything that is waiting for your answer, in full, oldest first."""
    from tidegate.cli.client import GatewayClient
    from tidegate.cli.commands.chat.questions import heading, question_lines, scope_lines
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
            print("".join(f"  {line}\n" for line in scope_lines(question, _ANSWERS)), end="")
        how = command_hint(home, "approvals answer ID ANSWER")
        print(
            f"Answer with {how}; ANSWER is approve [conversation|always], deny [REASON], or the answer to a question."
        )
    if found["more"]:
        print(f"There are more than {limit}: answer some, or raise --limit.", file=sys.stderr)


@command.command("answer")
@click.argument("id")
@click.argument("words", nargs=-1, required=True)
@home_option
@json_option
def answer(id: str, words: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Answer the request or question ID from `tidegate approvals list`.

    The answer to a request is `approve`, `approve conversation`, `approve always` or `deny [REASON]`; the list shows
    what each allows. If a question has choices, answer with one of them or its number."""
    from tidegate.cli.client import GatewayClient
    from tidegate.cli.commands.chat.questions import answer_of

    api = GatewayClient(home)
    path = api.approval(id)
    question = api.call("GET", path)
    reply = answer_of(question, " ".join(words))
    if reply is None:
        is_approval = question["kind"] == "approval"
        raise click.UsageError(
            "Answer approve [conversation|always] or deny [REASON]." if is_approval else "The answer is empty."
        )
    answered = api.call("POST", path, reply)
    if as_json:
        print_json(answered)
    else:
        text = strip_controls(answered["answer"] or "")
        print(f"{answered['state'].capitalize()}{': ' + text if text else '.'}")


@command.group("rules", invoke_without_command=True)
@click.option("--principal", help="Only those for the conversations of the user with this name or id.")
@click.option("--session", help="Only those that are limited to the conversation with this id.")
@click.option("--limit", type=click.IntRange(1, 500), default=200, show_default=True)
@home_option
@json_option
@click.pass_context
def rules(
    context: click.Context, principal: str | None, session: str | None, limit: int, home: Path, as_json: bool
) -> None:
    """List stored approvals, latest first: what agents may do without asking again.

    They are stored if somebody approves a request for a conversation or always."""
    if context.invoked_subcommand is not None:
        return
    from tidegate.cli.client import GatewayClient
    from tidegate.gateway import command_hint

    query = {"principal": principal, "session": session, "limit": limit}
    found = GatewayClient(home).call("GET", "/api/approval-rules", query=query)
    if as_json:
        print_json(found["rules"])
    elif not found["rules"]:
        print("No approval is stored.")
    else:
        for rule in found["rules"]:
            print("\n".join(_rule_lines(rule)))
        print(f"Remove one with {command_hint(home, 'approvals rules remove ID')}.")
    if found["more"]:
        print(f"There are more than {limit}: remove some, or raise --limit.", file=sys.stderr)


def _rule_lines(rule: dict[str, Any]) -> list[str]:
    used = f"used {plural(rule['uses'], 'time')}, last {local_time(rule['used'])}" if rule["used"] else "not used yet"
    where = (
        f" (conversation {rule['conversation']} of {strip_controls(rule['person'])})" if rule["conversation"] else ""
    )
    origin = "" if rule["origin"] == "built-in" else f", tool of {strip_controls(rule['origin'])}"
    return [
        f"{rule['id']}: given by {strip_controls(rule['given_by'])} {local_time(rule['given'])}, {used}{origin}",
        f"    {strip_controls(rule['allows'])}{where}",
        *(f"        {line}" for line in strip_controls(rule["call"]).split("\n") if rule["call"]),
    ]


@rules.command("remove")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@home_option
@json_option
def remove(ids: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Remove stored approvals, by their ids from `tidegate approvals rules`. The agent asks again from then on."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    for id in ids:
        api.call("DELETE", api.approval_rule(id))
    if as_json:
        print_json({"removed": len(ids)})
    else:
        print(f"Removed {plural(len(ids), 'stored approval')}.")
