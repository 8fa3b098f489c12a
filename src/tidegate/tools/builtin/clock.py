"""The toolset `clock`: the current date and time."""

from datetime import UTC, datetime
from typing import Annotated

from anyio import to_thread
from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.tool import ToolContext, tool

LONGEST_ZONE = 64
"""Maximum length of a time zone name. The longest name in the time zone database has 32 characters."""


@tool(effect="read", timeout=10, parallel=True)
async def clock(
    ctx: ToolContext,
    *,
    zone: Annotated[str, Meta(description="An IANA time zone such as Europe/Berlin; empty for UTC only.")] = "",
) -> str:
    """Returns the current date and time in UTC and, if a time zone is given, in that zone."""
    now = datetime.now(UTC)
    utc = f"{now:%A} {now:%Y-%m-%dT%H:%M:%SZ} (UTC)"
    if not zone or zone.upper() == "UTC":
        return utc
    # The first use of a zone reads its file.
    local = await to_thread.run_sync(_in_zone, now, zone)
    return f"{local:%A} {local.isoformat(timespec='seconds')} ({zone})\n{utc}"


def _in_zone(now: datetime, zone: str) -> datetime:
    from zoneinfo import ZoneInfo  # rarely needed, since most callers never pass a zone

    try:
        if len(zone) > LONGEST_ZONE:
            raise ValueError
        return now.astimezone(ZoneInfo(zone))
    except (ValueError, KeyError, OSError):
        raise ToolFailed(
            f'clock: there is no time zone "{zone[:LONGEST_ZONE]}"; use an IANA name such as Europe/Berlin'
        ) from None
