"""A supervisor keeps a service running by its policy, and leaves nothing behind when it is stopped."""

import asyncio
from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from tidegate.lifetimes import RestartPolicy, Scope, ServiceFailed, ServiceStatus, Supervisor, stop_all

pytestmark = pytest.mark.anyio


class FakeConnection:
    """A connection that ends when the test says so."""

    def __init__(self, network: "Network") -> None:
        self._network = network
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = True
        network.open += 1
        network.most_open = max(network.most_open, network.open)

    def end(self, error: Exception | None = None) -> None:
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def wait(self) -> None:
        await asyncio.shield(self._ended)

    async def close(self) -> None:
        if self._network.close_blocked is not None:
            await self._network.close_blocked.wait()
        if self.is_open:
            self.is_open = False
            self._network.open -= 1
        if not self._ended.done():
            self._ended.set_result(None)
        if self._network.close_error is not None:
            raise self._network.close_error


class Network:
    """What connecting leads to: a list of errors for the next attempts (None connects), and gates that hold it up."""

    def __init__(self) -> None:
        self.outcomes: list[Exception | None] = []
        self.blocked: asyncio.Event | None = None
        self.ignores_cancellation = False
        self.close_blocked: asyncio.Event | None = None
        self.close_error: Exception | None = None
        self.attempts = 0
        self.open = 0
        self.most_open = 0
        self.last: FakeConnection | None = None

    async def connect(self) -> FakeConnection:
        self.attempts += 1
        while self.blocked is not None and not self.blocked.is_set():
            try:
                await self.blocked.wait()
            except asyncio.CancelledError:
                if not self.ignores_cancellation:
                    raise
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.last = FakeConnection(self)
        return self.last

    @property
    def connection(self) -> FakeConnection:
        assert self.last is not None
        return self.last


class Time:
    """A clock that only pauses move, and pauses that end at once, or when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.blocked: asyncio.Event | None = None

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.blocked is not None:
            await self.blocked.wait()
        self.now += seconds


class Service:
    """A supervisor of a fake service, with the states it has gone through."""

    def __init__(self, scope: Scope, policy: RestartPolicy | None = None, name: str = "tides") -> None:
        self.network = Network()
        self.time = Time()
        self.states: list[str] = []
        self.supervisor = Supervisor(
            name,
            self.network,
            scope,
            policy,
            clock=self.time,
            monotonic=self.time,
            sleep=self.time.sleep,
            fraction=lambda: 1.0,
        )
        self.supervisor.listen(lambda status: self.states.append(status.state))

    @property
    def status(self) -> ServiceStatus:
        return self.supervisor.status

    async def until(self, state: str) -> None:
        while self.status.state != state:
            await checkpoint()


@pytest.fixture
async def scope(nothing_left_in_loop: None) -> AsyncIterator[Scope]:
    with anyio.fail_after(10):
        async with Scope("test") as scope:
            yield scope


async def settled(reached: Callable[[], bool]) -> None:
    while not reached():
        await checkpoint()


# -- start --


async def test_a_service_that_cannot_start_is_stopped_and_its_error_goes_to_the_caller(scope: Scope) -> None:
    """E1: the policy's attempts are for a service that was ready once."""
    service = Service(scope)
    service.network.outcomes = [FileNotFoundError("no such program")]
    with pytest.raises(ServiceFailed, match="no such program") as caught:
        await service.supervisor.start()
    assert caught.value.fault == "unavailable" and isinstance(caught.value.__cause__, FileNotFoundError)
    assert service.states == ["starting", "stopped"]
    assert (service.status.error, service.network.attempts) == ("no such program", 1)


async def test_a_started_service_is_ready_until_it_is_stopped(scope: Scope) -> None:
    """E1: with its connection, and with the time of each change."""
    service = Service(scope)
    await service.supervisor.start()
    assert service.supervisor.connection is service.network.connection
    await service.supervisor.stop()
    assert service.states == ["starting", "ready", "stopped"]
    assert (service.supervisor.connection, service.network.open) == (None, 0)


async def test_starting_a_ready_service_does_nothing(scope: Scope) -> None:
    """E1, L25: concurrent callers share one attempt."""
    service = Service(scope)
    async with anyio.create_task_group() as callers:
        for _ in range(20):
            callers.start_soon(service.supervisor.start)
    await service.supervisor.start()
    assert service.network.attempts == 1
    await service.supervisor.stop()


