"""One gateway for all tests of the command line. Each test creates its own conversations."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.process import GatewayProcess, gateway


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(tmp_path_factory.mktemp("cli") / "home") as found:
        yield found


@pytest.fixture
def nobody(tmp_path: Path) -> Path:
    """A home folder without a running gateway."""
    home = tmp_path / "nobody"
    home.mkdir(mode=0o700)
    return home
