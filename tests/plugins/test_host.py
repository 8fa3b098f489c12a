"""Plug-ins are made, started and stopped within deadlines, in order, and affect nothing but what needs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.core import WAIT
from tests.gateway.process import gateway, tidegate
from tests.logs import capture_logs
from tidegate.config import Config, read
from tidegate.errors import Misconfigured
from tidegate.gateway.plugins import open_plugins
from tidegate.gateway.preflight.plugins import find_plugins
from tidegate.lifetimes import Ledger, Scope
from tidegate.plugins.host import Deadlines, PluginFailed
from tidegate.security import Secret
from tidegate.tools import Toolsets, builtin_toolsets

pytestmark = pytest.mark.anyio

RECORDING = """
import asyncio
from tidegate.plugins import IndexHits, Toolset, ToolContext, plugin, tool

class Thing:
    def __init__(self, ctx):
        self.ctx = ctx
        self.file = ctx.folder.parent / "events"
        self.tools = Toolset().tools

    def record(self, event):
        with self.file.open("a") as file:
            file.write(f"{self.ctx.name} {event}\\n")

    async def search(self, query, *, principal, session, limit, after):
        return IndexHits()

    async def background(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.record("task ended")

    async def start(self):
        self.ctx.scope.start(self.background, name="background")
        self.record("start")
        await asyncio.sleep(0)

    async def stop(self):
        self.record("stop")


async def common(ctx):
    thing = Thing(ctx)
    thing.record("make")
    return thing

make_toolset, make_index = plugin("toolset")(common), plugin("index")(common)
"""

CONFIG = '[agents.main]\ntools = ["context", "first", "second"]\n[context]\nindex = "third"\n'


def put(home: Path, **files: str) -> None:
    (home / "plugins").mkdir(exist_ok=True)
    for name, text in files.items():
        (home / "plugins" / f"{name}.py").write_text(text)


def broken(kind: str, make: str = "", *, start: str = "pass", stop: str = "pass") -> str:
    """A plug-in that does this in its function, `start` or `stop`, in lines 4, 8 and 11."""
    return (
        "import asyncio\nfrom tidegate.plugins import plugin\n"
        f'@plugin("{kind}")\nasync def make(ctx): {make or "return Thing()"}\n'
        "class Thing:\n    tools = ()\n"
        f"    async def search(self): ...\n    async def start(self): {start}\n    async def stop(self): {stop}\n"
    )


SHORT = Deadlines(make=0.3, start=0.3, stop=0.3)


class Host:
    def __init__(self, home: Path, text: str = CONFIG, **secrets: str) -> None:
        self.config: Config = read(text, home)
        self.scope = Scope("process", account=Ledger().account("process"))
        self.secrets = {reference: Secret(secret) for reference, secret in secrets.items()}

    async def open(self) -> Any:
        found = await anyio.to_thread.run_sync(find_plugins, self.config)
        assert not found.errors, found.errors
        return await open_plugins(self.config, found, self.scope, self.secrets, SHORT)


def events(home: Path) -> list[str]:
    return (home / "plugin-data" / "events").read_text().splitlines()


async def test_plug_ins_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    """L06: tasks end before `stop`; the ledger has each as long as it runs."""
    put(tmp_path, first=RECORDING, second=RECORDING, third=RECORDING)
    running = Host(tmp_path)
    plugins, toolsets = await running.open()
    assert list(toolsets) == ["first", "second"]
    begun = ["third make", "third start", "first make", "first start", "second make", "second start"]
    assert events(tmp_path) == begun
    assert [(each.name, each.state) for each in plugins.status()] == [
        ("third", "running"), ("first", "running"), ("second", "running"),
    ]  # fmt: skip
    assert running.scope.account.ledger.totals()["plug-in"].count == 3
    await running.scope.close()
    ended = [f"{name} {what}" for name in ("second", "first", "third") for what in ("task ended", "stop")]
    assert events(tmp_path) == begun + ended
    assert {each.state for each in plugins.status()} == {"not running"}
    assert (tmp_path / "plugin-data" / "first").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (broken("toolset", "1 / 0"), "line 4: ZeroDivisionError: division by zero"),
        (broken("toolset", "return {}"), "line 3: it returned a dict, which is not a toolset: it lacks tools"),
        (broken("toolset", start="1 / 0"), "line 8: ZeroDivisionError"),
        (broken("toolset", "await asyncio.Event().wait()"), "line 3: make did not finish within 0.3 s"),
        (broken("toolset", start="await asyncio.Event().wait()"), "line 8: start did not finish within 0.3 s"),
        (broken("toolset", "raise asyncio.CancelledError"), "line 3: make was cancelled"),
        (broken("toolset").replace("tools = ()", "tools = (1,)"), "not all of its tools are made with @tool"),
        (broken("toolset", "raise SystemExit(3)"), "line 4: SystemExit: 3"),
        (broken("toolset", "raise KeyboardInterrupt"), "line 4: KeyboardInterrupt"),
        (broken("toolset", start="raise SystemExit(3)"), "line 8: SystemExit: 3"),
        (broken("toolset", start="raise BaseException(3)"), "line 8: BaseException: 3"),
        (broken("toolset").replace("async def make", "def make"), "line 3: TypeError: it must be an async function"),
        (broken("toolset", "yield"), "line 3: TypeError: it must be an async function"),
        (broken("toolset").replace("make(ctx)", "make()"), "line 3: TypeError: make.. takes 0 positional arguments"),
        (broken("toolset").replace("async def start", "def start"), "line 8: TypeError: it must be an async function"),
        (broken("toolset").replace("tools = ()", "tools = None"), "TypeError: 'NoneType' object is not iterable"),
        (broken("toolset").replace("tools = ()", "tools = property(lambda self: 1 / 0)"), "line 6: ZeroDivisionError"),
        (broken("toolset", "raise ValueError('x' * 5000 + chr(27))"), "line 4: ValueError: x{1000}…; fix"),
        (broken("toolset", 'raise type("E", (Exception,), {"__str__": None})'), "line 4: E: its message cannot be"),
        (broken("toolset", 'ctx.secret("key")'), "line 4: Misconfigured: .*key must refer to a secret"),
    ],
)
async def test_a_toolset_that_cannot_start_prevents_the_start_and_names_the_agents(
    tmp_path: Path, plugin: str, fault: str
) -> None:
    """With its file and line; what was opened before is closed."""
    put(tmp_path, first=RECORDING, second=plugin, third=RECORDING)
    running = Host(tmp_path)
    with pytest.raises(
        PluginFailed, match=f"'second' cannot be used, and the agent main needs it: .*{fault}"
    ) as failed:
        await running.open()
    assert f"{tmp_path}/plugins/second.py" in failed.value.message
    assert "fix it, or remove it from [agents.main] tools" in failed.value.message
    await running.scope.close()
    assert events(tmp_path)[-1] == "third stop"


async def test_a_tool_that_exists_already_is_reported_with_its_plug_in(tmp_path: Path) -> None:
    """C3: also if the tool does not say whose it is."""
    text = (
        "from tidegate.plugins import ToolContext, Toolset, plugin, tool\n"
        '@tool(effect="read")\nasync def clock(ctx: ToolContext) -> str:\n    """Tells the time."""\n    return ""\n'
        '@plugin("toolset")\nasync def make(ctx): return Toolset([clock])\n'
    )
    put(tmp_path, sea=text)
    running = Host(tmp_path, '[agents.main]\ntools = ["clock", "sea"]\n')
    _, toolsets = await running.open()
    registry = Toolsets(builtin_toolsets(("clock",))).adding(toolsets)
    with pytest.raises(Misconfigured, match="built-in and the plug-in 'sea' both provide a tool named 'clock'"):
        registry.resolve(("clock", "sea"))
    await running.scope.close()


async def test_a_broken_index_is_reported_and_the_gateway_starts(tmp_path: Path) -> None:
    """In the log and the status."""
    put(tmp_path, first=RECORDING, second=RECORDING, third=broken("index", start="await asyncio.Event().wait()"))
    running = Host(tmp_path)
    with capture_logs() as logs:
        plugins, _ = await running.open()
    (status,) = [each for each in plugins.status() if each.kind == "index"]
    assert status.state == "failed" and "third.py, line 8: start did not finish" in status.fault
    assert [entry["error"] for entry in logs if entry["event"] == "a plug-in failed"] == [status.fault]
    await running.scope.close()


async def test_a_stop_that_hangs_delays_no_other_one(tmp_path: Path) -> None:
    put(tmp_path, first=RECORDING, third=RECORDING, second=broken("toolset", stop="await asyncio.Event().wait()"))
    running = Host(tmp_path)
    await running.open()
    with anyio.fail_after(WAIT), pytest.raises(BaseExceptionGroup) as failures:
        await running.scope.close()
    assert "stop of the plug-in second" in str(failures.value.exceptions[0].__notes__)
    assert events(tmp_path)[-2:] == ["third task ended", "third stop"]


async def test_a_stop_that_exits_is_reported_and_the_others_stop(tmp_path: Path) -> None:
    """L28: the process does not end with it."""
    put(tmp_path, first=RECORDING, second=broken("toolset", stop="raise SystemExit(3)"), third=RECORDING)
    running = Host(tmp_path)
    await running.open()
    with pytest.raises(BaseExceptionGroup) as failed:
        await running.scope.close()
    (failure,) = failed.value.exceptions
    assert f"{tmp_path}/plugins/second.py, line 9: SystemExit: 3" in str(failure)
    assert events(tmp_path)[-4:] == ["first task ended", "first stop", "third task ended", "third stop"]


async def test_a_failed_task_of_a_plug_in_is_reported(tmp_path: Path) -> None:
    """With its file and line, in the log and the status."""
    failing = RECORDING.replace("await asyncio.Event().wait()", "1 / 0")
    put(tmp_path, first=failing, second=RECORDING, third=RECORDING)
    running = Host(tmp_path)
    with capture_logs() as logs:
        plugins, _ = await running.open()
        with anyio.fail_after(WAIT):
            while not any(each.fault for each in plugins.status()):
                await anyio.lowlevel.checkpoint()
    (fault,) = [each.fault for each in plugins.status() if each.fault]
    assert "first.py, line " in fault and "ZeroDivisionError" in fault
    assert any(entry["event"] == "a task of a plug-in failed" for entry in logs)
    await running.scope.close()


async def test_a_plug_in_gets_its_own_settings_and_secrets(tmp_path: Path) -> None:
    """X18: and no other secret."""
    text = RECORDING.replace('thing.record("make")', "thing.record(ctx.secret('token').reveal() + ctx.settings['a'])")
    put(tmp_path, first=text, second=RECORDING, third=RECORDING)
    running = Host(tmp_path, CONFIG + '[plugins.first]\ntoken = "env:MINE"\na = "b"\n')
    running.secrets["env:MINE"] = Secret("hush")
    await running.open()
    assert "first hushb" in events(tmp_path)
    await running.scope.close()


@contextmanager
def home_with(tmp_path: Path, config: str, **files: str) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    put(home, **files)
    (home / "tidegate.toml").write_text('[models.main]\napi = "demo"\n' + config)
    yield home


def test_a_gateway_names_a_broken_plug_in_and_answers_without_it(tmp_path: Path) -> None:
    """In `status` and `doctor`, with file and line."""
    config = '[agents.main]\ntools = ["context"]\n[context]\nindex = "third"\n'
    with home_with(tmp_path, config, third=broken("index", start="1 / 0")) as home:
        with gateway(home) as running:
            assert "gave me this" in running.say("search for birds", "talk")
            (status,) = running.call("GET", "/api/status")["plugins"]
            assert (status["name"], status["kind"], status["state"]) == ("third", "index", "failed")
            shown = tidegate("status", home=home).stdout
            assert f"{home}/plugins/third.py, line 8: ZeroDivisionError" in shown
        put(home, third="x = (\n")
        shown = tidegate("doctor", home=home).stdout
        assert f"{home}/plugins/third.py, line 1: SyntaxError" in shown
        assert tidegate("config", "check", home=home).returncode == 0
        with gateway(home) as running:
            assert "gave me this" in running.say("search for birds", "talk")


STUBBORN = """
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
"""


@pytest.mark.parametrize(
    "stop", [STUBBORN, "__import__('threading').Thread(target=__import__('time').sleep, args=(600,)).start()"]
)
def test_what_a_plug_in_leaves_running_does_not_keep_the_process_alive(tmp_path: Path, stop: str) -> None:
    """L31, F1: neither a task that ignores its cancellation nor a thread."""
    config = '[agents.main]\ntools = ["third"]\n'
    with home_with(tmp_path, config, third=broken("toolset", stop=stop)) as home, gateway(home) as running:
        assert running.say("hello", "talk")
        running.process.terminate()
        running.wait()


def test_a_gateway_whose_agent_needs_a_broken_plug_in_does_not_start(tmp_path: Path) -> None:
    with home_with(tmp_path, '[agents.main]\ntools = ["third"]\n', third=broken("toolset", "1 / 0")) as home:
        run = tidegate("up", "--port", "0", home=home)
        assert run.returncode != 0
        assert "the agent main needs it" in run.stderr and "third.py, line 4: ZeroDivisionError" in run.stderr
