"""What a server offers: its tools, prompts and instructions, cleaned and bounded, as immutable values.

A listing is built once from what a server sent, and is then stored and shared. The server's texts are limited in length
and contain no invisible characters. A tool is left out, with a warning, if its schema is too large, is nested too
deeply or does not describe an object, or if the server has more than `TOOLS_AT_MOST` tools. Tool names for models have
the form `NAME__TOOL`. These names are acceptable to all providers, unique within a listing, and depend only on the
names of the server and the tool, so they are the same after a restart.
"""

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidegate.safe_text import strip_invisible
from tidegate.values import Frozen

BETWEEN = "__"
"""Separates the server's name from the tool's name."""

NAME_CHARACTERS = 64
"""The longest tool name that providers accept."""

TOOLS_AT_MOST = 256
"""Maximum number of tools per server. Models choose badly between more than a few dozen tools."""

PROMPTS_AT_MOST = 256
DESCRIPTION_CHARACTERS = 4096
"""Maximum number of characters in a tool's description, which every request repeats."""

SCHEMA_BYTES = 32 * 1024
LISTING_BYTES = 512 * 1024
"""Maximum total size of a server's tool definitions in bytes."""

INSTRUCTION_CHARACTERS = 4096
"""Maximum number of characters in a server's instructions, which are part of every prompt."""

_DEEPEST = 32  # nested parts of a schema
_DIGEST_CHARACTERS = 8
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]+")
_REPLACED = re.compile(r"[^A-Za-z0-9_-]")


class ListedTool(Frozen, frozen=True):
    """A tool of a server. `name` is the server's name for the tool, and `exposed` is the name that models see. The
    hints are the server's own claims about the tool."""

    name: str
    exposed: str
    description: str
    parameters: msgspec.Raw
    read_only: bool = False
    idempotent: bool = False


class ListedPrompt(Frozen, frozen=True):
    """A prompt of a server. Each of its `arguments` has a name, a description and a flag that says whether it is
    required."""

    name: str
    description: str = ""
    arguments: tuple[tuple[str, str, bool], ...] = ()


class ServerListing(Frozen, frozen=True):
    """What a server offered at the time `at`. `ttl` is the number of seconds for which the listing is valid, according
    to the server."""

    revision: str
    server: str = ""
    instructions: str = ""
    tools: tuple[ListedTool, ...] = ()
    prompts: tuple[ListedPrompt, ...] = ()
    has_resources: bool = False
    warnings: tuple[str, ...] = ()
    at: float = 0.0
    ttl: float | None = None

    @property
    def digest(self) -> bytes:
        """A digest of the part of the listing that models see."""
        return hashlib.sha256(msgspec.json.encode([self.instructions, self.tools, self.has_resources])).digest()

    def tool(self, name: str) -> ListedTool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


def exposed_name(server: str, tool: str) -> str:
    """Returns the name that models see. If the name is too long or contains characters that are not allowed, it is
    shortened and ends with a digest of the original."""
    whole = f"{server}{BETWEEN}{tool}"
    if len(whole) <= NAME_CHARACTERS and _ACCEPTED.fullmatch(whole):
        return whole
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
    room = NAME_CHARACTERS - len(server) - len(BETWEEN) - 1 - _DIGEST_CHARACTERS
    return f"{server}{BETWEEN}{_REPLACED.sub('_', tool[:room])}_{digest}"


def server_of(exposed: str) -> str:
    """Returns the name of the server that provides a tool, or an empty string if no server does."""
    server, between, _ = exposed.partition(BETWEEN)
    return server if between else ""


