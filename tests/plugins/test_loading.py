"""Plug-ins are found by name, imported within a deadline, and checked before a start."""

import subprocess
import sys
import threading
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.core import WAIT
from tests.gateway.process import environment
from tidegate.config import load, read, show
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight import PreflightFailed, preflight
from tidegate.plugins import API_VERSION, MemoryProvider, SearchIndex, loading
from tidegate.plugins.kinds import KINDS
from tidegate.plugins.loading import PluginInvalid, PluginUse

TOOLSET = '''
from tidegate.plugins import ToolContext, Toolset, plugin, tool


@tool(effect="read")
async def tide(ctx: ToolContext, *, place: str) -> str:
    """Tells the tide at a place."""
    return f"high at {place}"


@plugin("toolset")
async def make(ctx):
    return Toolset([tide])
'''

SEA = PluginUse(kind="toolset", name="sea", agents=("main",))


def put(home: Path, text: str, name: str = "sea") -> Path:
    file = home / "plugins" / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_a_file_in_the_home_folder_is_a_plug_in(tmp_path: Path) -> None:
    """C3: a name that comes with the gateway stays the gateway's."""
    file = put(tmp_path, TOOLSET)
    put(tmp_path, "1 / 0", "clock")
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["clock", "sea"]\n')
    ready = preflight.examine(tmp_path, {})
    assert ready.plugins is not None
    (loaded,) = ready.plugins.loaded
    assert (loaded.use.name, loaded.factory.kind, loaded.file) == ("sea", "toolset", str(file))


def test_a_file_may_define_classes_whose_annotations_are_strings(tmp_path: Path) -> None:
    """C3: such classes look for their module by its name; two files have different modules."""
    text = (
        "from __future__ import annotations\nimport dataclasses, typing\nimport msgspec\n"
        "class Day(msgspec.Struct):\n    number: int = 0\n"
        "@dataclasses.dataclass\nclass Week:\n    first: Day\n    days: typing.ClassVar[int] = 7\n"
        "assert msgspec.convert({'number': 2}, Day).number == 2\n"
    )
    for name in ("sea-side", "sea_side"):
        file = put(tmp_path, text + TOOLSET, name)
        use = PluginUse(kind="toolset", name=name, agents=("main",))
        assert loading.load(use, tmp_path).file == str(file)


def test_a_package_offers_a_plug_in_by_its_entry_point(tmp_path: Path) -> None:
    """C3: installed like any other package."""
    folder = tmp_path / "installed"
    _install(folder, TOOLSET)
    code = (
        "from pathlib import Path; from tidegate.plugins.loading import PluginUse, load; "
        "print(load(PluginUse(kind='toolset', name='sea', agents=('main',)), Path('/nowhere')).file)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder)}
    )
    assert run.stdout.strip() == str(folder / "seaside.py"), run.stderr


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1\n1 / 0", "line 2: ZeroDivisionError: division by zero$"),
        ("x = 1\ndef", "line 2: SyntaxError"),
        ("import no_such_module", "line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
        ("x = 1", r'declares no plug-in; put @plugin\("toolset"\) before its function'),
        (TOOLSET.replace('"toolset"', '"index"'), "line 11: this is a plug-in of kind index, not a toolset"),
        (TOOLSET.replace('"toolset"', '"tolset"'), "line 11: there is no kind of plug-in 'tolset'; known: toolset"),
        (
            TOOLSET + '\n@plugin("toolset")\nasync def other(ctx): ...\n',
            "line 15: this is a second .* is in .*line 11; keep one",
        ),
        (TOOLSET.replace('"toolset"', "[]"), "line 11: there is no kind of plug-in"),
        (TOOLSET.replace('"toolset"', '"toolset", api="1"'), "line 11: its api must be a number, not '1'"),
        (TOOLSET.replace('"toolset"', '"toolset", api=99'), "line 11: .* needs version 99 .* has version 1; update"),
    ],
)
def test_a_broken_plug_in_is_named_with_its_file_and_line(tmp_path: Path, text: str, fault: str) -> None:
    """In one sentence, and which agents need it."""
    file = put(tmp_path, text)
    with pytest.raises(PluginInvalid, match=fault) as invalid:
        loading.load(SEA, tmp_path)
    assert str(file) in invalid.value.message and "\n" not in invalid.value.message
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["sea"]\n[agents.other]\ntools = ["sea"]\n')
    with pytest.raises(PreflightFailed) as refused:
        preflight.examine(tmp_path, {})
    (error,) = refused.value.errors
    assert "the agents main, other need it" in error and invalid.value.message in error


def test_an_import_that_hangs_is_given_up_with_its_line(tmp_path: Path) -> None:
    """The gateway does not wait for it."""
    go = tmp_path / "go"
    file = put(
        tmp_path, f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.005)\n"
    )
    with pytest.raises(PluginInvalid, match=rf"{file}, line [23]: its import did not finish within 0.1 s"):
        loading.load(SEA, tmp_path, within=0.1)
    go.touch()
    for thread in threading.enumerate():
        if thread.name.startswith("import "):
            thread.join(WAIT)


