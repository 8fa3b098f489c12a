from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures import model
from tests.workspaces.making import Room, room

__all__ = ["home", "model", "rooms", "session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as a sandbox test."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def rooms(home: Path) -> AsyncIterator[Room]:
    async with room(home) as opened:
        yield opened


@pytest.fixture
async def session(rooms: Room) -> str:
    return await rooms.new_session()
