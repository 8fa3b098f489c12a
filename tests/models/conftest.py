"""A scripted model server for each test."""

from collections.abc import AsyncIterator

import pytest

from bench.scripted_model import ScriptedModel


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model
