"""The plug-in host: creates plug-ins' objects, starts them, and stops them with the process.

`open` creates and starts a plug-in within its deadlines. On failure, it records the fault with its file and line and
raises `PluginFailed`; it can be called again later. Each plug-in has its own scope below the process scope. These
scopes are closed in reverse order of opening, each within a deadline. A plug-in that fails or hangs does not affect the
others. Running plug-ins are listed in the ledger as `plug-in`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from tidegate.config import Config, plugin_references
from tidegate.errors import TidegateError
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.plugins.context import PluginContext
from tidegate.plugins.kinds import KINDS
from tidegate.plugins.loading import LoadedPlugin, PluginInvalid, PluginUse, described, load, missing_members, place_of
from tidegate.security import Secret
from tidegate.status_report import PluginStatus
from tidegate.values import Frozen

DATA_FOLDER = "plugin-data"

log = Log(__name__)


class Deadlines(Frozen, frozen=True):
    """Time limits for each plug-in, in seconds. Starting may involve connecting to a service on the network."""

    make: float = 10.0
    start: float = 10.0
    stop: float = 5.0


class PluginFailed(TidegateError):
    """The plug-in could not be created or started. The message names the file and line."""


class Plugin:
    """One plug-in of the process. `object` is None until the plug-in is open."""

    def __init__(
        self,
        use: PluginUse,
        config: Config,
        scope: Scope,
        secrets: Mapping[str, Secret],
        deadlines: Deadlines | None = None,
    ) -> None:
        self.use = use
        self.object: Any = None
        self.fault = ""
        self._config = config
        self._parent = scope
        self._secrets = secrets
        self._deadlines = deadlines or Deadlines()
        self._loaded: LoadedPlugin | None = None
        self._opening = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.use.name

    async def open(self) -> Any:
        """Returns the plug-in's object. Creates and starts it if it is not running yet."""
        async with self._opening:
            if self.object is None:
                self.fault = ""
                try:
                    await self._open()
                except (PluginInvalid, PluginFailed) as error:
                    self.fault = error.message
                    log.error("a plug-in failed", plugin=self.name, kind=self.use.kind, error=error.message)
                    raise PluginFailed(error.message) from error.__cause__
        return self.object

    def set_loaded(self, loaded: LoadedPlugin) -> None:
        """Sets the imported plug-in, so that `open` does not import it again."""
        self._loaded = loaded

    def status(self) -> PluginStatus:
        state = "running" if self.object is not None else "failed" if self.fault else "not running"
        file = "" if self._loaded is None else self._loaded.file
        return PluginStatus(name=self.name, kind=self.use.kind, state=state, file=file, fault=self.fault)

    async def _open(self) -> None:
        if self._loaded is None:
            self._loaded = await to_thread.run_sync(load, self.use, self._config.home)
        factory = self._loaded.factory
        folder = await to_thread.run_sync(self._data_folder)
        limits = self._deadlines
        scope = self._parent.child(f"plug-in {self.name}", close_within=limits.stop, on_error=self._task_failed)
        settings = self._config.plugins.get(self.name, {})
        own = {reference for _, reference in plugin_references(settings)}
        secrets = {reference: secret for reference, secret in self._secrets.items() if reference in own}
        context = PluginContext(self.name, settings, folder, scope, secrets)
        try:
            made = await self._bounded(scope, lambda: factory.make(context), "make", limits.make, factory.place)
            start, stop = self._checked(made, factory.place)
            if start is not None:
                await self._bounded(scope, start, "start", limits.start, _place(start, factory.place))
        except BaseException:
            await self._close(scope)
            raise
        scope.hold("plug-in")
        scope.on_close(self._forget, name="plug-in")
        if stop is not None:
            scope.on_close(lambda: self._stop(stop, factory.place), name=f"stop of the plug-in {self.name}")
        self.object = made

    def _checked(self, made: Any, place: str) -> tuple[Any, Any]:
        """Checks that the object has every member that its kind requires. Returns its `start` and `stop` methods, or
        None in place of a method that it does not define."""
        try:
            missing = missing_members(KINDS[self.use.kind], made)
            methods = getattr(made, "start", None), getattr(made, "stop", None)
        except Exception as error:  # the object's properties are the plug-in's code
            raise self._failed(error, place) from error
        if missing:
            raise PluginFailed(
                f"{place}: it returned a {type(made).__name__}, which is not a "
                f"{KINDS[self.use.kind].title}: it lacks {', '.join(missing)}"
            )
        return methods

    async def _stop(self, stop: Callable[[], Any], place: str) -> None:
        _, error = await _caught(stop)
        if error is not None:
            raise self._failed(error, _place(stop, place)) from error

    def _failed(self, error: BaseException, place: str) -> PluginFailed:
        file = "" if self._loaded is None else self._loaded.file
        return PluginFailed(f"{place_of(error, file, place)}: {described(error)}")

    def _forget(self) -> None:
        self.object = None

    def _data_folder(self) -> Path:
        folder = self._config.home / DATA_FOLDER / self.name
        try:
            for path in (folder.parent, folder):
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise PluginFailed(f"{folder}: the plug-in's data folder cannot be created ({error.strerror})") from None
        return folder

    async def _bounded(
        self, scope: Scope, work: Callable[[], Awaitable[Any]], what: str, seconds: float, place: str
    ) -> Any:
        """Awaits a call to the plug-in for at most `seconds`. The scope takes over calls that ignore cancellation."""
        task = scope.start(_caught, work, name=f"{what} {self.name}")
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            task.cancel()
        if not done:
            raise PluginFailed(f"{place}: {what} did not finish within {seconds:g} s; start slow work in ctx.scope")
        if task.cancelled():
            raise PluginFailed(f"{place}: {what} was cancelled")
        result, error = task.result()
        if error is not None:
            raise self._failed(error, place) from error
        return result

    async def _close(self, scope: Scope) -> None:
        try:
            await scope.close()
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                log.error("a plug-in could not be closed", plugin=self.name, error=repr(failure))

    def _task_failed(self, task: str, error: BaseException) -> None:
        file = "" if self._loaded is None else self._loaded.file
        self.fault = f"{place_of(error, file)}: {described(error)}"
        log.error("a task of a plug-in failed", plugin=self.name, task=task, error=self.fault, exc_info=error)