async def test_a_start_that_takes_too_long_is_adopted_by_the_next_one(scope: Scope) -> None:
    """E1, L09: there is never a second attempt beside the first."""
    service = Service(scope, RestartPolicy(start_within=0.01))
    service.network.blocked = asyncio.Event()
    for _ in range(2):
        with pytest.raises(ServiceFailed, match=r"tides was not ready within 0\.01 s") as caught:
            await service.supervisor.start()
        assert caught.value.fault == service.status.fault == "start-timeout"
        assert service.status.state == "stopped"
    service.network.blocked.set()
    await service.supervisor.start()
    assert (service.status.state, service.network.attempts) == ("ready", 1)
    await service.supervisor.stop()


async def test_the_attempt_of_a_cancelled_caller_is_adopted_by_the_next_one(scope: Scope) -> None:
    """E1, L09: a caller that goes away takes nothing with it."""
    service = Service(scope)
    service.network.blocked = asyncio.Event()
    with anyio.move_on_after(0.01):
        await service.supervisor.start()
    service.network.blocked.set()
    await service.supervisor.start()
    assert (service.status.state, service.network.attempts) == ("ready", 1)
    await service.supervisor.stop()


@pytest.mark.parametrize("ignores_cancellation", [False, True])
async def test_a_stop_ends_an_attempt_that_is_still_running(scope: Scope, ignores_cancellation: bool) -> None:
    """E2, L09: a connection that comes late all the same is closed."""
    service = Service(scope)
    service.network.blocked = asyncio.Event()
    service.network.ignores_cancellation = ignores_cancellation

    async def start() -> None:
        with pytest.raises(ServiceFailed, match="tides was stopped"):
            await service.supervisor.start()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await service.until("starting")
        await checkpoint()
        group.start_soon(service.supervisor.stop)
        if ignores_cancellation:
            await checkpoint()
            service.network.blocked.set()
    assert (service.status.state, service.network.open) == ("stopped", 0)
    assert "ready" not in service.states


# -- restart by policy --


async def test_a_crashed_service_is_connected_again(scope: Scope) -> None:
    """E1: after a pause, with a new connection, and counted."""
    service = Service(scope)
    await service.supervisor.start()
    service.network.connection.end(OSError("broken pipe"))
    await service.until("restarting")
    assert (service.status.fault, service.status.error) == ("crashed", "broken pipe")
    await service.until("ready")
    assert (service.status.restarts, service.time.pauses, service.network.most_open) == (1, [1.0], 1)
    await service.supervisor.stop()


async def test_a_service_is_given_up_after_its_attempts(scope: Scope) -> None:
    """E1, L12: the failure is told once, and nothing is tried any more."""
    service = Service(scope, RestartPolicy(attempts=3))
    await service.supervisor.start()
    service.network.outcomes = [OSError(f"refused {number}") for number in range(9)]
    service.network.connection.end(OSError("broken pipe"))
    await service.until("failed")
    assert (service.network.attempts, service.time.pauses) == (4, [1.0, 2.0, 4.0])
    assert service.states == ["starting", "ready", "restarting", "failed"]
    assert service.status.error == "refused 2"


async def test_a_service_that_crashes_after_each_connect_is_given_up(scope: Scope) -> None:
    """E1, L12: a successful connect alone does not bring the attempts back."""
    service = Service(scope, RestartPolicy(attempts=3, steady_after=60))
    await service.supervisor.start()
    for _ in range(3):
        service.network.connection.end(OSError("crash"))
        await service.until("restarting")
        await service.until("ready")
    service.network.connection.end(OSError("crash"))
    await service.until("failed")
    assert service.time.pauses == [1.0, 2.0, 4.0]


async def test_attempts_are_counted_anew_after_a_steady_time(scope: Scope) -> None:
    """E1: a service that crashes once a day is never given up."""
    service = Service(scope, RestartPolicy(attempts=1, steady_after=60))
    await service.supervisor.start()
    for _ in range(5):
        service.time.now += 60
        service.network.connection.end(OSError("crash"))
        await service.until("restarting")
        await service.until("ready")
    assert service.time.pauses == [1.0] * 5
    await service.supervisor.stop()


