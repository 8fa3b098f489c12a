"""Tools get services of the gateway by type."""

import shutil
from pathlib import Path
from typing import Protocol

import pytest

from tests.gateway.process import gateway
from tests.tools.contexts import bare
from tidegate.errors import ToolFailed
from tidegate.tools import Notes, ToolServices, Toolset, builtin_toolsets
from tidegate.tools.toolsets import Toolsets

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tidegate"

DEPTH = '''
"""The toolset `depth`."""

from tidegate.tools.services import Notes
from tidegate.tools.tool import ToolContext, tool


@tool(effect="write", contained=True)
async def sound_depth(ctx: ToolContext, *, metres: int) -> str:
    """Sounds the depth and remembers it."""
    notes = ctx.service(Notes, otherwise="The depth cannot be remembered here.")
    return await notes.remember(ctx, f"The depth was {metres} m", about="person", replaces=None)
'''


class Depth(Protocol):
    def metres(self) -> int: ...


class Sounder:
    def metres(self) -> int:
        return 7


def test_a_service_is_found_by_its_type_and_missing_in_one_sentence() -> None:
    """X23: nothing but the provided services is available."""
    provided: dict[type, object] = {Depth: Sounder()}
    context = bare(services=ToolServices(provided))
    provided.clear()
    assert context.service(Depth, otherwise="").metres() == 7
    with pytest.raises(ToolFailed, match=r"^There are no notes here\.$"):
        context.service(Notes, otherwise="There are no notes here.")


def test_a_new_tool_that_needs_a_service_is_one_file(tmp_path: Path) -> None:
    """A copy of the gateway with one more file in `tools/builtin/`, and an agent that names it."""
    tree = tmp_path / "tidegate"
    shutil.copytree(SOURCE, tree, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tools" / "builtin" / "depth.py").write_text(DEPTH)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text('[models.main]\napi = "demo"\n[agents.main]\ntools = ["depth", "memory"]\n')
    with gateway(home, PYTHONPATH=str(tmp_path)) as running:
        assert "The depth was 12 m" in running.say('call sound_depth {"metres": 12}', "talk")
        assert [note["text"] for note in running.call("GET", "/api/memory")["notes"]] == ["The depth was 12 m"]


def test_a_plug_in_with_long_results_gets_the_tool_that_reads_the_rest() -> None:
    """D1: as the gateway's own toolsets do."""
    (read_file,) = [tool for tool in builtin_toolsets(["files"])["files"] if tool.name == "read_file"]
    registry = Toolsets(builtin_toolsets(["clock"])).adding({"own": Toolset([read_file])})
    assert registry.resolve(["own"]).names == ("output", "read_file")
    assert registry.resolve(["clock"]).names == ("clock",)
