from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as a sandbox test: servers run in sandboxes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
