"""The user's own code: toolsets, and functions that other packages load.

A plugin is a Python file in the gateway's home folder or an entry point of an installed package. Only plugins that the
configuration names are looked up and run, and a toolset that comes with the gateway cannot be replaced. A faulty plugin
raises `Misconfigured` with one sentence that names the file or the package.

The toolset NAME is the file `tools/NAME.py`, with every tool that it defines, or the entry point NAME of the group
`tidegate.toolsets`, which is a `Toolset` or a function that returns one.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.errors import Misconfigured
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

TOOLSETS_GROUP = "tidegate.toolsets"


def find_toolset(name: str, folder: Path) -> Toolset | None:
    """Returns the user's toolset of that name, or None."""
    file = folder / f"{name}.py"
    return _toolset_from_file(file) if file.is_file() else _toolset_from_package(name)


def load_function(name: str, file: Path, function: str, *, group: str, kind: str, setting: str) -> Any:
    """Returns `function` of the file or, if there is no such file, the entry point `name` of the group.

    `setting` and `kind` are used in error messages.
    """
    if not name.replace("-", "_").isidentifier():
        raise Misconfigured(f"{setting} = {name!r} is not a valid name; use letters, digits, - and _")
    if file.is_file():
        found: tuple[Any, str] | None = (getattr(_load_file(file, kind), function, None), str(file))
    else:
        found = _load_entry_point(group, name, kind)
    if found is None:
        raise Misconfigured(
            f"{setting} = {name!r} was not found: there is no file {file}, and no installed package offers it"
        )
    loaded, origin = found
    if not callable(loaded):
        raise Misconfigured(f"{setting}: {origin} has no function {function}(home)")
    return loaded


def _toolset_from_file(file: Path) -> Toolset:
    tools = [value for value in vars(_load_file(file, "tools")).values() if isinstance(value, Tool)]
    if not tools:
        raise Misconfigured(f"{file} defines no tool; make one with @tool from tidegate.tools")
    return Toolset(tools)


def _toolset_from_package(name: str) -> Toolset | None:
    found = _load_entry_point(TOOLSETS_GROUP, name, "toolset")
    if found is None:
        return None
    toolset, origin = found
    try:
        toolset = toolset() if callable(toolset) else toolset
    except Exception as error:
        raise Misconfigured(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from None
    if not isinstance(toolset, Toolset):
        raise Misconfigured(f"{origin} is not a Toolset but a {type(toolset).__name__}")
    return toolset


def _load_file(file: Path, kind: str) -> ModuleType:
    """Runs a file as a module. `kind` keeps modules of the same name apart."""
    spec = importlib.util.spec_from_file_location(f"tidegate_{kind}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Misconfigured(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Misconfigured(f"{file} cannot be loaded ({type(error).__name__}: {error})") from None
    return module


def _load_entry_point(group: str, name: str, kind: str) -> tuple[Any, str] | None:
    """Returns the object of an installed package's entry point with a description of its origin, or None."""
    from importlib.metadata import entry_points  # slow to import, and needed only for names that have no file

    for point in entry_points(group=group, name=name):
        origin = f"the {kind} {name!r} of the package {point.dist.name if point.dist is not None else point.value}"
        try:
            return point.load(), origin
        except Exception as error:
            raise Misconfigured(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from None
    return None
