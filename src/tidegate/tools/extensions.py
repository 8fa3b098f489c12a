"""Toolsets of the user's own: a file in the home folder, or an installed package.

Guarantee: only what the configuration names is looked for and run; a toolset that comes with the gateway cannot be
replaced. A file `tools/NAME.py` in the home folder is the toolset NAME, made of every tool that it defines; a package
offers one under the entry point `tidegate.toolsets`, as a `Toolset` or a function that gives one. What is wrong with
one is the operator's to mend, in one sentence that names the file or the package.
"""

import importlib.util
from pathlib import Path

from tidegate.errors import Misconfigured
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

GROUP = "tidegate.toolsets"


def find(name: str, folder: Path) -> Toolset | None:
    """The toolset of that name; None when there is none."""
    file = folder / f"{name}.py"
    return _from_file(file) if file.is_file() else _from_package(name)


def _from_file(file: Path) -> Toolset:
    spec = importlib.util.spec_from_file_location(f"tidegate_tools_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Misconfigured(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Misconfigured(f"{file} cannot be loaded ({type(error).__name__}: {error})") from None
    tools = [value for value in vars(module).values() if isinstance(value, Tool)]
    if not tools:
        raise Misconfigured(f"{file} defines no tool; make one with @tool from tidegate.tools")
    return Toolset(tools)


def _from_package(name: str) -> Toolset | None:
    from importlib.metadata import entry_points  # heavy, and needed only for a name that nothing else has

    for point in entry_points(group=GROUP, name=name):
        origin = f"the toolset {name!r} of the package {point.dist.name if point.dist is not None else point.value}"
        try:
            made = point.load()
            made = made() if callable(made) else made
        except Exception as error:
            raise Misconfigured(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from None
        if not isinstance(made, Toolset):
            raise Misconfigured(f"{origin} is no Toolset but a {type(made).__name__}")
        return made
    return None
