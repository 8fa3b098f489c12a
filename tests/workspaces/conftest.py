from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures import model
from tests.workspaces.harness import WorkspaceHarness, open_workspaces

__all__ = ["harness", "home", "model", "session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as a sandbox test."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def harness(home: Path) -> AsyncIterator[WorkspaceHarness]:
    async with open_workspaces(home) as opened:
        yield opened


@pytest.fixture
async def session(harness: WorkspaceHarness) -> str:
    return await harness.new_session()
