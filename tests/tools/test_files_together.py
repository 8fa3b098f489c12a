"""The toolset `files` and commands, in one workspace."""

from pathlib import Path

import msgspec
import pytest

from tests.workspaces.harness import WorkspaceHarness as Room
from tests.workspaces.harness import open_workspaces as room
from tidegate.errors import ToolFailed
from tidegate.tools import Result, ToolContext, builtin_toolsets
from tidegate.values import new_id

pytestmark = pytest.mark.anyio


async def call(opened: Room, session: str, name: str, **arguments: object) -> str:
    """As a model would call it."""
    tool = builtin_toolsets()["files"].get(name)
    assert tool is not None
    context = ToolContext(
        session=session,
        principal="p",
        channel="http",
        agent="main",
        turn="t_1",
        workspace=opened.of(session),
        spool=opened.spool.of(session, "t_1"),
    )
    result = await tool.run(context, msgspec.json.encode(arguments).decode())
    return result.text if isinstance(result, Result) else result


async def test_files_and_commands_see_the_same_under_the_same_paths(tmp_path: Path) -> None:
    """B2, S12: what one wrote the other reads, by relative and by absolute path, over links, in each folder that
    commands have."""
    async with room(tmp_path / "home") as opened:
        session = await opened.new_session()
        await call(opened, session, "write_file", path="src/a.py", content="print('old')\n")
        assert await opened.output_of(session, "cat /workspace/src/a.py") == "print('old')"
        await opened.output_of(
            session, "chmod 755 src/a.py; ln -s /workspace/src/a.py link; echo x > /tmp/t; echo y > ~/h"
        )
        await call(opened, session, "edit_file", path="link", old="old", new="new")
        assert await opened.output_of(session, "python3 src/a.py; stat -c %a src/a.py; test -L link && echo link") == (
            "new\n755\nlink"
        )
        assert await call(opened, session, "read_file", path="/tmp/t") == "x\n"
        home = await opened.output_of(session, "echo ~")
        assert await call(opened, session, "read_file", path=f"{home}/h") == "y\n"
        assert "src/a.py\n1: print('new')" in await call(opened, session, "search_files", pattern="ne.")
        listed = await call(opened, session, "list_files", recursive=True)
        assert listed.split("\n")[:3] == ["- link -> /workspace/src/a.py", "- src/", "13 src/a.py"]


async def test_links_out_of_the_sandbox_are_not_followed(tmp_path: Path) -> None:
    """X07, X18: a link made inside means what is inside; the machine's own files are not to be had by it."""
    name = new_id("x")
    async with room(tmp_path / "home") as opened:
        session = await opened.new_session()
        await opened.output_of(session, f"ln -s /tmp/{name} t; ln -s /etc/passwd p; ln -s / root; ln -s .. up")
        for path in ("p", "root/etc/passwd", "up/x", "/etc/passwd"):
            with pytest.raises(ToolFailed, match=r"outside the workspace|leads out"):
                await call(opened, session, "read_file", path=path)
            with pytest.raises(ToolFailed, match=r"outside the workspace|leads out"):
                await call(opened, session, "write_file", path=path, content="x")
        await call(opened, session, "write_file", path="t", content="in the session's own /tmp")
        assert await opened.output_of(session, f"cat /tmp/{name}") == "in the session's own /tmp"
        assert not Path("/tmp", name).exists()


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_folders_of_the_configuration_are_read_and_never_written(tmp_path: Path, backend: str) -> None:
    """X07, X18: by no tool, neither over their own path nor over a link; the gateway could, so it must refuse."""
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    (shared / "manual").write_text("read me\n")
    async with room(tmp_path / "home", backend=backend, read_only=(str(shared),)) as opened:
        session = await opened.new_session()
        assert await call(opened, session, "read_file", path=f"{shared}/manual") == "read me\n"
        await opened.output_of(session, f"ln -s {shared} out; ln -s {shared}/manual leaf")
        for path in (f"{shared}/manual", f"{shared}/new", f"{shared}/deep/new", "out/manual", "out/new", "leaf"):
            with pytest.raises(ToolFailed):
                await call(opened, session, "write_file", path=path, content="x")
        for path in (f"{shared}/manual", "out/manual", "leaf"):
            with pytest.raises(ToolFailed):
                await call(opened, session, "edit_file", path=path, old="read", new="write")
        assert (shared / "manual").read_text() == "read me\n"
        assert sorted(path.name for path in shared.rglob("*")) == ["deep", "manual"]