def test_a_plug_in_that_everybody_can_change_is_reported(tmp_path: Path) -> None:
    """C3: also behind a link that leads out of the home folder."""
    (tmp_path / "home").mkdir()
    link = put(tmp_path / "home", TOOLSET)
    file = link.rename(tmp_path / "elsewhere.py")
    link.symlink_to(file)
    (tmp_path / "home" / "tidegate.toml").write_text('[agents.main]\ntools = ["sea"]\n')
    for mode, is_reported in ((0o644, False), (0o666, True)):
        file.chmod(mode)
        warnings = preflight.examine(tmp_path / "home", {}).warnings
        assert any(f"chmod o-w {link}" in warning for warning in warnings) == is_reported


def test_an_unused_plug_in_is_not_imported(tmp_path: Path) -> None:
    """A provider and an index too, if no agent would use them."""
    put(tmp_path, "1 / 0")
    settings = '[agents.main]\ntools = ["clock"]\n[memory]\nprovider = "sea"\n[context]\nindex = "sea"\n[plugins.sea]\n'
    (tmp_path / "tidegate.toml").write_text(settings)
    ready = preflight.examine(tmp_path, {})
    assert ready.plugins is None
    assert any("[plugins.sea] has no effect" in warning for warning in ready.warnings)


def test_an_unknown_toolset_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["clok"]\n')
    with pytest.raises(Misconfigured, match="no toolset 'clok'; did you mean 'clock'"):
        preflight.examine(tmp_path, {})


def test_settings_of_plug_ins_are_read_shown_and_immutable(tmp_path: Path) -> None:
    """X18: a secret is a reference, resolved before the start."""
    text = (
        '[plugins.sea]\nplace = "Ghent\\n"\ndays = [1, 2.5, inf]\nat = 2026-01-05\nsince = 1979-05-27T07:32:00Z\n'
        'token = "env:SEA"\nmore = {"odd key" = true, list = [{a = ""}]}\n[plugins."tide.s"]\n'
    )
    config = read(text, tmp_path)
    assert read(show(config), tmp_path).plugins == config.plugins
    assert isinstance(config.plugins["sea"]["more"], MappingProxyType) and config.plugins["sea"]["days"][0] == 1
    (tmp_path / "tidegate.toml").write_text(text)
    with pytest.raises(
        Misconfigured, match=r"\[plugins\.sea\] token = env:SEA: the environment variable SEA is not set"
    ):
        preflight.examine(tmp_path, {})
    assert load(tmp_path) == config
    for wrong in ('[plugins.sea]\ntoken = "abc"', '[plugins.sea.deep]\napi_key = ["abc"]', "plugins = 1"):
        with pytest.raises(Misconfigured, match=r"plugins.* must be"):
            read(wrong, tmp_path)


def test_the_kinds_are_complete() -> None:
    """Each kind requires the members of its protocol, which the public module exports."""
    assert set(KINDS["memory"].members) == {name for name in vars(MemoryProvider) if not name.startswith("_")}
    assert set(KINDS["index"].members) == {name for name in vars(SearchIndex) if not name.startswith("_")}
    import tidegate.plugins as public

    for kind in KINDS.values():
        assert getattr(public, kind.protocol.rpartition(".")[2])
    assert API_VERSION == 1


def test_the_public_module_is_light() -> None:
    """Nothing of the gateway is imported but what lies below plug-ins, until a name of tools is used."""
    code = (
        "import sys, tidegate.plugins; "
        "print(*[name for name in sys.modules if name.split('.')[0] in ('apsw', 'aiohttp', 'uvicorn', 'yaml')"
        " or name.startswith(('tidegate.tools', 'tidegate.store', 'tidegate.spool', 'tidegate.workspaces'))]); "
        "print(tidegate.plugins.Toolset.__module__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["", "tidegate.tools.toolset", ""]


def _install(folder: Path, text: str) -> None:
    """A package with the entry point `sea`, as an installer would leave it."""
    folder.mkdir()
    if text:
        (folder / "seaside.py").write_text(text)
    information = folder / "seaside-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: seaside\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[tidegate.plugins]\nsea = seaside:make\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1\nimport no_such_module", "{folder}/seaside.py, line 2: ModuleNotFoundError"),
        ("x = 1\n1 / 0", "{folder}/seaside.py, line 2: ZeroDivisionError"),
        ("", "the entry point sea of the package seaside: ModuleNotFoundError: No module named 'seaside'"),
        ("x = 1", "the entry point sea of the package seaside: AttributeError"),
        ("make = 1", "the package seaside declares no plug-in"),
    ],
)
def test_a_broken_package_is_named_with_its_file_and_line(tmp_path: Path, text: str, fault: str) -> None:
    """Or with its entry point, if no line of it has run."""
    folder = tmp_path / "installed"
    _install(folder, text)
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["sea"]\n')
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "config", "check", "--home", str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment(PYTHONPATH=str(folder)),
    )  # fmt: skip
    assert run.returncode != 0 and "the agent main needs it" in run.stderr
    assert fault.format(folder=folder) in run.stderr
