"""A scope: one lifetime, together with everything that ends when the lifetime ends.

Everything acquired through a scope is released when `close` returns. Closing handles child scopes first, then tasks,
then entered context managers and callbacks, each in reverse order. It has a single deadline, continues after every
failure, reports each failure exactly once, and completes even if its caller is cancelled. A task's failure is never
lost; it is reported with the task's name. The scope owns its children, tasks, callbacks and account. It may be opened
and closed from different tasks, since a session outlives the task that opened it.

    async with Scope("turn t_1", parent=session) as turn:
        stream = await turn.enter(open_stream())
        turn.start(pump, stream, name="pump")
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TypeVar, TypeVarTuple

import anyio

from tidegate.lifetimes.ledger import Account, Hold, Ledger

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLOSE_WITHIN = 10.0
"""Seconds that closing a scope may take, including its children, unless the scope sets another limit."""

LAST_CHANCE = 0.05
"""Seconds allowed for each remaining step after the deadline, so that one stuck step does not prevent the others."""

_log = logging.getLogger(__name__)

Manager = AbstractAsyncContextManager[T, bool | None] | AbstractContextManager[T, bool | None]
Exit = Callable[[], Awaitable[object] | None]
OnError = Callable[[str, BaseException], None]


class ScopeClosed(RuntimeError):
    """Raised if the scope is closing or closed, so no more tasks can be started or resources acquired in it."""


class Scope:
    """A lifetime with its tasks, its exit stack and its account."""

    __slots__ = (
        "__weakref__",
        "_account",
        "_children",
        "_end",
        "_errors",
        "_exits",
        "_on_error",
        "_parent",
        "_patient",
        "_state",
        "_tasks",
        "close_within",
        "name",
    )

    def __init__(
        self,
        name: str,
        *,
        parent: "Scope | None" = None,
        account: Account | None = None,
        close_within: float = CLOSE_WITHIN,
        on_error: OnError | None = None,
    ) -> None:
        self.name = name
        self.close_within = close_within
        self._parent = parent
        self._account = account
        self._on_error = on_error
        self._children: dict[Scope, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._patient: set[asyncio.Task[Any]] = set()
        self._exits: list[tuple[str, Exit]] = []
        self._errors: list[BaseException] = []  # lint: allow only filled while closing
        self._state: Literal["open", "closing", "closed"] = "open"
        self._end: asyncio.Task[None] | None = None
        if parent is not None:
            parent._admit(f"open {name!r}")
            parent._children[self] = None

    def __repr__(self) -> str:
        return f"<Scope {self.path!r} {self._state}, {len(self._children)} children, {len(self._tasks)} tasks>"

    # -- properties ------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self.name if self._parent is None else f"{self._parent.path} / {self.name}"

    @property
    def open(self) -> bool:
        """True if tasks can still be started and resources acquired in this scope."""
        return self._state == "open"

    @property
    def closed(self) -> bool:
        return self._state == "closed"

    @property
    def account(self) -> Account:
        """The scope's account, created on first use: a sub-account of the parent's account or, without a parent, an
        account in a new ledger."""
        if self._account is None:
            if self._parent is None:
                self._account = Ledger().account(self.name)
            else:
                above = self._parent.account
                self._account = above.ledger.account(self.name, parent=above)
        return self._account

    # -- acquiring ---------------------------------------------------------------------------------------------------

    def child(
        self,
        name: str,
        *,
        account: Account | None = None,
        close_within: float = CLOSE_WITHIN,
        on_error: OnError | None = None,
    ) -> "Scope":
        """Opens a child scope, which is closed with this scope at the latest."""
        return Scope(name, parent=self, account=account, close_within=close_within, on_error=on_error)

    def start(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, T]],
        *args: *Ts,
        name: str,
        at_close: Literal["cancel", "finish"] = "cancel",
    ) -> asyncio.Task[T]:
        """Runs `fn(*args)` as a task of this scope. When the scope closes, the task is cancelled or, with
        `at_close="finish"`, has until the deadline to finish.

        The task runs in an empty context: it has its arguments but no ambient state, and does not keep the starting
        task's objects alive.
        """
        self._admit(f"start {name!r}")
        task = asyncio.get_running_loop().create_task(fn(*args), name=name, context=contextvars.Context())
        self._tasks.add(task)
        if at_close == "finish":
            self._patient.add(task)
        task.add_done_callback(self._task_ended)
        return task

    async def enter(self, manager: Manager[T]) -> T:
        """Enters a context manager, which is exited when the scope closes, possibly from another task.

        It must therefore not keep a task group or cancel scope open across a `yield`; use a child scope for that.
        """
        name = getattr(manager, "__qualname__", type(manager).__qualname__)
        self._admit(f"enter {name}")
        if isinstance(manager, AbstractAsyncContextManager):
            value = await manager.__aenter__()
        else:
            value = manager.__enter__()

        def leave() -> Awaitable[object] | None:
            if isinstance(manager, AbstractAsyncContextManager):
                return manager.__aexit__(None, None, None)
            manager.__exit__(None, None, None)
            return None

        if self._state == "open":
            self._exits.append((name, leave))
            return value
        # The scope was closed while the manager was being entered, so nobody else will exit it.
        with anyio.CancelScope(shield=True):
            await self._leave(name, leave, asyncio.get_running_loop().time() + self.close_within)
        raise ScopeClosed(f"scope {self.path!r} was closed while {name} was being entered")

    def on_close(self, fn: Exit, *, name: str) -> None:
        """Registers `fn` to be called and awaited when the scope closes. The function registered last is called
        first."""
        self._admit(f"register {name!r}")
        self._exits.append((name, fn))

    def hold(self, kind: str, *, bytes: int = 0, fds: int = 0, children: int = 0, count: int = 1) -> Hold:
        """Records a holding of this scope in the ledger. The holding is released when the scope closes, if not
        before."""
        self._admit(f"hold {kind!r}")
        return self.account.add(kind, bytes=bytes, fds=fds, children=children, count=count)

    def _admit(self, what: str) -> None:
        if self._state != "open":
            raise ScopeClosed(f"cannot {what}: scope {self.path!r} is {self._state}")

    # -- closing -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the scope. Failures are raised as one group in the first caller; other callers only wait until the
        scope is closed."""
        begun = self._begin(None)
        if self._end is None:
            return
        cancelled = await outlast(self._end)
        errors = self._errors if begun else []
        if cancelled is not None:
            for error in errors:
                self._report("close", error)
            raise cancelled
        if errors:
            raise BaseExceptionGroup(f"closing scope {self.path!r}", errors)

    def _begin(self, deadline: float | None) -> bool:
        """Starts closing the scope, only once. A scope with nothing to close is closed immediately, without a task."""
        if self._state != "open":
            return False
        if not (self._tasks or self._exits or self._children):
            self._finish()
            return True
        if self._runs(asyncio.current_task()):
            raise RuntimeError(f"a task of scope {self.path!r} cannot close it: it would wait for its own end")
        self._state = "closing"
        loop = asyncio.get_running_loop()
        latest = loop.time() + self.close_within
        end = self._unwind(latest if deadline is None else min(latest, deadline))
        self._end = loop.create_task(end, name=f"close {self.name}", context=contextvars.Context())
        return True

    def _runs(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._tasks or any(child._runs(task) for child in self._children)

    async def _unwind(self, deadline: float) -> None:
        for child in reversed(list(self._children)):
            begun = child._begin(deadline)
            if child._end is not None:
                await outlast(child._end)
                if begun:
                    self._errors.extend(child._errors)
        await self._end_tasks(deadline)
        while self._exits:
            name, leave = self._exits.pop()
            await self._leave(name, leave, deadline)
        self._finish()

    async def _end_tasks(self, deadline: float) -> None:
        for task in self._tasks - self._patient:
            task.cancel()
        await self._until(deadline, self._tasks)
        for task in self._tasks:
            task.cancel()
        await self._until(0, self._tasks)
        for task in self._tasks:
            self._collect(f"task {task.get_name()!r}", TimeoutError("it did not end even after being cancelled twice"))

    async def _leave(self, name: str, leave: Exit, deadline: float) -> None:
        try:
            waiting = leave()
        except (Exception, asyncio.CancelledError) as error:  # nothing is awaited here, so the cancellation is not ours
            self._collect(name, error)
            return
        if waiting is None or not inspect.isawaitable(waiting):
            return
        # Use a separate task, so that a step that ignores its cancellation can be abandoned at the deadline.
        loop = asyncio.get_running_loop()
        task = loop.create_task(_awaited(waiting), name=f"close {name}", context=contextvars.Context())
        await self._until(deadline, {task})
        late = not task.done()
        if late:
            task.cancel()
            await self._until(0, {task})
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)
        if late:
            self._collect(name, TimeoutError("it was not closed by the deadline"))
        elif task.cancelled():
            self._collect(name, RuntimeError("its closing was cancelled from within"))
        elif (failure := task.exception()) is not None:
            self._collect(name, failure)

    async def _until(self, deadline: float, tasks: set[asyncio.Task[Any]]) -> None:
        if tasks:
            remaining = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(set(tasks), timeout=max(remaining, LAST_CHANCE))

    def _finish(self) -> None:
        self._state = "closed"
        if self._account is not None:
            self._account.close()
        if self._parent is not None:
            self._parent._children.pop(self, None)

    # -- failures ----------------------------------------------------------------------------------------------------

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._patient.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._state == "closing":
            self._collect(f"task {task.get_name()!r}", error)
        else:
            self._report(task.get_name(), error)

    def _collect(self, name: str, error: BaseException) -> None:
        error.add_note(f"while closing {name} of scope {self.path!r}")
        self._errors.append(error)

    def _report(self, name: str, error: BaseException) -> None:
        scope: Scope | None = self
        while scope is not None:
            if scope._on_error is not None:
                scope._on_error(f"{self.path} / {name}", error)
                return
            scope = scope._parent
        _log.error("%s / %s failed", self.path, name, exc_info=error)

    # -- as a context manager ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Scope":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        # The body's exception propagates; a failure to close is reported but does not replace it.
        try:
            await self.close()
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                self._report("close", failure)


async def _awaited(waiting: Awaitable[object]) -> object:
    return await waiting


async def outlast(end: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Waits for `end` to finish even if the current task is cancelled meanwhile. Returns the last cancellation, or
    None."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not end.done():
            try:
                await asyncio.wait({end})
            except asyncio.CancelledError as error:
                cancelled = error
    return cancelled
