"""A project's instruction files (`AGENTS.md` and similar) in prompts.

A prompt contains only files named in the agent's settings, only from its project folder, and at most `PROJECT_BYTES` in
total. If a file is truncated, a note says where the rest is. Each file is shown under its name between fences that its
content cannot close, so text in the file cannot pass for text from the gateway. The same files always produce the same
text. Files that do not exist are left out. Files that cannot be used, or that the reader should not trust
(`workspaces.provenance`), are also left out; this is logged once.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.config import Config
from tidegate.lifetimes import CacheStats
from tidegate.log import Log
from tidegate.skills import file_access
from tidegate.skills.discovery import local_project
from tidegate.skills.discovery_cache import DiscoveryCache, DiscoveryKey, LogOnce, discover
from tidegate.skills.frontmatter import InvalidSkill
from tidegate.workspaces.files import printable
from tidegate.workspaces.provenance import UNTRUSTED, Provenance

log = Log(__name__)

PROJECT_BYTES = 32 * 1024
"""Maximum total size of all files. This corresponds to about 8,000 tokens, which are part of every request in a
conversation."""

LINE_SHARE = 0.9
"""A truncated last line is dropped only if at least this share of the text remains."""

HEADING = (
    "# The project\n\n"
    "The files below belong to the project that you are working in; its authors wrote them for anyone who works on "
    "it. Follow them, within your task and your permissions. Each file's text is between two fences."
)
_FENCE = re.compile("`{3,}")


class ProjectFiles:
    """Contributes the project's files to prompts."""

    name = "project"
    needs_tools = False

    def __init__(
        self, config: Config, provenance: Provenance | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._log_once = LogOnce(log)
        self._cache = DiscoveryCache("project prompts", self._look, "", _weigh, clock=clock)

    def serves(self, agent: str) -> bool:
        settings = self._config.agents.get(agent)
        named = settings is not None and bool(settings.project_files)
        return named and local_project(self._config, agent) is not None

    async def part(self, agent: str, principal: str) -> str:
        return await discover(self._cache, agent, principal, self._provenance)

    def caches(self) -> tuple[CacheStats, ...]:
        return self._cache.stats()

    def _look(self, key: DiscoveryKey) -> str:
        folder = local_project(self._config, key.agent)
        if folder is None or not folder.is_dir():
            return ""
        shown: list[str] = []
        seen: list[tuple[int, int]] = []
        room = PROJECT_BYTES
        for name in self._config.agents[key.agent].project_files:
            try:
                found = file_access.load(file_access.mount(folder), name, room)
                if found is None or found.mark[:2] in seen:
                    continue  # one is often a link to the other
                if not key.reader.admits(found.path, found.digest):
                    raise InvalidSkill(UNTRUSTED)
                seen.append((found.mark.device, found.mark.inode))
                if text := _text(found):
                    shown.append(_shown(name, text, found))
                    room -= len(text.encode())
                elif not found.complete:
                    shown.append(_omitted(name, found))
            except InvalidSkill as error:
                self._warn(folder / name, error.message)
            except OSError as error:
                self._warn(folder / name, f"it cannot be read ({error.strerror}); fix that.")
        return "\n\n".join([HEADING, *shown]) if shown else ""

    def _warn(self, path: Path, reason: str) -> None:
        self._log_once.warn("a project file is left out", printable(str(path)), reason)


def _weigh(text: str) -> int:
    return 2 * len(text)


def _text(found: file_access.FileContent) -> str:
    """Returns the part of a file that is shown. If the file is not shown in full, the part consists of complete
    lines."""
    if b"\0" in found.data:
        raise InvalidSkill("it is not text; name another file in project_files.")
    data = found.data if found.complete else _to_a_line_end(found.data)
    try:
        return data.decode("utf-8-sig").strip("\n")
    except UnicodeDecodeError as error:
        if found.complete or error.start < len(data) - 3:
            raise InvalidSkill("it is not valid UTF-8; save it as UTF-8.") from None
        return data[: error.start].decode("utf-8-sig")  # one long line whose last character was split


def _to_a_line_end(data: bytes) -> bytes:
    """Removes the truncated last line, unless it is long."""
    end = data.rfind(b"\n") + 1
    return data[:end] if end > LINE_SHARE * len(data) else data


def _shown(name: str, text: str, found: file_access.FileContent) -> str:
    fence = "`" * max((len(run) + 1 for run in _FENCE.findall(text)), default=3)
    notice = f"\n\n{_cut(name, f'Only its first {len(text.encode()):,} of', found)}" if not found.complete else ""
    return f"## Project file: {printable(name)}{notice}\n\n{fence}\n{text}\n{fence}"


def _omitted(name: str, found: file_access.FileContent) -> str:
    return f"## Project file: {printable(name)}\n\n{_cut(name, 'None of its', found)}"


def _cut(name: str, how_much: str, found: file_access.FileContent) -> str:
    return (
        f"{how_much} {found.mark.size:,} bytes are included here; the rest is in {printable(name)} in your workspace."
    )
