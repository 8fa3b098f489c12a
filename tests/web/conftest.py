from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.fixtures import home, model
from tests.in_process import InProcessGateway, in_process_gateway

__all__ = ["gateway", "home", "model"]


@pytest.fixture
async def gateway(home: Path, model: ScriptedModel) -> AsyncIterator[InProcessGateway]:
    """A gateway whose agent `main` talks to the scripted model."""
    async with in_process_gateway(home, model=model) as running:
        yield running
