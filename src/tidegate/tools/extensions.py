"""Toolsets of the user's own: a file in the home folder, or an installed package.

Guarantee: only what the configuration names is looked for and run; a toolset that comes with the gateway cannot be
replaced. A file `tools/NAME.py` in the home folder is the toolset NAME, made of every tool that it defines; a package
offers one under the entry point `tidegate.toolsets`, as a `Toolset` or a function that gives one. What is wrong with
one is the operator's to mend, in one sentence that names the file or the package.
"""

from pathlib import Path

from tidegate.errors import Misconfigured
from tidegate.tools import plugins
from tidegate.tools.tool import Tool
from tidegate.tools.toolset import Toolset

GROUP = "tidegate.toolsets"


def find(name: str, folder: Path) -> Toolset | None:
    """The toolset of that name; None when there is none."""
    file = folder / f"{name}.py"
    return _from_file(file) if file.is_file() else _from_package(name)


def _from_file(file: Path) -> Toolset:
    tools = [value for value in vars(plugins.run_file(file, "tools")).values() if isinstance(value, Tool)]
    if not tools:
        raise Misconfigured(f"{file} defines no tool; make one with @tool from tidegate.tools")
    return Toolset(tools)


def _from_package(name: str) -> Toolset | None:
    found = plugins.offered(GROUP, name, "toolset")
    if found is None:
        return None
    made, origin = found
    try:
        made = made() if callable(made) else made
    except Exception as error:
        raise Misconfigured(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from None
    if not isinstance(made, Toolset):
        raise Misconfigured(f"{origin} is no Toolset but a {type(made).__name__}")
    return made
