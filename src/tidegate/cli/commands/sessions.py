"""`tidegate sessions`: lists and manages conversations."""

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import at_terminal, local_time, print_json, print_table, strip_controls
from tidegate.safe_text import escape_json
from tidegate.values import Media

_PAGE = 200  # rows in one request


@click.group("sessions")
def command() -> None:
    """List, show, reload, end, delete or export conversations, and show their settings and context."""


@command.command("list")
@click.option("--query", "-q", help="Show only conversations that contain these words.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--ended", is_flag=True, help="Show ended conversations instead of live ones.")
@click.option("--all", "everyone", is_flag=True, help="Show all users' conversations, with the users' names.")
@home_option
@json_option
def list_(query: str | None, limit: int, ended: bool, everyone: bool, home: Path, as_json: bool) -> None:
    """List your conversations, or with --all those of all users, most recently used first."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    parameters = {
        "q": query,
        "limit": limit,
        "ended": "true" if ended else None,
        "everyone": "true" if everyone else None,
    }
    found = api.call("GET", "/api/sessions", query=parameters)["sessions"]
    if as_json:
        print_json(found)
        return
    rows: list[tuple[Any, ...]] = [
        (view["id"], view.get("title") or view.get("name"), view["agent"], view["channel"], local_time(view["active"]),
         "running" if view.get("running") else view.get("end_reason") or "")
        for view in found
    ]  # fmt: skip
    heads: tuple[str, ...] = ("id", "title", "agent", "channel", "last used", "state")
    if everyone:
        heads = (*heads, "principal")
        names = {key["principal"]: key["name"] for key in api.call("GET", "/api/keys")["keys"]}
        whose = [names.get(view["principal"], view["principal"]) for view in found]
        rows = [(*row, name) for row, name in zip(rows, whose, strict=True)]
    print_table(heads, rows, empty="No conversations.")


@command.command("show")
@click.argument("session")
@home_option
@json_option
def show(session: str, home: Path, as_json: bool) -> None:
    """Print a conversation."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    view = api.call("GET", api.session(session))
    rows = _transcript(api, session)
    if as_json:
        print_json({**view, "messages": rows})
        return
    facts = [("id", view["id"]), ("title", view.get("title")), ("name", view.get("name")), ("agent", view["agent"]),
             ("channel", view["channel"]), ("created", local_time(view["created"])),
             ("last used", local_time(view["active"])),
             ("ended", local_time(view.get("ended"))), ("model", view.get("model")),
             ("fallback", view["fallback"] and _fallback(view["fallback"])),
             *((key, _override(setting)) for key, setting in view["settings"].items())]  # fmt: skip
    for name, value in facts:
        if value:
            print(f"{name:>10}: {strip_controls(str(value))}")
    for row in rows:
        print(_format_message(row["message"]))


def _override(setting: dict[str, Any]) -> str:
    """Describes a setting that overrides the configuration: its value, source and expiry."""
    ends = f"until {local_time(setting['expires'])}" if setting.get("expires") else "until it ends"
    return f"{setting['value']} ({setting['source']}, {ends})"


def _setting(row: dict[str, Any]) -> tuple[Any, str, str]:
    """Returns the value, source and expiry of a setting. Fallbacks are set automatically, and their value contains the
    expiry."""
    value = row["value"]
    if isinstance(value, dict):
        return _fallback(value), row["source"], local_time(value["until"])
    return value, row["source"], local_time(row["expires"]) or "with the conversation"


def _fallback(fallback: dict[str, Any]) -> str:
    return f"{fallback['model']} instead of {fallback['instead_of']} ({fallback['why']})"


