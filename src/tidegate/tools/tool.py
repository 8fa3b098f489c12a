"""Tools: a tool's definition for the model, its effect, and the function that runs it.

A tool made with `@tool` runs only with arguments of the declared types. Other arguments raise `ToolFailed` with one
sentence that names the wrong argument. A tool has no state and no identity: the context of each call identifies the
caller. The tool runner enforces the deadline.
"""

import contextlib
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from tidegate.errors import ToolFailed
from tidegate.spool import SessionSpool
from tidegate.tools.services import ToolServices
from tidegate.values import Frozen, Media, ToolDefinition
from tidegate.workspaces import Workspace

Effect = Literal["read", "write", "execute", "network"]
"""What a call can affect: nothing (read), files (write), anything on the machine (execute), or other machines
(network)."""

ApprovalCovers = Literal["call", "tool"]

_CANONICAL = msgspec.json.Encoder(order="sorted")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_TYPE_NAMES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


S = TypeVar("S")

Ask = Callable[[str, Sequence[str]], Awaitable[str]]
"""Asks the person a question with choices and waits for the answer without a time limit."""


class Result(Frozen, frozen=True):
    """A call's result. If it consists only of text, a tool may return a string instead."""

    text: str
    media: tuple[Media, ...] = ()
    failed: bool = False


async def _ask_nobody(question: str, choices: Sequence[str]) -> str:
    raise ToolFailed("There is nobody to ask.")


def _ignore(text: str) -> None:
    """Does nothing. The default if nobody is following the output, or if contacted hosts are not recorded."""


class ToolContext(Frozen, frozen=True):
    """The identity and services of one call. A tool gets nothing else. `step` and `call` identify the call. `progress`
    is called with new output, for clients that follow the turn."""

    session: str
    principal: str
    channel: str
    agent: str
    turn: str
    workspace: Workspace
    spool: SessionSpool
    step: str = ""
    call: str = ""
    ask: Ask = _ask_nobody
    progress: Callable[[str], None] = _ignore
    contacts: Callable[[str], None] = _ignore
    """A tool must call this with a host's name before it contacts the host, for the audit log."""
    services: ToolServices = ToolServices()
    depth: int = 0
    """The number of turns above this turn in the chain of delegation."""

    def service(self, kind: type[S], *, otherwise: str) -> S:
        """Returns the service with this type. Raises `ToolFailed` with the message `otherwise` if it is not
        available."""
        if (found := self.services.get(kind)) is None:
            raise ToolFailed(otherwise)
        return found


Run = Callable[[ToolContext, str], Awaitable[str | Result]]

DEFAULT_OWNER = "built-in"
"""The owner of tools that do not name one. It is replaced if the tool comes from a plug-in."""


class Tool(Frozen, frozen=True):
    """A tool that an agent can call. `run` accepts the context and the model's argument text (JSON).

    `parallel` allows the tool to run concurrently with other calls of the same step. `repeatable` allows it to run
    again if it is unknown after a crash whether the first run took place. `timeout` is in seconds; None is for tools
    that enforce a deadline themselves. `output_bytes` lowers the limit on the output that the model sees.
    `long_results` means that results may exceed this limit, so the tool that reads the rest is also made available.
    `contained` means that the tool changes nothing outside the session's workspace and executes nothing outside its
    sandbox, so it needs no approval. `asks` means that every call needs approval even if it only reads, unless a rule
    or `autonomous` mode allows it. `approval_covers` is what an approval for more than one call covers: every call
    of the tool, or only calls with exactly the same arguments; by default the latter for tools that execute. `owner` is
    the tool's origin, for messages about conflicts.
    """

    definition: ToolDefinition
    effect: Effect
    run: Run
    parallel: bool = False
    repeatable: bool = False
    timeout: float | None = 60.0
    output_bytes: int | None = None
    contained: bool = False
    long_results: bool = False
    asks: bool = False
    approval_covers: ApprovalCovers | None = None
    owner: str = DEFAULT_OWNER

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def read_only(self) -> bool:
        """True if an interrupted call cannot have changed anything, which excludes reading tools that must not be
        repeated, since repeating them may have an effect."""
        return self.effect == "read" and self.repeatable

    @property
    def covers_exact_calls(self) -> bool:
        """True if an approval for more than one call covers only calls with exactly the same arguments."""
        return (self.approval_covers or ("call" if self.effect == "execute" else "tool")) == "call"

    @property
    def fingerprint(self) -> bytes:
        """A digest of everything that a person who approves calls of this tool relies on. The digest does not depend on
        how the schema is formatted."""
        schema: Any = bytes(self.definition.parameters)
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            schema = msgspec.json.decode(schema)
        content = (
            self.owner, self.name, self.definition.description, schema, self.effect, self.contained, self.asks,
            self.covers_exact_calls,
        )  # fmt: skip
        return hashlib.sha256(_CANONICAL.encode(content)).digest()

    def same_as(self, other: "Tool") -> bool:
        """True if both are the same tool, apart from the owner."""
        return self == (other if other.owner == self.owner else msgspec.structs.replace(other, owner=self.owner))


