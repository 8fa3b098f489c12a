"""Provenance of project files: who could write them, and what prompts use, in the order in which it becomes known."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store.rows import new_session
from tidegate.store import Store, principals
from tidegate.workspaces.provenance import Provenance, Reader

pytestmark = pytest.mark.anyio

OLD, NEW = b"old", b"new"


class Folder:
    """A project with one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = f"{path}/AGENTS.md"
        self.content = OLD
        self.surveys = 0

    def survey(self, folder: Path) -> dict[str, bytes]:
        self.surveys += 1
        return {self.file: self.content}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "tidegate.db") as store:
        yield store


@pytest.fixture
async def provenance(store: Store, folder: Folder) -> Provenance:
    await store.write(principals.add, id="p_owner", name="owner", role="owner", agents=None, now=1.0)
    for name in ("owner", "anna", "bert"):
        await store.write(new_session, f"s_{name}", principal=f"p_{name}")
    return Provenance(store, folder.survey, lambda: 1.0)


async def test_the_owners_sessions_are_not_recorded_as_writers(provenance: Provenance, folder: Folder) -> None:
    await provenance.admit("s_owner", folder.path)
    assert folder.surveys == 0 and await provenance.reader("p_anna") == Reader()


async def test_files_from_before_the_first_writer_are_trusted(provenance: Provenance, folder: Folder) -> None:
    """X19: and files from before the second writer are not."""
    await provenance.admit("s_anna", folder.path)
    reader = await provenance.reader("p_owner")
    assert reader.admits(folder.file, OLD) and not reader.admits(folder.file, NEW) and reader.admits("/else", NEW)
    assert await provenance.reader("p_anna") == Reader()
    folder.content = NEW
    await provenance.admit("s_bert", folder.path)
    for principal in ("p_owner", "p_anna", "p_bert"):
        reader = await provenance.reader(principal)
        assert reader.admits(folder.file, OLD) and not reader.admits(folder.file, NEW)
    await provenance.admit("s_bert", folder.path)
    assert folder.surveys == 2


async def test_files_are_read_again_if_a_writer_is_added_meanwhile(provenance: Provenance, folder: Folder) -> None:
    """X19: otherwise their writes at that moment would count as earlier content."""
    readers: list[Reader] = []

    async def make(reader: Reader) -> bool:
        if not readers:
            await provenance.admit("s_anna", folder.path)
            folder.content = NEW
        readers.append(reader)
        return reader.admits(folder.file, folder.content)

    assert await provenance.steady("p_owner", make) is False
    assert len(readers) == 2 and readers[0] == Reader()


async def test_writers_are_known_after_a_restart(provenance: Provenance, folder: Folder, store: Store) -> None:
    """L18: and so is what the owner accepted."""
    await provenance.admit("s_anna", folder.path)
    await provenance.trust({folder.file: NEW})
    reader = await Provenance(store, folder.survey, lambda: 2.0).reader("p_owner")
    assert reader.admits(folder.file, NEW) and not reader.admits(folder.file, OLD)
