"""`tidegate sessions`: conversations from outside."""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import plain, print_json, print_table, when

_PAGE = 200  # rows asked for at once


@click.group("sessions")
def command() -> None:
    """List, show, end, delete or export conversations."""


@command.command("list")
@click.option("--query", "-q", help="Only conversations in which these words occur.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--ended", is_flag=True, help="Ended ones instead of live ones.")
@home_option
@json_option
def list_(query: str | None, limit: int, ended: bool, home: Path, as_json: bool) -> None:
    """List conversations, the most recently used first."""
    from tidegate.cli.api import Api

    asked = {"q": query, "limit": limit, "ended": "true" if ended else None}
    found = Api(home).call("GET", "/api/sessions", query=asked)["sessions"]
    if as_json:
        print_json(found)
        return
    rows = [
        (view["id"], view.get("title") or view.get("name"), view["agent"], view["channel"], when(view["active"]),
         "running" if view.get("running") else view.get("end_reason") or "")
        for view in found
    ]  # fmt: skip
    print_table(("id", "title", "agent", "channel", "last used", "state"), rows, empty="No conversations.")


@command.command("show")
@click.argument("session")
@home_option
@json_option
def show(session: str, home: Path, as_json: bool) -> None:
    """Print one conversation."""
    from tidegate.cli.api import Api, segment

    api = Api(home)
    view = api.call("GET", f"/api/sessions/{segment(session)}")
    rows = _transcript(api, session)
    if as_json:
        print_json({**view, "messages": rows})
        return
    facts = [("id", view["id"]), ("title", view.get("title")), ("name", view.get("name")), ("agent", view["agent"]),
             ("channel", view["channel"]), ("made", when(view["created"])), ("last used", when(view["active"])),
             ("ended", when(view.get("ended")))]  # fmt: skip
    for name, value in facts:
        if value:
            print(f"{name:>10}: {plain(str(value))}")
    for row in rows:
        print(_said(row["message"]))


def _transcript(api: Any, session: str) -> list[dict[str, Any]]:
    from tidegate.cli.api import segment

    rows: list[dict[str, Any]] = []
    after = 0
    while page := api.call("GET", f"/api/sessions/{segment(session)}/messages", query={"after": after, "limit": _PAGE})[
        "messages"
    ]:
        rows += page
        after = page[-1]["seq"]
    return rows


def _said(message: dict[str, Any]) -> str:
    lines = [f"\n{message['role']}:"]
    if message.get("text"):
        lines.append(plain(message["text"]))
    lines += [f"→ {plain(call['name'])} {plain(call['arguments'])}" for call in message.get("calls", ())]
    return "\n".join(lines)


@command.command("end")
@click.argument("session")
@home_option
@json_option
def end(session: str, home: Path, as_json: bool) -> None:
    """End a conversation for good; its transcript is kept, read-only, for its retention."""
    from tidegate.cli.api import Api, segment

    Api(home).call("POST", f"/api/sessions/{segment(session)}/end")
    if as_json:
        print_json({"ended": session})
    else:
        print(f"Ended {session}.")


@command.command("delete")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
@json_option
def delete(session: str, yes: bool, home: Path, as_json: bool) -> None:
    """Delete a conversation with its transcript."""
    from tidegate.cli.api import Api, segment

    api = Api(home)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {session} with its transcript?", abort=True)
    api.call("DELETE", f"/api/sessions/{segment(session)}")
    if as_json:
        print_json({"deleted": session})
    else:
        print(f"Deleted {session}.")


@command.command("export")
@click.argument("session")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file (default: print it).")
@home_option
def export(session: str, output: Path | None, home: Path) -> None:
    """Write a conversation as JSON lines."""
    from tidegate.cli.api import Api, segment

    lines = Api(home).lines(f"/api/sessions/{segment(session)}/export")
    if output is None:
        for line in lines:
            sys.stdout.buffer.write(line)
        return
    first = next(lines, b"")  # a refusal comes before the file is made
    with output.open("xb") as file:
        file.write(first)
        file.writelines(lines)
    print(f"Wrote {output}.")