@pytest.mark.parametrize(
    ("restart", "error", "state"),
    [
        ("never", OSError("crash"), "failed"),
        ("never", None, "failed"),
        ("on-failure", None, "failed"),
        ("always", None, "ready"),
        ("always", OSError("crash"), "ready"),
    ],
)
async def test_the_policy_decides_whether_a_connection_that_ended_is_replaced(
    scope: Scope, restart: str, error: Exception | None, state: str
) -> None:
    """E1: an orderly close is no failure."""
    service = Service(scope, RestartPolicy(restart=restart))  # type: ignore[arg-type]
    await service.supervisor.start()
    first = service.network.connection
    first.end(error)
    await settled(lambda: not first.is_open and service.status.state in ("failed", "ready"))
    assert service.status.state == state
    assert ("restarting" in service.states) == (state == "ready")
    if error is None and state == "failed":
        assert service.status.error == "tides has closed the connection"
    await service.supervisor.stop()


@pytest.mark.parametrize("fault", ["capability-missing", "authorization-required"])
@pytest.mark.parametrize("at", ["wait", "connect"])
async def test_a_permanent_fault_is_not_retried(scope: Scope, fault: str, at: str) -> None:
    """E1: neither when the connection ends with it nor when an attempt does."""
    permanent = ServiceFailed("sign in first", fault)  # type: ignore[arg-type]
    service = Service(scope, RestartPolicy(restart="always"))
    await service.supervisor.start()
    if at == "connect":
        service.network.outcomes = [permanent]
    service.network.connection.end(permanent if at == "wait" else OSError("crash"))
    await service.until("failed")
    assert service.network.attempts == (1 if at == "wait" else 2)
    assert (service.status.fault, service.status.error) == (fault, "sign in first")


async def test_a_failed_service_can_be_started(scope: Scope) -> None:
    """E4: as if it had never failed."""
    service = Service(scope, RestartPolicy(restart="never"))
    await service.supervisor.start()
    service.network.connection.end(OSError("crash"))
    await service.until("failed")
    await service.supervisor.start()
    assert service.states == ["starting", "ready", "failed", "starting", "ready"]
    await service.supervisor.stop()


# -- restart on request --


async def test_a_requested_restart_waits_for_the_new_connection(scope: Scope) -> None:
    """E1: without a pause, and also under a policy that never restarts."""
    service = Service(scope, RestartPolicy(restart="never"))
    await service.supervisor.start()
    first = service.network.connection
    await service.supervisor.restart()
    assert (service.status.state, service.status.restarts, service.time.pauses) == ("ready", 1, [])
    assert not first.is_open and service.network.connection.is_open
    await service.supervisor.stop()


async def test_a_requested_restart_ends_the_pause(scope: Scope) -> None:
    """E1: and does not restart the service again once it is ready."""
    service = Service(scope)
    service.time.blocked = asyncio.Event()
    await service.supervisor.start()
    service.network.connection.end(OSError("crash"))
    await settled(lambda: bool(service.time.pauses))
    await service.supervisor.restart()
    assert (service.status.state, service.network.attempts) == ("ready", 2)
    for _ in range(10):
        await checkpoint()
    assert (service.status.state, service.network.attempts) == ("ready", 2)
    await service.supervisor.stop()


async def test_a_service_that_was_never_started_is_not_restarted(scope: Scope) -> None:
    """E1: that is an error at once."""
    service = Service(scope)
    with pytest.raises(ServiceFailed, match="tides is not started") as caught:
        await service.supervisor.restart()
    assert caught.value.fault == "not-started" and service.network.attempts == 0


async def test_a_requested_restart_is_woken_by_a_stop(scope: Scope) -> None:
    """E2: it does not wait for its own deadline."""
    service = Service(scope)
    await service.supervisor.start()
    service.network.blocked = asyncio.Event()

    async def restart() -> None:
        with pytest.raises(ServiceFailed, match="tides was stopped"):
            await service.supervisor.restart()

    async with anyio.create_task_group() as group:
        group.start_soon(restart)
        await service.until("restarting")
        await service.supervisor.stop()


async def test_a_requested_restart_is_woken_by_the_failure(scope: Scope) -> None:
    """E1: with the error of the last attempt."""
    service = Service(scope, RestartPolicy(attempts=2))
    await service.supervisor.start()
    service.network.outcomes = [OSError("refused")] * 5
    with pytest.raises(ServiceFailed, match="refused"):
        await service.supervisor.restart()
    assert service.status.state == "failed"


async def test_a_requested_restart_has_a_deadline(scope: Scope) -> None:
    """E1: after which the service goes on restarting."""
    service = Service(scope)
    await service.supervisor.start()
    service.network.blocked = asyncio.Event()
    with pytest.raises(TimeoutError, match="tides was not ready again within 0 s"):
        await service.supervisor.restart(within=0)
    service.network.blocked.set()
    await service.until("ready")
    await service.supervisor.stop()


