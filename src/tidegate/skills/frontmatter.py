"""The frontmatter of SKILL.md files.

Any input results in a `Skill` or in a one-sentence error that says what to fix. The time needed is bounded by the size
of the input. YAML is read as a stream of events: every scalar is its literal text. Tags, anchors and aliases are
refused, so no object is constructed and nothing is expanded; duplicate keys are refused too. The YAML library is
imported when the first file is read.
"""

import re
from collections.abc import Iterable
from typing import Any

from tidegate.errors import Misconfigured
from tidegate.skills.skill import Skill
from tidegate.workspaces.files import printable

FILE_BYTES = 256 * 1024
"""Maximum size of a SKILL.md. The format's authors recommend at most 500 lines; this is more than ten times that."""

TOO_LONG = f"it has more than {FILE_BYTES // 1024} KiB; move long parts into files next to it."

HEAD_CHARACTERS = 16 * 1024
"""Maximum length of the frontmatter. The fields with a length limit have fewer than 2,000 characters in total."""

LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_COMPATIBILITY = 64, 1024, 500
"""The limits defined by the format, in characters."""

DEEPEST = 16
"""Maximum nesting depth of lists and mappings. The format needs two levels."""

SHOWN = 80
"""Maximum number of characters of a faulty value quoted in an error message."""

_FENCES = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")

Tree = str | list[Any] | dict[str, Any]


class InvalidSkill(Misconfigured):
    """The skill cannot be used. The message completes a sentence that begins with the skill's path."""


def decoded(data: bytes) -> str:
    """Decodes the text of a SKILL.md."""
    if len(data) > FILE_BYTES:
        raise InvalidSkill(TOO_LONG)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSkill(f"it is not valid UTF-8 (byte {error.start + 1}); save it as UTF-8.") from None


def body(text: str) -> str:
    """Returns the text after the frontmatter."""
    found = _FENCES.match(text)
    return text if found is None else text[found.end() :].strip()


def read(text: str) -> Skill:
    """Parses the text of a SKILL.md. Raises `InvalidSkill`."""
    found = _FENCES.match(text)
    if found is None:
        raise InvalidSkill(
            "it has no frontmatter; begin it with a line ---, then name and description, then a line ---."
        )
    if len(found[1]) > HEAD_CHARACTERS:
        raise InvalidSkill(f"its frontmatter has more than {HEAD_CHARACTERS} characters; move long parts below it.")
    fields = _mapping(found[1])
    return Skill(
        name=_name(fields),
        description=_description(fields),
        license=_text(fields, "license"),
        compatibility=_text(fields, "compatibility", LONGEST_COMPATIBILITY),
        metadata=_metadata(fields),
        tools=_tools(fields),
    )


def _name(fields: dict[str, Any]) -> str:
    name = _text(fields, "name")
    if not name:
        raise InvalidSkill("its frontmatter has no name; add one that matches the folder's name.")
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise InvalidSkill(
            f"its name {_shown(name)} must consist of at most {LONGEST_NAME} lower-case letters and digits, with "
            "single hyphens between them; rename it and its folder."
        )
    return name


def _description(fields: dict[str, Any]) -> str:
    text = printable(" ".join(_text(fields, "description").split()))
    if not text:
        raise InvalidSkill("its frontmatter has no description; add one that says what it does and when to use it.")
    if len(text) > LONGEST_DESCRIPTION:
        raise InvalidSkill(f"its description has {len(text)} characters, more than {LONGEST_DESCRIPTION}; shorten it.")
    return text


def _text(fields: dict[str, Any], key: str, longest: int = HEAD_CHARACTERS) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise InvalidSkill(f"its {key} is a {_kind(value)}; make it a string.")
    if len(value) > longest:
        raise InvalidSkill(f"its {key} has {len(value)} characters, more than {longest}; shorten it.")
    return value.strip()


def _metadata(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the entries whose value is a plain string. Other forms, as used by other programs, are ignored."""
    value = fields.get("metadata", {})
    if value == "":
        return ()
    if not isinstance(value, dict):
        raise InvalidSkill(f"its metadata is a {_kind(value)}; make it a mapping of names to strings.")
    return tuple((key, each) for key, each in value.items() if isinstance(each, str))


def _tools(fields: dict[str, Any]) -> tuple[str, ...]:
    value = fields.get("allowed-tools", "")
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise InvalidSkill("its allowed-tools are neither a string nor a list of strings; use one of these.")
    return tuple(names)


def _kind(value: Tree) -> str:
    return "string" if isinstance(value, str) else "list" if isinstance(value, list) else "mapping"


def _shown(text: str) -> str:
    return f'"{printable(text if len(text) <= SHOWN else text[:SHOWN] + "…")}"'


# -- YAML --


def _mapping(text: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]  # imported when the first file is read

    try:
        tree = _tree(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise InvalidSkill(_complaint(error)) from None
    if not isinstance(tree, dict):
        raise InvalidSkill("its frontmatter is not a list of fields; write lines such as name: NAME.")
    return tree


def _complaint(error: Any) -> str:
    """Returns the library's error with its line number in the file, in which the first line is the fence."""
    mark = getattr(error, "problem_mark", None)
    where = f" on line {mark.line + 2}" if mark is not None else ""
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    return (
        f"its frontmatter is not valid YAML{where} ({printable(str(what))[:SHOWN]}); fix it, and put text that "
        "contains a colon in quotes."
    )


def _tree(events: Iterable[Any]) -> Tree | None:
    """Returns the stream's only document, or None if there is none. Does not use recursion."""
    found: list[Tree] = []
    outer: list[_Building] = []
    for event in events:
        kind = type(event).__name__
        line = event.start_mark.line + 2
        if kind == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise InvalidSkill(f"its frontmatter has an anchor or alias on line {line}; write the text out instead.")
        if getattr(event, "tag", None) is not None:
            raise InvalidSkill(f"its frontmatter has a tag on line {line}; write plain text instead.")
        if kind == "DocumentStartEvent" and found:
            raise InvalidSkill("its frontmatter contains several documents; keep one.")
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            if len(outer) == DEEPEST:
                raise InvalidSkill(f"its frontmatter has more than {DEEPEST} levels on line {line}; simplify it.")
            outer.append(_Building({} if kind == "MappingStartEvent" else []))
            continue
        if kind == "ScalarEvent":
            done: Tree = event.value
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            done = outer.pop().value
        else:
            continue
        if outer:
            outer[-1].add(done, line)
        else:
            found.append(done)
    return found[0] if found else None


class _Building:
    """A list or mapping that is still being built."""

    def __init__(self, value: Tree) -> None:
        self.value = value
        self._key: str | None = None

    def add(self, part: Tree, line: int) -> None:
        if isinstance(self.value, list):
            self.value.append(part)
        elif isinstance(self.value, dict):
            if self._key is not None:
                self.value[self._key], self._key = part, None
            elif not isinstance(part, str):
                raise InvalidSkill(f"its frontmatter has a {_kind(part)} as a field name on line {line}; use a string.")
            elif part in self.value:
                raise InvalidSkill(
                    f"its frontmatter has the name {_shown(part)} twice, again on line {line}; keep one."
                )
            else:
                self._key = part
