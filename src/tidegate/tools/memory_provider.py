"""The interface of memory providers, which store notes, and the loading of the user's own provider.

Only the provider that `[memory] provider` names is looked up and run. The function `provide(home)` comes from the file
`memories/NAME.py` in the home folder or else from a package's entry point in the group `tidegate.memories`. A faulty
provider raises `Misconfigured` with one sentence that names the file or the package. Providers do not check
permissions: the gateway calls them only for actions that it has allowed.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from tidegate.store import About, Origin
from tidegate.tools import plugins
from tidegate.values import Frozen

GROUP = "tidegate.memories"
FOLDER = "memories"
FUNCTION = "provide"


class Note(Frozen, frozen=True):
    """One note: a line of text with a number. `author` is the id of the principal who wrote it, directly or in the
    conversation `session`; `by` is the author's name for display."""

    id: int
    text: str
    author: str
    by: str
    source: Origin
    at: float
    session: str | None = None


class Draft(Frozen, frozen=True):
    """A note to be stored. `whose` is a principal's id or an agent's name. `replaces` is the number of the note that it
    replaces. A draft whose `key` was used before is not stored again."""

    about: About
    whose: str
    text: str
    author: str
    by: str
    source: Origin
    session: str | None = None
    replaces: int | None = None
    key: str = ""


class MemoryProvider(Protocol):
    """Stores notes. `LookupError` means that there is no note of that number; users see any other exception as "the
    memory does not answer"."""

    async def part(self, agent: str, principal: str) -> str:
        """The notes at the beginning of this agent's conversations with this person, as lines of text, the most
        important first; empty if there are none."""
        ...

    async def listing(self, about: About, whose: str) -> Sequence[Note]: ...

    async def remember(self, draft: Draft) -> Note: ...

    async def forget(self, about: About, whose: str, note: int) -> None: ...

    async def close(self) -> None: ...


Provide = Callable[[Path], Awaitable[MemoryProvider]]
"""Opens a provider. Called with the gateway's home folder."""


def find(name: str, home: Path) -> Provide:
    """Returns the function that opens the provider of that name; raises `Misconfigured` if there is none."""
    file = home / FOLDER / f"{name}.py"
    provide: Provide = plugins.load_function(
        name, file, FUNCTION, group=GROUP, kind="memory", setting="[memory] provider"
    )
    return provide