def _transcript(api: Any, session: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = 0
    path = f"{api.session(session)}/messages"
    while page := api.call("GET", path, query={"after": after, "limit": _PAGE})["messages"]:
        rows += page
        after = page[-1]["seq"]
    return rows


def _format_message(message: dict[str, Any]) -> str:
    lines = [f"\n{message['role']}:"]
    if message.get("text"):
        lines.append(strip_controls(message["text"]))
    lines += [strip_controls(msgspec.convert(media, Media).words) for media in message.get("media", ())]
    lines += [
        f"→ {strip_controls(call['name'])} {strip_controls(call['arguments'])}" for call in message.get("calls", ())
    ]
    if message.get("unanswered"):
        lines.append("(not answered: the conversation ended first)")
    return "\n".join(lines)


@command.command("context")
@click.argument("session")
@home_option
@json_option
def context(session: str, home: Path, as_json: bool) -> None:
    """Show which parts of a conversation fill the model's window."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    usage = api.call("GET", f"{api.session(session)}/context")
    if as_json:
        print_json(usage)
        return
    window = usage["window"]
    rows = [
        (part["name"], f"{part['tokens']:,}", f"{part['tokens'] / window:.1%}", part["count"] or "")
        for part in usage["parts"]
    ]
    rows.append(("total", f"{usage['tokens']:,}", f"{usage['tokens'] / window:.1%}", ""))
    for name, tokens in (("a summary is prepared above", usage["soft"]), ("and applied above", usage["hard"])):
        rows.append((name, f"{tokens:,}", f"{tokens / window:.1%}", ""))
    rows.append((f"window of {usage['model']}", f"{window:,}", "", ""))
    print_table(("part", "tokens", "share", "number"), rows, empty="")
    if usage["summaries"]:
        shown = "a summary or list" if usage["summaries"] == 1 else f"{usage['summaries']} summaries or lists"
        print(f"Messages 1 to {usage['summarised']:,} are replaced by {shown}.")
    if usage["resting"]:
        print(f"Automatic summaries are suspended until {local_time(usage['rests_until'])}: {usage['resting']}")


@command.command("end")
@click.argument("session")
@home_option
@json_option
def end(session: str, home: Path, as_json: bool) -> None:
    """End a conversation permanently. The transcript stays readable until its retention period is over."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    changed = api.call("POST", f"{api.session(session)}/end")["ended"]
    if as_json:
        print_json({"ended": session, "changed": changed})
    else:
        print(f"Ended {session}." if changed else f"{session} had already ended.")


@command.command("delete")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Skip the confirmation; required without a terminal.")
@home_option
@json_option
@click.pass_context
def delete(context: click.Context, session: str, yes: bool, home: Path, as_json: bool) -> None:
    """Delete a conversation and its transcript."""
    from tidegate.cli.client import GatewayClient
    from tidegate.errors import TidegateError

    api = GatewayClient(home)
    path = api.session(session)
    if not yes:
        if not at_terminal():
            raise TidegateError(
                f"{session} was not deleted because there is no terminal for a confirmation: use --yes."
            )
        title = api.call("GET", path).get("title")
        named = f"“{strip_controls(title)}” ({session})" if title else session
        if not click.confirm(f"Delete {named} and its transcript?", err=True):
            print("Nothing was deleted.", file=sys.stderr)
            context.exit(1)
    api.call("DELETE", path)
    if as_json:
        print_json({"deleted": session})
    else:
        print(f"Deleted {session}.")


@command.command("export")
@click.argument("session")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file (default: standard output).")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@home_option
def export(session: str, output: Path | None, force: bool, home: Path) -> None:
    """Write a conversation as JSON lines."""
    from tidegate.cli.client import GatewayClient
    from tidegate.cli.output_files import write_file

    api = GatewayClient(home)
    lines = api.lines(f"{api.session(session)}/export")
    if output is not None:
        write_file(output, lines, force=force)
        print(f"Wrote {output}.")
        return
    for line in lines:
        sys.stdout.buffer.write(escape_json(line.decode()).encode())


@command.command("settings")
@home_option
@json_option
def settings(home: Path, as_json: bool) -> None:
    """List the settings of individual conversations, such as a model chosen by the user, latest first.

    This includes all users' conversations.
    """
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    found: list[dict[str, Any]] = []
    before: str | None = None
    while True:
        page = api.call("GET", "/api/settings", query={"limit": _PAGE, "before": before})
        found += page["settings"]
        before = page["next"]
        if before is None:
            break
    if as_json:
        print_json(found)
        return
    rows = [(row["session"], row["key"], *_setting(row)) for row in found]
    print_table(("session", "key", "value", "source", "ends"), rows, empty="No settings.")


@command.command("clear")
@click.argument("session")
@click.argument("key")
@home_option
@json_option
def clear(session: str, key: str, home: Path, as_json: bool) -> None:
    """Clear the setting KEY of a conversation. The agent's configuration applies again from the next turn."""
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    api.call("DELETE", api.setting(session, key))
    if as_json:
        print_json({"session": session, "cleared": key})
    else:
        print(f"Cleared {key} of {session}.")


@command.command("reload")
@click.argument("session", required=False)
@click.option("--all", "everyone", is_flag=True, help="Reload every live conversation without a running turn.")
@home_option
@json_option
def reload(session: str | None, everyone: bool, home: Path, as_json: bool) -> None:
    """Apply the agent's current prompt and tools to one conversation, or to all of them.

    For a conversation that changes, the provider's cache starts over, so its next request is billed in full.
    """
    from tidegate.cli.client import GatewayClient

    if (session is None) != everyone:
        raise click.UsageError("Specify the id of a conversation, or --all.")
    api = GatewayClient(home)
    if session is None:
        _reload_all(api, as_json)
        return
    changed = _reload(api, session)
    if as_json:
        print_json({"session": session, "changed": changed})
    else:
        print("Prompt and tools were updated." if changed else "Prompt and tools had not changed.")


def _reload(api: Any, session: str) -> bool:
    return bool(api.call("POST", f"{api.session(session)}/reload")["changed"])


def _reload_all(api: Any, as_json: bool) -> None:
    """Reloads conversations one by one. A conversation that is busy or has been deleted does not affect the rest."""
    from tidegate.errors import Conflict, NotFound

    changed: list[str] = []
    unchanged = 0
    left: list[dict[str, str]] = []
    for session in _live(api):
        try:
            if _reload(api, session):
                changed.append(session)
            else:
                unchanged += 1
        except NotFound:
            continue
        except Conflict as error:
            left.append({"session": session, "reason": error.message})
    if as_json:
        print_json({"changed": changed, "unchanged": unchanged, "left": left})
        return
    total = len(changed) + unchanged + len(left)
    print(f"Reloaded {len(changed)} of {total} conversations; {unchanged} had not changed.")
    for row in left:
        print(f"Not reloaded: {row['session']}: {strip_controls(row['reason'])}")


def _live(api: Any) -> list[str]:
    """Returns the ids of all live conversations, collected before any conversation is changed."""
    found: list[str] = []
    before: str | None = None
    while True:
        page = api.call("GET", "/api/sessions", query={"everyone": "true", "limit": _PAGE, "before": before})
        found += [view["id"] for view in page["sessions"] if view["kind"] == "named"]
        before = page["next"]
        if before is None:
            return found
