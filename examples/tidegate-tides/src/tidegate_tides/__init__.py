"""The toolset `tides`: a tide table that the plug-in keeps in its data folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from anyio import to_thread

from tidegate.plugins import PluginContext, Tool, ToolContext, plugin, tool


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The table `[plugins.tides]`."""

    place: str


class Tides:
    """The object of the plug-in: its tools, and the file that they use while the gateway runs."""

    def __init__(self, place: str, file: Path) -> None:
        self._place = place
        self._file = file
        self._table: dict[str, str] = {}

    async def start(self) -> None:
        if self._file.exists():
            self._table = msgspec.json.decode(await to_thread.run_sync(self._file.read_bytes), type=dict[str, str])

    async def stop(self) -> None:
        await to_thread.run_sync(self._file.write_bytes, msgspec.json.encode(self._table))

    @property
    def tools(self) -> Sequence[Tool]:
        @tool(effect="write", contained=True, owner="tides")
        async def note_tide(
            ctx: ToolContext, *, day: str, time: Annotated[str, msgspec.Meta(description="HH:MM")]
        ) -> str:
            """Notes the time of high water on a day."""
            self._table[day] = time
            return f"noted: high water at {self._place} on {day} at {time}"

        @tool(effect="read", parallel=True, owner="tides")
        async def tide(ctx: ToolContext, *, day: str) -> str:
            """Returns the time of high water on a day."""
            return f"high water at {self._place} on {day}: {self._table.get(day, 'unknown')}"

        return (note_tide, tide)


@plugin("toolset")
async def make(ctx: PluginContext) -> Tides:
    settings = msgspec.convert(ctx.settings, Settings)
    return Tides(settings.place, ctx.folder / "table.json")
