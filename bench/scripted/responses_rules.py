"""Rules of the Responses format beyond types: pairs of calls and outputs, returned reasoning, tools.

`check_items` and `check_tools` raise Refusal where the provider does. They keep nothing.
"""

import json
import re
from typing import Any, Literal

import msgspec

from bench.scripted.interface import Refusal
from bench.scripted.media import check_file
from bench.scripted.responses_request import (
    LONGEST_ID,
    ChoiceAllowed,
    ChoiceFunction,
    InputFile,
    InputImage,
    InputText,
    Item,
    OutputRefusal,
    OutputText,
    ReasoningText,
    Request,
    check_image,
)
from bench.scripted.reuse import CHARACTERS_PER_TOKEN
from bench.scripted.seal import unsealed
from bench.scripted.toolset import check_unique, is_strict

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
# By type: required fields, optional fields, and the prefix of the id.
SHAPES: dict[str, tuple[frozenset[str], frozenset[str], str]] = {
    "message": (frozenset({"role", "content"}), frozenset({"id", "status", "phase"}), "msg"),
    "function_call": (frozenset({"call_id", "name", "arguments"}), frozenset({"id", "status"}), "fc"),
    "function_call_output": (frozenset({"call_id", "output"}), frozenset({"id", "status"}), "fc"),
    "reasoning": (frozenset({"summary"}), frozenset({"id", "status", "encrypted_content", "content"}), "rs"),
}
FIELDS = tuple(name for name in Item.__struct_fields__ if name != "type")


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None
    strict: bool | None = None
    description: str | None = None


_tools = msgspec.json.Decoder(tuple[Tool, ...]).decode


def check_tools(raw: bytes) -> tuple[tuple[str, ...], int, int]:
    """The names, a hash of the canonical content, and its number of tokens."""
    try:
        tools = _tools(raw)
    except msgspec.ValidationError as error:
        raise Refusal(f"Invalid value: {error}", param="tools", code="invalid_value") from error
    for place, tool in enumerate(tools):
        if not _NAME.match(tool.name):
            where = f"tools[{place}].name"
            raise Refusal(f"Invalid '{where}': it does not match the pattern.", param=where, code="invalid_value")
        if tool.strict and not is_strict(tool.parameters or {}):
            raise Refusal(
                f"Invalid schema for function '{tool.name}': 'additionalProperties' must be false and 'required' must "
                "name every property.",
                param=f"tools[{place}].parameters",
                code="invalid_function_parameters",
            )
    names = tuple(tool.name for tool in tools)
    check_unique(names)
    written = json.dumps(msgspec.json.decode(raw), sort_keys=True)
    return names, hash(written), len(written) // CHARACTERS_PER_TOKEN


def check_choice(request: Request, names: tuple[str, ...]) -> None:
    choice = request.tool_choice
    chosen = choice.tools if isinstance(choice, ChoiceAllowed) else (choice,)
    for each in chosen:
        if isinstance(each, ChoiceFunction) and each.name not in names:
            raise Refusal(f"Tool choice '{each.name}' is not among the 'tools'.", param="tool_choice")


def check_items(request: Request, items: tuple[Item, ...]) -> None:
    if not items:
        raise Refusal("'input' must not be empty.", param="input", code="missing_required_parameter")
    for place, item in enumerate(items):
        where = f"input[{place}]"
        if item.type == "item_reference":
            raise Refusal(f"Item with id '{item.id}' not found: nothing is stored.", param="input", status=404)
        _check_shape(item, where)
        if item.type == "message":
            _check_message(item, where)
        elif item.type == "function_call" and not _NAME.match(item.name or ""):
            raise Refusal(f"Invalid '{where}.name': {item.name!r}.", param=f"{where}.name", code="invalid_value")
        elif isinstance(item.output, tuple):
            _check_media(item.output, f"{where}.output")
    _check_calls(items)
    _check_reasoning(request, items)


def reasoning_of(model: str, tail: str, thought: str) -> str:
    """The sealed content of a reasoning item."""
    return f"{model}\0{tail}\0{thought}"


