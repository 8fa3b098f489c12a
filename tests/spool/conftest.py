"""A spool with low limits over a real store, and one session in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures import home, model
from tests.spool.spools import SESSION, spool_of
from tests.store.rows import new_session
from tidegate.spool import SessionSpool, Spool
from tidegate.store import Store

__all__ = ["home", "model"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "tidegate.db") as store:
        await store.write(new_session, SESSION)
        yield store


@pytest.fixture
def spool(store: Store, tmp_path: Path) -> Spool:
    return spool_of(tmp_path / "spool", store)


@pytest.fixture
def mine(spool: Spool) -> SessionSpool:
    return spool.of(SESSION, "t_1")
