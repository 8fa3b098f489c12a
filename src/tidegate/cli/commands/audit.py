"""`tidegate audit`: shows the audit log."""

import sys
from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import local_time, print_json, print_table

_KINDS = ("sign_in", "sign_out", "key", "principal", "approval", "rule", "tool", "egress", "configuration", "setting")
_PAGE = 1000  # rows in one response
_DIGEST_CHARACTERS = 12  # shown in tables; enough to tell thousands of digests apart


@click.command("audit")
@click.option("--since", default="30d", show_default=True, help="A time span (7d) or a UTC date (2026-11-01).")
@click.option("--kind", type=click.Choice(_KINDS), help="Only events of this kind.")
@click.option("--principal", help="Events by or about the user with this name or id.")
@click.option("--session", help="Events in the conversation with this id.")
@click.option("--host", help="Connections of web tools to this host.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Maximum number of events; the latest are shown.",
)
@home_option
@json_option
def command(
    since: str,
    kind: str | None,
    principal: str | None,
    session: str | None,
    host: str | None,
    limit: int,
    home: Path,
    as_json: bool,
) -> None:
    """Show the audit log, latest events last: sign-ins, keys, users, approvals, stored approvals, tool calls with side
    effects, hosts that web tools connected to, configuration and settings.

    The log contains ids and digests, never content.
    """
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    query = {"since": since, "kind": kind, "principal": principal, "session": session, "host": host}
    events: list[dict[str, Any]] = []
    before = None
    while len(events) < limit:
        page = api.call(
            "GET", "/api/audit", query={**query, "limit": min(_PAGE, limit - len(events)), "before": before}
        )
        events += page["events"]
        before = page["next"]
        if before is None:
            break
    events.reverse()
    if as_json:
        print_json(events)
    else:
        _print(events)
    if before is not None:
        print(f"There are more than {limit}: raise --limit, or narrow the search.", file=sys.stderr)


def _print(events: list[dict[str, Any]]) -> None:
    rows = [
        (event["id"], local_time(event["at"]), event["kind"], event["outcome"], event["name"] or event["principal"],
         event["session"], event["subject"], (event["digest"] or "")[:_DIGEST_CHARACTERS])
        for event in events
    ]  # fmt: skip
    heads = ("id", "when", "kind", "outcome", "by", "conversation", "subject", "digest")
    print_table(heads, rows, empty="Nothing was recorded in this period.", numbers=(0,), uncut=(6,))