def _check_shape(item: Item, where: str) -> None:
    needed, allowed, begins = SHAPES[item.type]
    for name in FIELDS:
        given = getattr(item, name) is not None
        if name in needed:
            if not given:
                param = f"{where}.{name}"
                raise Refusal(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
        elif given and name not in allowed:
            param = f"{where}.{name}"
            raise Refusal(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if item.id is not None and (not item.id.startswith(begins) or len(item.id) > LONGEST_ID):
        raise Refusal(
            f"Invalid '{where}.id': '{item.id}'. Expected an ID that begins with '{begins}'.",
            param=f"{where}.id",
            code="invalid_value",
        )
    if item.call_id is not None and not 0 < len(item.call_id) <= LONGEST_ID:
        raise Refusal(f"Invalid '{where}.call_id': wrong length.", param=f"{where}.call_id", code="invalid_value")


def _check_message(item: Item, where: str) -> None:
    content = item.content
    allowed = (OutputText, OutputRefusal) if item.role == "assistant" else (InputText, InputImage, InputFile)
    if isinstance(content, tuple):
        for place, part in enumerate(content):
            if not isinstance(part, allowed):
                param = f"{where}.content[{place}]"
                raise Refusal(f"Invalid value: such a part is not of {item.role}.", param=param, code="invalid_value")
        _check_media(content, f"{where}.content")
    if item.role == "assistant":
        return
    if content == ():
        raise Refusal(f"a {item.role} message needs content.", param=f"{where}.content", code="invalid_value")
    media = isinstance(content, tuple) and any(isinstance(part, InputImage | InputFile) for part in content)
    if media and item.role != "user":
        raise Refusal(
            "only a user message may contain images or files.", param=f"{where}.content", code="invalid_value"
        )
    if item.role != "user" and not media and not item.text().strip():
        raise Refusal(f"a {item.role} message must not be empty.", param=f"{where}.content", code="invalid_value")


def _check_media(parts: tuple[Any, ...], where: str) -> None:
    for place, part in enumerate(parts):
        if isinstance(part, InputImage):
            check_image(part, f"{where}[{place}]")
        elif isinstance(part, InputFile):
            check_file(part.file_data, part.filename, part.file_id, f"{where}[{place}]")


def _check_calls(items: tuple[Item, ...]) -> None:
    """Every call has one output after it; every output has its call."""
    calls: set[str] = set()
    answered: set[str] = set()
    for item in items:
        identity = item.call_id or ""
        if item.type == "function_call":
            if identity in calls:
                raise Refusal(f"Duplicate function call with call_id {identity}.", param="input")
            calls.add(identity)
        elif item.type == "function_call_output":
            if identity not in calls:
                raise Refusal(f"No tool call found for function call output with call_id {identity}.", param="input")
            if identity in answered:
                raise Refusal(f"Duplicate function call output with call_id {identity}.", param="input")
            answered.add(identity)
    if calls - answered:
        raise Refusal(f"No tool output found for function call {min(calls - answered)}.", param="input")


def _check_reasoning(request: Request, items: tuple[Item, ...]) -> None:
    """Reasoning must be this model's own, unchanged, and directly before the items that followed from it."""
    open_tail = ""
    last_reasoning: Item | None = None
    for item in items:
        if item.type == "reasoning":
            open_tail = _unsealed_tail(request, item)
            last_reasoning = item
            continue
        produced = item.type == "function_call" or item.role == "assistant"
        if last_reasoning is not None and not produced:
            raise _unfollowed(last_reasoning)
        last_reasoning = None
        if not produced:
            open_tail = ""
        elif item.id is not None and (needed := reasoned_tail(item.id)) and needed != open_tail:
            raise Refusal(
                f"Item '{item.id}' of type '{item.type}' was provided without its required 'reasoning' item: "
                f"'rs_{needed}'.",
                param="input",
            )
    if last_reasoning is not None:
        raise _unfollowed(last_reasoning)


def reasoned_tail(identity: str) -> str:
    """The reasoning that an item's id names as its predecessor: `fc_TAIL-rN`."""
    head, dash, _ = identity.rpartition("-r")
    return head.partition("_")[2] if dash else ""


def _unsealed_tail(request: Request, item: Item) -> str:
    if item.encrypted_content is None:
        raise Refusal(
            f"Item with id '{item.id}' not found: nothing is stored; send its 'encrypted_content'.",
            param="input",
            status=404,
        )
    if any(not isinstance(part, ReasoningText) for part in item.content or ()):
        raise Refusal("Invalid value: such a part is not of reasoning.", param="input", code="invalid_value")
    sealed = (unsealed(item.encrypted_content) or "").split("\0")
    if len(sealed) != 3 or sealed[0] != request.model or item.id not in (None, f"rs_{sealed[1]}"):
        name = item.id or f"{item.encrypted_content[:4]}...{item.encrypted_content[-4:]}"
        raise Refusal(f"The encrypted content {name} could not be verified.", code="invalid_encrypted_content")
    return sealed[1]


def _unfollowed(item: Item) -> Refusal:
    return Refusal(
        f"Item '{item.id}' of type 'reasoning' was provided without its required following item.", param="input"
    )
