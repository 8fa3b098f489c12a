"""Code of the user's own: a file in the gateway's home folder, or what an installed package offers.

Guarantee: only what is named is looked for and run. What is wrong with it is the operator's to mend, in one sentence
that names the file or the package.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.errors import Misconfigured


def run_file(file: Path, kind: str) -> ModuleType:
    """What the file defines; `kind` tells modules of the same name apart."""
    spec = importlib.util.spec_from_file_location(f"tidegate_{kind}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Misconfigured(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Misconfigured(f"{file} cannot be loaded ({type(error).__name__}: {error})") from None
    return module


def offered(group: str, name: str, kind: str) -> tuple[Any, str] | None:
    """What a package offers under that entry point, and whose it is, in words; None when none does."""
    from importlib.metadata import entry_points  # heavy, and needed only for a name that nothing else has

    for point in entry_points(group=group, name=name):
        origin = f"the {kind} {name!r} of the package {point.dist.name if point.dist is not None else point.value}"
        try:
            return point.load(), origin
        except Exception as error:
            raise Misconfigured(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from None
    return None


def function_of(name: str, file: Path, function: str, *, group: str, kind: str, setting: str) -> Any:
    """The function that a file of the home folder defines, or that a package offers under that name."""
    if not name.replace("-", "_").isidentifier():
        raise Misconfigured(f"{setting} = {name!r} is no name; it has letters, digits, - and _")
    if file.is_file():
        found: tuple[Any, str] | None = (getattr(run_file(file, kind), function, None), str(file))
    else:
        found = offered(group, name, kind)
    if found is None:
        raise Misconfigured(
            f"{setting} names nothing: there is no file {file}, and no installed package offers {name!r}"
        )
    made, origin = found
    if not callable(made):
        raise Misconfigured(f"{setting}: {origin} has no function {function}(home)")
    return made