# -- stop --


async def test_a_stop_waits_until_the_connection_is_closed(scope: Scope) -> None:
    """E2: for all callers, each up to its own deadline."""
    service = Service(scope)
    await service.supervisor.start()
    service.network.close_blocked = asyncio.Event()
    with pytest.raises(TimeoutError, match=r"tides was not stopped within 0\.01 s"):
        await service.supervisor.stop(within=0.01)
    stopped: list[int] = []

    async def stop(number: int) -> None:
        await service.supervisor.stop()
        stopped.append(number)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(stop, number)
        await anyio.sleep(0.01)
        assert not stopped and service.network.open == 1
        service.network.close_blocked.set()
    assert sorted(stopped) == [0, 1, 2, 3] and service.network.open == 0


async def test_a_stop_during_a_pause_is_prompt(scope: Scope) -> None:
    """E2: it does not wait until the pause is over."""
    service = Service(scope)
    service.time.blocked = asyncio.Event()
    await service.supervisor.start()
    service.network.connection.end(OSError("crash"))
    await settled(lambda: bool(service.time.pauses))
    await service.supervisor.stop()
    assert (service.status.state, service.network.attempts) == ("stopped", 1)


async def test_a_stop_before_the_first_start_does_nothing(scope: Scope) -> None:
    """E2: nor does a second one."""
    service = Service(scope)
    await service.supervisor.stop()
    await service.supervisor.stop()
    assert service.states == [] and service.status.state == "stopped"


async def test_a_stopped_service_can_be_started_again(scope: Scope) -> None:
    """E4: also by a caller that came while it was being stopped."""
    service = Service(scope)
    await service.supervisor.start()
    service.network.close_blocked = asyncio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(service.supervisor.stop)
        await checkpoint()
        group.start_soon(service.supervisor.start)
        await checkpoint()
        service.network.close_blocked.set()
    assert (service.status.state, service.network.attempts, service.network.most_open) == ("ready", 2, 1)
    await service.supervisor.stop()


async def test_the_end_of_the_owner_ends_the_service(scope: Scope) -> None:
    """E2, L01: without a stop, and without another attempt."""
    async with Scope("owner") as owner:
        service = Service(owner, RestartPolicy(restart="always"))
        await service.supervisor.start()
    assert (service.status.state, service.network.open, service.network.attempts) == ("stopped", 0, 1)


async def test_all_services_are_stopped_at_once_and_every_error_is_collected(scope: Scope) -> None:
    """E3: also the one that raises, the one that hangs, and the one that was never started."""
    raises, hangs, never, good = (Service(scope, name=name) for name in ("raises", "hangs", "never", "good"))
    for service in (raises, hangs, good):
        await service.supervisor.start()
    raises.network.close_error = OSError("cannot be closed")
    hangs.network.close_blocked = asyncio.Event()
    with pytest.raises(BaseExceptionGroup) as caught:
        await stop_all([each.supervisor for each in (raises, hangs, never, good)], within=0.05)
    told = repr(caught.value)
    assert "cannot be closed" in told and "hangs was not stopped within 0.05 s" in told
    assert {each.status.state for each in (raises, never, good)} == {"stopped"}
    hangs.network.close_blocked.set()
    await hangs.supervisor.stop()


async def test_a_broken_listener_disturbs_nobody(scope: Scope) -> None:
    """E1: the others are told, and the service runs."""
    service = Service(scope)
    told: list[str] = []

    def broken(status: ServiceStatus) -> None:
        raise ValueError(status.state)

    service.supervisor.listen(broken)
    service.supervisor.listen(lambda status: told.append(status.state))
    await service.supervisor.start()
    await service.supervisor.stop()
    assert told == ["starting", "ready", "stopped"]


# -- pauses --


def test_pauses_double_up_to_the_longest_one() -> None:
    """E1: and their sum bounds the patience of a requested restart."""
    policy = RestartPolicy(attempts=8)
    assert [policy.pause(attempt, 1) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 32, 32]
    assert policy.budget == 127


@given(attempt=st.integers(1, 10_000), fraction=st.floats(0, 1))
def test_a_random_part_of_the_pause_is_at_most_half(attempt: int, fraction: float) -> None:
    """E1: services that broke together do not return together, and none returns too early or too late."""
    policy = RestartPolicy()
    whole = policy.pause(attempt, 1)
    assert whole / 2 <= policy.pause(attempt, fraction) <= whole <= policy.longest_pause
