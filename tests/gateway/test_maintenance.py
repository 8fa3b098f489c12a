"""Chores on timers."""

import anyio
import pytest

from tests.logs import capture_logs
from tidegate.errors import StoreFailed
from tidegate.gateway.maintenance import Maintenance
from tidegate.lifetimes import Scope
from tidegate.sessions import MaintenanceTask

pytestmark = pytest.mark.anyio

SOON = 0.001


async def test_a_task_that_fails_is_run_again_and_its_failure_is_reported() -> None:
    """L16, L30: one failure does not end a chore; its heartbeat comes only from runs that went well."""
    beats: list[str] = []
    beaten = anyio.Event()
    runs = 0

    async def shaky() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise ValueError("not yet")

    def beat(name: str) -> None:
        beats.append(name)
        beaten.set()

    maintenance = Maintenance([MaintenanceTask(name="shaky", interval=SOON, run=shaky)], beat=beat)
    async with Scope("test") as scope:
        maintenance.start(scope)
        with anyio.fail_after(20):
            await beaten.wait()
        (report,) = maintenance.report()
    assert report.failures == 2
    assert report.runs >= 1
    assert report.error == ""
    assert report.last is not None
    assert beats[0] == "shaky"


async def test_a_task_that_keeps_failing_in_one_way_is_logged_once() -> None:
    """L16, L30: a store that is lost does not fill the log; another failure is another line."""
    runs = 0
    changed = anyio.Event()

    async def failing() -> None:
        nonlocal runs
        runs += 1
        if runs > 50:
            changed.set()
        raise StoreFailed("gone" if runs <= 50 else "something else")

    maintenance = Maintenance([MaintenanceTask(name="failing", interval=SOON, run=failing)], beat=lambda name: None)
    with capture_logs() as lines:
        async with Scope("test") as scope:
            maintenance.start(scope)
            with anyio.fail_after(20):
                await changed.wait()
    assert [line["error"] for line in lines if line["event"] == "maintenance task failed"] == ["gone", "something else"]


async def test_a_task_that_hangs_delays_no_other_and_misses_its_heartbeat() -> None:
    """L16, L30: a stuck chore is seen by its missing heartbeat while the others go on."""
    beats: list[str] = []
    others = anyio.Event()

    async def stuck() -> None:
        await anyio.sleep_forever()

    async def busy() -> None:
        if beats.count("busy") >= 3:
            others.set()

    maintenance_tasks = [
        MaintenanceTask(name="stuck", interval=SOON, run=stuck),
        MaintenanceTask(name="busy", interval=SOON, run=busy),
    ]
    maintenance = Maintenance(maintenance_tasks, beat=beats.append)
    async with Scope("test") as scope:
        maintenance.start(scope)
        with anyio.fail_after(20):
            await others.wait()
        by_name = {report.name: report for report in maintenance.report()}
    assert "stuck" not in beats
    assert by_name["stuck"].last is None
    assert by_name["busy"].runs >= 3


async def test_two_tasks_of_one_name_are_refused() -> None:
    """L30: a heartbeat belongs to one chore."""

    async def nothing() -> None: ...

    twice = [MaintenanceTask(name="same", interval=1, run=nothing)] * 2
    with pytest.raises(ValueError, match="one name"):
        Maintenance(twice, beat=lambda name: None)