def is_allowed(name: str, allowed: Iterable[str], denied: Iterable[str]) -> bool:
    """True if at least one pattern allows the name and none denies it."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in denied
    )


def one_line(text: str, most: int) -> str:
    """Returns cleaned text as one line of at most `most` characters."""
    words = " ".join(strip_invisible(text[: 4 * most]).split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


def shortened(text: str, most: int) -> str:
    """Returns cleaned text of at most `most` characters."""
    cleaned = strip_invisible(text[: 4 * most]).strip()
    return cleaned if len(cleaned) <= most else f"{cleaned[: most - 1]}…"


class ListingBuilder:
    """Collects a server's listing page by page, within the limits."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: dict[str, ListedTool] = {}
        self._prompts: dict[str, ListedPrompt] = {}
        self._warnings: list[str] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._tools) >= TOOLS_AT_MOST

    def add_tool(
        self, name: str, description: str, schema: Mapping[str, Any], *, read_only: bool, idempotent: bool
    ) -> None:
        shown = one_line(name, NAME_CHARACTERS)
        if self.is_full:
            self._warn(f"it has more than {TOOLS_AT_MOST} tools; the others are left out")
            return
        try:
            parameters = encoded_schema(schema)
        except ValueError as error:
            self._warn(f"the tool {shown!r} is left out: its schema {error}")
            return
        exposed = exposed_name(self._server, name)
        if exposed in self._tools:
            self._warn(f"the tool {shown!r} is left out: another tool has the same name")
            return
        text = shortened(description, DESCRIPTION_CHARACTERS) or shown
        self._bytes += len(parameters) + len(text)
        if self._bytes > LISTING_BYTES:
            self._warn(f"its definitions have more than {LISTING_BYTES:,} bytes; {shown!r} is left out")
            return
        self._tools[exposed] = ListedTool(
            name=name,
            exposed=exposed,
            description=text,
            parameters=parameters,
            read_only=read_only,
            idempotent=idempotent or read_only,
        )

    def add_prompt(self, name: str, description: str, arguments: Iterable[tuple[str, str, bool]]) -> None:
        if len(self._prompts) < PROMPTS_AT_MOST and name == one_line(name, NAME_CHARACTERS):
            listed = tuple(
                (one_line(each, NAME_CHARACTERS), one_line(about, 200), required) for each, about, required in arguments
            )
            self._prompts.setdefault(name, ListedPrompt(name, one_line(description, 400), listed[:32]))

    def build(
        self, *, revision: str, server: str, instructions: str, has_resources: bool, at: float, ttl: float | None
    ) -> ServerListing:
        return ServerListing(
            revision=revision,
            server=one_line(server, 200),
            instructions=shortened(instructions, INSTRUCTION_CHARACTERS),
            tools=tuple(self._tools[name] for name in sorted(self._tools)),
            prompts=tuple(self._prompts[name] for name in sorted(self._prompts)),
            has_resources=has_resources,
            warnings=tuple(self._warnings),
            at=at,
            ttl=ttl,
        )

    def _warn(self, text: str) -> None:
        if len(self._warnings) < 16 and text not in self._warnings:
            self._warnings.append(text)


def encoded_schema(schema: Mapping[str, Any]) -> msgspec.Raw:
    """Returns a cleaned schema as JSON. Raises ValueError with the reason, phrased as the end of a sentence."""
    if schema.get("type", "object") != "object":
        raise ValueError("does not describe an object")
    cleaned = {"type": "object", "properties": {}, **_cleaned(schema, 0)}
    try:
        encoded = msgspec.json.encode(cleaned)
    except (msgspec.MsgspecError, TypeError, ValueError, UnicodeError):
        raise ValueError("is not valid") from None
    if len(encoded) > SCHEMA_BYTES:
        raise ValueError(f"has more than {SCHEMA_BYTES:,} bytes")
    return msgspec.Raw(encoded)


def _cleaned(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("is nested too deeply")
    if isinstance(value, str):
        return strip_invisible(value)
    if isinstance(value, Mapping):
        return {strip_invisible(str(key)): _cleaned(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(each, depth + 1) for each in value]
    return value


def quoted(server: str, instructions: str) -> Iterator[str]:
    """Yields lines that quote a server's instructions in a prompt, so that they cannot be mistaken for the
    gateway's."""
    yield f"The server {server!r} says about its tools:"
    yield from (f"> {line}".rstrip() for line in instructions.splitlines())
