"""The results of a run, as a table of checks by clients and a line for each failure."""

from dataclasses import asdict, dataclass
from typing import Any

from tests.clients.plan import PLAN

MARKS = {True: "ok", False: "FAILED", None: "-"}
OWN = "its own"


@dataclass(frozen=True)
class Result:
    """Of one check of one client with one agent. `ok` is None if the check does not apply, and `why` says so."""

    client: str
    check: str
    agent: str
    ok: bool | None
    why: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def table(results: list[Result]) -> str:
    clients = list(dict.fromkeys(result.client for result in results))
    rows = [*PLAN, OWN]
    width = max(map(len, rows))
    widths = [max(len(client), len(MARKS[False])) for client in clients]
    head = [" " * width, *(client.ljust(size) for client, size in zip(clients, widths, strict=True))]
    lines = ["  ".join(head).rstrip()]
    for row in rows:
        marks = [_mark(results, client, row).ljust(size) for client, size in zip(clients, widths, strict=True)]
        lines.append("  ".join([row.ljust(width), *marks]).rstrip())
    failures = [result for result in results if result.ok is False]
    lines.append("")
    lines += [f"FAILED {one.client} {one.check} ({one.agent}): {one.why}" for one in failures]
    lines += [f"skipped {one.client} {one.check}: {one.why}" for one in results if one.ok is None]
    ran = sum(result.ok is not None for result in results)
    lines.append(f"{ran} checks, {len(failures)} failed.")
    return "\n".join(lines)


def _mark(results: list[Result], client: str, row: str) -> str:
    outcomes = [
        result.ok
        for result in results
        if result.client == client and (result.check if result.check in PLAN else OWN) == row
    ]
    if False in outcomes:
        return MARKS[False]
    return MARKS[True] if True in outcomes else MARKS[None]
