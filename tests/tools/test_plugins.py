"""The user's own toolsets, from a file and from a package."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.config import load
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight import preflight
from tidegate.tools import plugins

TOOL = '''
from tidegate.tools import ToolContext, tool


@tool(effect="read")
async def tide(ctx: ToolContext, *, place: str) -> str:
    """Tells the tide at a place."""
    return f"high at {place}"
'''


def test_a_file_in_the_home_folder_is_a_toolset(tmp_path: Path) -> None:
    """C3: under the file's name, when an agent names it; a name that comes with the gateway stays the gateway's."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "sea.py").write_text(TOOL)
    (tmp_path / "tools" / "clock.py").write_text(TOOL)
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["clock", "sea"]\n')
    ready = preflight.examine(tmp_path, {})
    assert ready.tools.resolve(["sea"]).names == ("tide",)
    assert ready.tools.resolve(["clock"]).names == ("clock",)
    assert load(tmp_path).agents["main"].tools == ("clock", "sea")


def test_a_package_offers_a_toolset_by_its_entry_point(tmp_path: Path) -> None:
    """C3: installed like any other package."""
    (tmp_path / "seaside.py").write_text(f"{TOOL}\nfrom tidegate.tools import Toolset\nsea = Toolset((tide,))\n")
    installed = tmp_path / "seaside-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: seaside\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[tidegate.toolsets]\nsea = seaside:sea\n")
    look = (
        "from pathlib import Path; from tidegate.tools import plugins; "
        "print(plugins.find_toolset('sea', Path('/nowhere')).names, plugins.find_toolset('other', Path('/nowhere')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)}
    )
    assert run.stdout.split() == ["('tide',)", "None"], run.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [("1 / 0", "ZeroDivisionError"), ("x = 1", "defines no tool"), ("def", "SyntaxError")],
)
def test_a_file_that_is_wrong_is_named_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "sea.py").write_text(text)
    with pytest.raises(Misconfigured, match=says) as raised:
        plugins.find_toolset("sea", tmp_path)
    assert str(tmp_path / "sea.py") in raised.value.message
