"""The context of a call in which a tool uses neither workspace nor spool: to touch either is an error."""

from typing import Any, cast

from tidegate.tools import ToolContext


def bare(**fields: Any) -> ToolContext:
    nothing = cast(Any, None)
    given = {"session": "s", "principal": "p", "channel": "http", "agent": "main", "turn": "t", **fields}
    return ToolContext(workspace=nothing, spool=nothing, **given)
