"""The provenance of project files: the principals that could write them, and the files that may be included in a
prompt.

Before a session of anybody but the owner can write to a project folder, the store records the session's principal and
the digests of the files in the folder that prompts use (`survey`). From then on, a file in that folder is included in
other principals' prompts only if its content was there before or the owner has accepted it. It therefore does not
matter how or when a file is written: by a tool, a command, a process that outlives the gateway, or by moving a folder.

The records are read once, and again after each change; only this process writes them.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread

from tidegate.store import Store, workspaces
from tidegate.values import Frozen

T = TypeVar("T")

Survey = Callable[[Path], Mapping[str, bytes]]
"""Returns the digests of the files below a folder that may be included in prompts, by real path. Called in a thread."""

UNTRUSTED = (
    "somebody other than the owner could write to this folder, and the file is new or changed since; the owner accepts "
    "it with `tidegate projects trust`."
)


class Reader(Frozen, frozen=True):
    """A prompt's reader. `folders` are the folders to which anybody other than the owner and the reader could write;
    `trusted` lists the files in them that may be used. Equal readers may share a prompt."""

    folders: tuple[str, ...] = ()
    trusted: frozenset[tuple[str, bytes]] = frozenset()

    def admits(self, path: str, digest: bytes) -> bool:
        """True if a file with this real path and content may be included in the prompt."""
        return not path.startswith(self.folders) or (path, digest) in self.trusted


class Provenance:
    def __init__(self, store: Store, survey: Survey, clock: Callable[[], float]) -> None:
        self._store = store
        self._survey = survey
        self._clock = clock
        self._known: workspaces.ProjectTrust | None = None
        self._changes = 0

    async def known(self) -> workspaces.ProjectTrust:
        while (known := self._known) is None:
            changes = self._changes
            found: workspaces.ProjectTrust = await self._store.read(workspaces.project_trust)
            writers = await to_thread.run_sync(_real, found.writers)
            if changes == self._changes:
                self._known = workspaces.ProjectTrust(writers, found.trusted)
        return known

    async def reader(self, principal: str) -> Reader:
        known = await self.known()
        folders = {folder for folder, writer in known.writers if writer != principal}
        if not folders:
            return Reader()
        return Reader(folders=tuple(sorted(f"{folder}/" for folder in folders)), trusted=known.trusted)

    async def steady(self, principal: str, make: Callable[[Reader], Awaitable[T]]) -> T:
        """Builds a value from files for a reader. If a writer is added in the meantime, builds it again."""
        reader = await self.reader(principal)
        while True:
            result = await make(reader)
            if (now := await self.reader(principal)) == reader:
                return result
            reader = now

    async def admit(self, session: str, folder: Path) -> None:
        """Records the session's principal before the session can write to a project folder."""
        writer = await self._store.read(workspaces.project_writer, session)
        if writer is None:
            return
        real = await to_thread.run_sync(os.path.realpath, folder)
        if (real, writer) in (await self.known()).writers:
            return
        files = await to_thread.run_sync(self._survey, Path(real))
        await self._change(workspaces.add_project_writer, real, writer, files)

    async def trust(self, files: Mapping[str, bytes]) -> None:
        """Records that the owner accepts the files with these contents."""
        await self._change(workspaces.trust_files, files)

    async def files(self) -> Mapping[str, bytes]:
        """Returns the digests of the files in folders to which anybody other than the owner could write."""
        found: dict[str, bytes] = {}
        for folder in sorted({folder for folder, _ in (await self.known()).writers}):
            found |= await to_thread.run_sync(self._survey, Path(folder))
        return found

    async def _change(self, change: Callable[..., None], *arguments: Any) -> None:
        try:
            await self._store.write(change, *arguments, self._clock())
        finally:
            self._known = None
            self._changes += 1


def _real(writers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return frozenset((os.path.realpath(folder), principal) for folder, principal in writers)