class Plugins:
    """The process's plug-ins: all those that the configuration uses."""

    def __init__(
        self,
        config: Config,
        scope: Scope,
        uses: Iterable[PluginUse],
        *,
        loaded: Iterable[LoadedPlugin] = (),
        secrets: Mapping[str, Secret] | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._plugins = {(use.kind, use.name): Plugin(use, config, scope, secrets or {}, deadlines) for use in uses}
        for each in loaded:
            self._plugins[each.use.kind, each.use.name].set_loaded(each)

    def of_kind(self, kind: str) -> tuple[Plugin, ...]:
        return tuple(plugin for plugin in self._plugins.values() if plugin.use.kind == kind)

    async def open(self) -> None:
        """Opens all plug-ins in order. Raises `PluginFailed` if a required one cannot be opened."""
        for plugin in self._plugins.values():
            try:
                await plugin.open()
            except PluginFailed as error:
                if KINDS[plugin.use.kind].required:
                    raise PluginFailed(needed(plugin.use, error.message)) from error.__cause__

    def status(self) -> list[PluginStatus]:
        return [plugin.status() for plugin in self._plugins.values()]


def needed(use: PluginUse, fault: str) -> str:
    """Returns a message that a plug-in cannot be used, with the agents that need it."""
    agents = f"the agents {', '.join(use.agents)} need" if len(use.agents) > 1 else f"the agent {use.agents[0]} needs"
    return f"the plug-in {use.name!r} cannot be used, and {agents} it: {fault}; fix it, or remove it from {use.setting}"


async def _caught(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """Awaits the call. Returns its result and its error, so that the error is reported by the caller and nowhere else.
    This includes `SystemExit`, which would otherwise terminate the process."""
    try:
        waiting = work()
        if not inspect.isawaitable(waiting):
            raise TypeError("it must be an async function, without yield")
        return await waiting, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # any error from the plug-in
        return None, error


def _place(function: Any, default: str) -> str:
    code = getattr(function, "__code__", None)
    return default if code is None else f"{code.co_filename}, line {code.co_firstlineno}"
