"""The shared backend behaviour in the bubblewrap sandbox; other backends include it in their own tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.workspaces.conformance import Conformance, Place, opened, spawner, spec_of
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(BubblewrapBackend(spawner()), spec_of(tmp_path)) as made:
        yield made


class TestBubblewrap(Conformance):
    finds_the_unmarked = False  # without control groups