def tool(
    *,
    effect: Effect,
    timeout: float | None = 60.0,
    parallel: bool = False,
    repeatable: bool | None = None,
    output_bytes: int | None = None,
    contained: bool = False,
    long_results: bool = False,
    asks: bool = False,
    approval_covers: ApprovalCovers | None = None,
    owner: str = DEFAULT_OWNER,
    name: str | None = None,
) -> Callable[[Callable[..., Awaitable[str | Result]]], Tool]:
    """Creates a `Tool` from `async def f(ctx, *, argument: type = default, …) -> str`, or `-> Result`. A tool that only
    reads is repeatable unless `repeatable` says otherwise.

    The first paragraph of the docstring is the description that models see. Arguments are described with
    `Annotated[type, msgspec.Meta(description=…)]`, whose other constraints are checked as well.
    """

    def make(function: Callable[..., Awaitable[str | Result]]) -> Tool:
        tool_name = name or function.__name__
        description = inspect.cleandoc(function.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        if not description:
            raise TypeError(f"the tool {tool_name} needs a docstring: models see it as the description")
        arguments = _arguments_type(tool_name, function)
        decoder = msgspec.json.Decoder(arguments, strict=False)
        names = tuple(field.encode_name for field in msgspec.structs.fields(arguments))

        async def run(ctx: ToolContext, text: str) -> str | Result:
            try:
                # For a call without arguments, some models send an empty text.
                values = decoder.decode(text if text.strip() else "{}")
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise ToolFailed(f"{tool_name}: {_complaint(error, names)}") from None
            return await function(ctx, **{field: getattr(values, field) for field in names})

        definition = ToolDefinition(name=tool_name, description=description, parameters=_schema(arguments))
        return Tool(
            definition=definition,
            effect=effect,
            run=run,
            parallel=parallel,
            repeatable=effect == "read" if repeatable is None else repeatable,
            timeout=timeout,
            output_bytes=output_bytes,
            contained=contained,
            long_results=long_results,
            asks=asks,
            approval_covers=approval_covers,
            owner=owner,
        )

    return make


def _arguments_type(tool_name: str, function: Callable[..., Awaitable[str | Result]]) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    _context, *parameters = inspect.signature(function).parameters.values()
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.name not in hints:
            raise TypeError(
                f"the tool {tool_name} needs a type for {parameter.name}, and a bare * before its arguments"
            )
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        fields.append((parameter.name, hints[parameter.name], default))
    return msgspec.defstruct(
        f"{tool_name}_arguments",
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        module=function.__module__,
    )


def _schema(arguments: type[msgspec.Struct]) -> msgspec.Raw:
    (_reference,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = parts.pop(arguments.__name__)
    schema.pop("title", None)
    if parts:
        schema["$defs"] = parts
    return msgspec.Raw(msgspec.json.encode(schema))


def _complaint(error: Exception, names: tuple[str, ...]) -> str:
    """Describes the error in the arguments for the model, phrased as the end of a sentence."""
    message = str(error)
    accepted = f"it accepts {', '.join(names)}" if names else "it accepts no arguments"
    if not isinstance(error, msgspec.ValidationError):
        return f"the arguments are not a valid JSON object; {accepted}"
    place = _PLACE.search(message)
    reason = message[: place.start()] if place else message
    if missing := _MISSING.search(message):
        return f'the argument "{missing[1]}" is missing; {accepted}'
    if unknown := _UNKNOWN.search(message):
        return f'there is no argument "{unknown[1][:60]}"; {accepted}'
    if wrong := _TYPE.search(message):
        wanted = " or ".join(_TYPE_NAMES.get(word, word) for word in wrong[1].split(" | "))
        reason = f"must be {wanted}, not {_TYPE_NAMES.get(wrong[2], wrong[2])}"
    else:
        reason = f"is refused: {reason[:200]}"
    if place and place[1]:
        return f'the argument "{place[1]}" {reason}'
    return f"the arguments {reason}; {accepted}"
