"""Fixtures shared by several packages; conftest files import them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
