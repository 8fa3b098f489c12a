"""Finding and importing the plug-ins named in the configuration, without creating their objects.

The plug-in NAME is the `plugins/NAME.py` file in the home folder or, if there is no such file, an entry point NAME of
an installed package in the group `tidegate.plugins`. Nothing else is imported. Within `IMPORT_SECONDS`, `load` returns
a plug-in or raises `PluginInvalid` with a one-sentence message that names the file and line.
"""

import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from tidegate.errors import Misconfigured
from tidegate.plugins.kinds import API_VERSION, KINDS, Kind, PluginFactory
from tidegate.safe_text import strip_controls
from tidegate.values import Frozen

GROUP = "tidegate.plugins"
FOLDER = "plugins"

IMPORT_SECONDS = 20.0
"""Time limit for importing one plug-in and everything that it imports. Large libraries take a few seconds."""


MESSAGE_CHARACTERS = 1000
"""Maximum length of a plug-in's error message; longer ones are shortened."""

_CALLING = ("<frozen ", str(Path(importlib.util.__file__).parent), str(Path(__file__).parents[1]))
"""Prefixes of the file names of Python's and the gateway's own code that imports and calls plug-ins."""


class PluginUse(Frozen, frozen=True):
    """A plug-in named in the configuration, and the agents that use it."""

    kind: str
    name: str
    agents: tuple[str, ...]

    @property
    def setting(self) -> str:
        """The setting that names the plug-in."""
        return KINDS[self.kind].setting.replace("NAME", self.agents[0] if self.agents else "NAME")


class LoadedPlugin(NamedTuple):
    """An imported plug-in. `file` is the file from which it was imported."""

    use: PluginUse
    factory: PluginFactory
    file: str


class PluginInvalid(Misconfigured):
    """The plug-in cannot be used. The message names the file and line. `found` is false if no such plug-in exists."""

    def __init__(self, message: str, *, found: bool = True) -> None:
        super().__init__(message)
        self.found = found


def load(use: PluginUse, home: Path, *, within: float = IMPORT_SECONDS) -> LoadedPlugin:
    """Imports a plug-in and checks its declaration. Blocks: call it in a worker thread."""
    if not use.name.replace("-", "_").isidentifier():
        raise PluginInvalid(f"{use.name!r} is not a valid plug-in name; use letters, digits, - and _", found=False)
    file = home / FOLDER / f"{use.name}.py"
    if file.is_file():
        module = _within_deadline(lambda: _run_file(file), str(file), within)
        return _declared(use, [value for value in vars(module).values() if isinstance(value, PluginFactory)], str(file))
    points = _entry_points(use.name)
    if not points:
        raise PluginInvalid(
            f"there is no plug-in {use.name!r}: no file {file}, and no installed package provides it", found=False
        )
    factories = []
    origin = ""
    for point in points:
        package = f"the package {point.dist.name}" if point.dist is not None else point.value
        value = _within_deadline(point.load, f"the entry point {use.name} of {package}", within)
        origin = origin or package
        if isinstance(value, PluginFactory):
            factories.append(value)
    return _declared(use, factories, origin)


def _declared(use: PluginUse, factories: Iterable[PluginFactory], origin: str) -> LoadedPlugin:
    """Returns the plug-in with its factory of the required kind. Raises `PluginInvalid` if there is not exactly one."""
    kind = KINDS[use.kind]
    declared = list({id(factory): factory for factory in factories}.values())
    fitting = [factory for factory in declared if factory.kind == use.kind]
    if not declared:
        raise PluginInvalid(f'{origin} declares no plug-in; put @plugin("{use.kind}") before its function')
    for factory in declared:
        if not isinstance(factory.kind, str) or factory.kind not in KINDS:
            raise PluginInvalid(
                f"{factory.place}: there is no kind of plug-in {factory.kind!r}; known: {', '.join(KINDS)}"
            )
    if not fitting:
        raise PluginInvalid(f"{declared[0].place}: this is a plug-in of kind {declared[0].kind}, not a {kind.title}")
    if len(fitting) > 1:
        raise PluginInvalid(
            f"{fitting[1].place}: this is a second plug-in {use.name!r} of kind {use.kind}; the other one is in "
            f"{fitting[0].place}; keep one"
        )
    factory = fitting[0]
    if not isinstance(factory.api, int):
        raise PluginInvalid(f"{factory.place}: its api must be a number, not {factory.api!r}")
    if factory.api > API_VERSION:
        raise PluginInvalid(
            f"{factory.place}: the plug-in needs version {factory.api} of the plug-in interface, and this gateway has "
            f"version {API_VERSION}; update the gateway, or install an older version of the plug-in"
        )
    code = getattr(factory.make, "__code__", None)
    return LoadedPlugin(use, factory, origin if code is None else code.co_filename)


def missing_members(kind: Kind, made: object) -> tuple[str, ...]:
    """Returns the names of the attributes that this kind requires but the object lacks."""
    return tuple(name for name in kind.members if not hasattr(made, name))


def place_of(error: BaseException, file: str, otherwise: str = "") -> str:
    """Returns the file and line of an error: the innermost frame in the plug-in's file or, if there is none, the
    innermost frame outside of the gateway and the import system. If there is no such frame either, returns `otherwise`
    or `file`."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    foreign = [frame for frame in frames if not frame.filename.startswith(_CALLING)]
    if not (chosen := own or foreign):
        return otherwise or file
    return f"{chosen[-1].filename}, line {chosen[-1].lineno}"


def described(error: BaseException) -> str:
    """Returns the error's type and message as one line of limited length."""
    try:
        text = str(error)
    except Exception as unprintable:  # the exception's class is the plug-in's code, too
        text = f"its message cannot be shown ({type(unprintable).__name__})"
    line = strip_controls(" ".join(text[: MESSAGE_CHARACTERS + 1].split()))
    if len(line) > MESSAGE_CHARACTERS:
        line = f"{line[:MESSAGE_CHARACTERS]}…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _run_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tidegate_plugin_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # the name ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes with string annotations look for their names here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module


def _within_deadline(work: Callable[[], Any], origin: str, seconds: float) -> Any:
    """Runs the import in a separate thread, since an import cannot be interrupted. The thread is abandoned at the
    deadline."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # a plug-in may even call sys.exit
            failure.append(error)

    thread = threading.Thread(target=run, name=f"import {origin}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        place = _thread_place(thread, origin)
        raise PluginInvalid(
            f"{place}: its import did not finish within {seconds:g} s; avoid slow work during the import"
        )
    if failure:
        error = failure[0]
        raise PluginInvalid(f"{place_of(error, origin)}: {described(error)}") from error
    return result[0]


def _thread_place(thread: threading.Thread, file: str) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    places = [f"{each.f_code.co_filename}, line {each.f_lineno}" for each in _frames(frame)]
    return next((place for place in places if place.startswith(file)), file)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _entry_points(name: str) -> list[Any]:
    from importlib.metadata import entry_points  # slow to import, and needed only for names that have no file

    return list(entry_points(group=GROUP, name=name))
