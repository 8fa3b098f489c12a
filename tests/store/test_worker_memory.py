"""The store's threads keep nothing of what they have read and written."""

import weakref
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tidegate.store import Db, Store

pytestmark = pytest.mark.anyio


class Page:
    """Stands for what a read or a write takes and gives: megabytes, perhaps."""


@pytest.mark.parametrize("way", ["read", "write"])
async def test_the_threads_release_what_they_have_read_and_written(path: Path, way: str) -> None:
    """L07, L22: neither arguments nor results stay in memory while the thread waits for its next job."""
    kept: list[Callable[[], Page | None]] = []

    def work(db: Db, given: Page) -> Page:
        made = Page()
        kept.extend((weakref.ref(given), weakref.ref(made)))
        return made

    async with Store.open(path, readers=1) as store:
        await (store.read if way == "read" else store.write)(work, Page())
        assert len(kept) == 2
        with anyio.fail_after(10):
            while any(one() is not None for one in kept):
                await anyio.sleep(0.001)
