"""Where notes are kept: what a memory provider is, and how one of the user's own is found.

Guarantee: only the provider that `[memory] provider` names is looked for and run. A file `memories/NAME.py` in the home
folder, or else a package's entry point `tidegate.memories`, gives a function `provide(home)`. What is wrong with it is
the operator's to mend, in one sentence that names the file or the package. Who may write what is no provider's to
decide: it is asked only for what the gateway has allowed.
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
    """One note: a line of text under a number. `author` is the id of the principal who wrote it, himself or in the
    conversation `session`; `by` is what people call him."""

    id: int
    text: str
    author: str
    by: str
    source: Origin
    at: float
    session: str | None = None


class Draft(Frozen, frozen=True):
    """What is to be remembered. `whose` is a principal's id or an agent's name. With `replaces` it takes the place of
    the note of that number. What comes under a `key` a second time is not remembered a second time."""

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
    """Keeps notes. What it raises is told to people as "the memory does not answer"; `LookupError` means that there is
    no note of that number."""

    async def part(self, agent: str, principal: str) -> str:
        """What a conversation of this agent with this person begins with: notes as lines of text, the most important
        first; empty when there are none."""
        ...

    async def listing(self, about: About, whose: str) -> Sequence[Note]: ...

    async def remember(self, draft: Draft) -> Note: ...

    async def forget(self, about: About, whose: str, note: int) -> None: ...

    async def close(self) -> None: ...


Provide = Callable[[Path], Awaitable[MemoryProvider]]
"""Opens a provider; it is given the gateway's home folder."""


def find(name: str, home: Path) -> Provide:
    """The function that opens the provider of that name; Misconfigured when there is none."""
    file = home / FOLDER / f"{name}.py"
    found: Provide = plugins.function_of(name, file, FUNCTION, group=GROUP, kind="memory", setting="[memory] provider")
    return found
