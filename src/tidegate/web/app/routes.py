"""Which endpoints answer at a path.

Guarantee: a path leads to at most one place. A template's `{name}` stands for one part of a path, `{name:path}` for all
that is left of it; where a path fits both, the one spelt out comes before the template, and an earlier template before
a later one. Nothing is opened or kept: the table is built once.
"""

import re
from collections.abc import Mapping

from tidegate.web.app.endpoint import PathApp

_PART = re.compile(r"\{(\w+)(:path)?\}")


class Route:
    __slots__ = ("app", "path", "values")

    def __init__(self, path: str, app: PathApp, values: Mapping[str, str]) -> None:
        self.path = path
        """As it was declared: one of few, whatever is asked for."""
        self.app = app
        self.values = values


class Routes:
    def __init__(self, apps: Mapping[str, PathApp]) -> None:
        self._spelt = {path: Route(path, app, {}) for path, app in apps.items() if "{" not in path}
        self._templates = [(_pattern(path), path, app) for path, app in apps.items() if "{" in path]

    def find(self, path: str) -> Route | None:
        spelt = self._spelt.get(path)
        if spelt is not None:
            return spelt
        for pattern, template, app in self._templates:
            fits = pattern.fullmatch(path)
            if fits is not None:
                return Route(template, app, fits.groupdict())
        return None


def _pattern(template: str) -> re.Pattern[str]:
    pattern, end = "", 0
    for part in _PART.finditer(template):
        rest = r"(?s:.*)" if part[2] else "[^/]+"
        pattern += re.escape(template[end : part.start()]) + f"(?P<{part[1]}>{rest})"
        end = part.end()
    return re.compile(pattern + re.escape(template[end:]))
