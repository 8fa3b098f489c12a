"""A store in a fresh folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidegate.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tidegate.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    async with Store.open(path) as store:
        yield store
