"""Building and closing a gateway. The leak fixture around every test checks that nothing stays open."""

import contextlib
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from tidegate.errors import Misconfigured, TidegateError
from tidegate.gateway import HomeHeld, HomeLock, holder_of
from tidegate.gateway.gateway import Gateway

pytestmark = pytest.mark.anyio

STAGES = tuple(name for name, _ in Gateway(Path("/nowhere"), say=print).stages)


def _gateway(home: Path, said: list[str] | None = None, **options: object) -> Gateway:
    return Gateway(home, port=0, say=(said if said is not None else []).append, **options)  # type: ignore[arg-type]


async def test_a_gateway_is_built_serves_and_is_closed_twice_over_one_home(tmp_path: Path) -> None:
    """F1, F2: everything is closed at a stop, so that the next gateway finds the folder as free as the first did."""
    for _ in range(2):
        said: list[str] = []
        gateway = _gateway(tmp_path / "home", said)
        with anyio.fail_after(30):
            assert await gateway.build()
            assert f"ready {gateway.address}" in said
            gateway.ask_to_stop()
            await gateway.wait_for_stop()
            await gateway.close()
        assert await to_thread.run_sync(holder_of, tmp_path / "home") is None
        assert not (tmp_path / "home" / "control.sock").exists()
        assert not (tmp_path / "home" / "tidegate.db-wal").exists()


async def test_the_number_of_worker_threads_is_bounded_under_any_load(tmp_path: Path) -> None:
    """L08: excess work waits and takes no thread."""
    gateway = _gateway(tmp_path / "home")
    limiter = to_thread.current_default_thread_limiter()
    go = threading.Event()
    with anyio.fail_after(30):
        assert await gateway.build()
        try:
            async with anyio.create_task_group() as jobs:
                for _ in range(40):
                    jobs.start_soon(to_thread.run_sync, go.wait, 30)
                while limiter.statistics().tasks_waiting < 40 - 16:
                    await anyio.lowlevel.checkpoint()
                go.set()
        finally:
            go.set()
            await gateway.close()


def _open_database(home: Path) -> list[str]:
    """Descriptors of this process that are the database's."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(str(home / "tidegate.db"))]


@pytest.mark.parametrize("way", ["stop", "hurried stop", "failed start"])
async def test_the_folder_is_not_released_before_the_database_is_closed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1, F2: when the lock is free, the database, the control socket and the port are free as well."""
    home = tmp_path / "home"
    still_open: list[list[str]] = []

    def release(lock: HomeLock) -> None:
        if lock.complaint() is None:  # it is the lock of the folder, and it is held
            still_open.append(_open_database(home) + [str(path) for path in home.glob("control.sock")])
        released(lock)

    released = HomeLock.release
    monkeypatch.setattr(HomeLock, "release", release)

    def fault(name: str) -> None:
        if way == "failed start" and name == "welcome":
            raise RuntimeError("planted")

    gateway = _gateway(home, fault=fault)
    with anyio.fail_after(30):
        if way == "failed start":
            with pytest.raises(TidegateError):
                await gateway.build()
        else:
            assert await gateway.build()
            assert await to_thread.run_sync(_open_database, home)
            gateway.ask_to_stop()
            if way == "hurried stop":
                gateway.ask_to_stop()
            await gateway.close()
    assert still_open == [[]]
    assert await to_thread.run_sync(holder_of, home) is None


async def test_a_database_that_cannot_be_closed_in_time_keeps_the_folder_until_the_process_ends(tmp_path: Path) -> None:
    """F2, L28: a write that hangs holds the lock, so that no successor opens the database beside it."""
    home = tmp_path / "home"
    gateway = _gateway(home)
    hangs, go = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        hangs.set()
        go.wait(30)

    with anyio.fail_after(30):
        assert await gateway.build()
        try:
            async with anyio.create_task_group() as writes:
                writes.start_soon(gateway.store.write, hang)
                await to_thread.run_sync(hangs.wait, 30)
                gateway.ask_to_stop()
                gateway.ask_to_stop()
                await gateway.close()
                assert await to_thread.run_sync(holder_of, home) is not None
                go.set()
            while gateway.store.stats().connections:
                await anyio.lowlevel.checkpoint()
        finally:
            go.set()
            gateway._lock.release()  # lint: allow otherwise released by the end of the process


@pytest.mark.parametrize("stage", STAGES)
async def test_a_failure_after_any_stage_closes_what_was_opened(tmp_path: Path, stage: str) -> None:
    """F3: a gateway that failed while starting closes what it had opened, and says one sentence."""

    def fault(name: str) -> None:
        if name == stage:
            raise RuntimeError("planted")

    home = tmp_path / "home"
    with anyio.fail_after(30):
        with pytest.raises(TidegateError) as failed:
            await _gateway(home, fault=fault).build()
        assert stage in failed.value.message
        assert "planted" in failed.value.message
        assert "\n" not in failed.value.message
        assert await to_thread.run_sync(holder_of, home) is None
        assert not (home / "control.sock").exists()
        gateway = _gateway(home)
        assert await gateway.build()
        await gateway.close()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stop_during_building_ends_it_and_closes_what_was_opened(tmp_path: Path, stage: str) -> None:
    """F3: a signal that comes before the gateway is ready is not lost."""

    def fault(name: str) -> None:
        if name == stage:
            gateway.ask_to_stop()

    gateway = _gateway(tmp_path / "home", fault=fault)
    with anyio.fail_after(30):
        assert not await gateway.build()
    assert await to_thread.run_sync(holder_of, tmp_path / "home") is None


async def test_a_port_in_use_is_reported_in_one_sentence_and_nothing_stays_open(tmp_path: Path) -> None:
    """F3: as above, for a failure that is foreseen."""
    first = _gateway(tmp_path / "first")
    with anyio.fail_after(30):
        assert await first.build()
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(Misconfigured, match=f"Port {port}"):
            await Gateway(tmp_path / "second", port=port, say=lambda line: None).build()
        with pytest.raises(HomeHeld):
            await _gateway(tmp_path / "first").build()
        await first.close()


async def test_an_unknown_toolset_is_reported_at_the_start(tmp_path: Path) -> None:
    """F3: an error that would fail the first turn fails the start, with file and key."""
    (tmp_path / "tidegate.toml").write_text('[agents.main]\ntools = ["clok"]\n')
    with anyio.fail_after(30), pytest.raises(Misconfigured, match=r"tidegate\.toml: \[agents\.main\] tools: .*clock"):
        await _gateway(tmp_path).build()


async def test_a_missing_secret_is_reported_with_its_setting(tmp_path: Path) -> None:
    """X22: a credential comes from where the setting says, or the gateway does not start."""
    model = '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    (tmp_path / "tidegate.toml").write_text(model + 'key = "env:TG_NOT_THERE"\n')
    with anyio.fail_after(30), pytest.raises(Misconfigured, match=r"\[models\.main\] key = env:TG_NOT_THERE"):
        await _gateway(tmp_path).build()
