"""Requests of the Responses format, with strict types and the rules that types cannot express.

A request that the provider would refuse raises Refusal with its `param` and, if there is one, its `code`. Nothing is
stored, so references to earlier responses are refused.
"""

import re
from typing import Any, Literal

import msgspec

from bench.scripted.interface import Refusal
from bench.scripted.media import IMAGE_CHARACTERS, check_data_url
from bench.scripted.reuse import CHARACTERS_PER_TOKEN
from bench.scripted.script import directs
from bench.scripted.toolset import is_strict

# Tokens of an item in addition to its content.
ITEM_CHARACTERS = 16
LEAST_OUTPUT = 16
LONGEST_ID = 64
_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class InputText(_Strict, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(_Strict, frozen=True, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: str | None = None


class InputFile(_Strict, frozen=True, tag_field="type", tag="input_file"):
    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class OutputText(_Strict, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: tuple[Any, ...] | None = None


class OutputRefusal(_Strict, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class SummaryText(_Strict, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(_Strict, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


Part = InputText | InputImage | InputFile | OutputText | OutputRefusal | ReasoningText


class Item(_Strict, frozen=True):
    """Any item. The fields of each type are checked separately, because a message need not have a type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | tuple[Part, ...] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | tuple[InputText | InputImage | InputFile, ...] | None = None
    summary: tuple[SummaryText, ...] | None = None
    encrypted_content: str | None = None

    def text(self) -> str:
        content = self.content if self.type == "message" else self.output
        if isinstance(content, str):
            return content
        return "\n".join(part.text for part in content or () if isinstance(part, InputText | OutputText))

    def directs(self) -> bool:
        if self.role != "user":
            return False
        plain = isinstance(self.content, str)
        return directs("" if plain else self.text(), plain=plain)

    def size(self) -> int:
        images = sum(isinstance(part, InputImage) for part in (*_parts(self.content), *_parts(self.output)))
        spoken = len(self.text()) + len(self.name or "") + len(self.arguments or "")
        return ITEM_CHARACTERS + spoken + len(self.encrypted_content or "") + IMAGE_CHARACTERS * images


class Reasoning(_Strict, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class PlainFormat(_Strict, frozen=True, tag_field="type", tag="text"):
    pass


class ObjectFormat(_Strict, frozen=True, tag_field="type", tag="json_object"):
    pass


class SchemaFormat(_Strict, frozen=True, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(_Strict, frozen=True):
    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(_Strict, frozen=True):
    include_obfuscation: bool = True


class ChoiceFunction(_Strict, frozen=True, tag_field="type", tag="function"):
    name: str


class ChoiceAllowed(_Strict, frozen=True, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: tuple[ChoiceFunction, ...]


class Request(_Strict, frozen=True):
    model: str
    input: str | tuple[Item, ...]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    include: tuple[Include, ...] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: Literal["none", "auto", "required"] | ChoiceFunction | ChoiceAllowed | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: dict[str, str] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None

    def items(self) -> tuple[Item, ...]:
        return (Item(role="user", content=self.input),) if isinstance(self.input, str) else self.input

    @property
    def thinks(self) -> bool:
        return self.reasoning is not None and self.reasoning.effort != "none"


_request = msgspec.json.Decoder(Request).decode


def read_request(body: bytes) -> Request:
    """Decode a request and check its parameters, but not its items and tools."""
    try:
        request = _request(body)
    except msgspec.ValidationError as error:
        raise _told(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("We could not parse the JSON body of your request.") from error
    _check_parameters(request)
    return request


def tokens_of(request: Request, items: tuple[Item, ...]) -> int:
    size = len(request.instructions or "") + sum(item.size() for item in items)
    return size // CHARACTERS_PER_TOKEN


def check_image(part: InputImage, where: str) -> None:
    if part.image_url is None:
        raise Refusal(
            f"Missing required parameter: '{where}.image_url'.", param=where, code="missing_required_parameter"
        )
    check_data_url(part.image_url, where)


def _parts(content: str | tuple[Any, ...] | None) -> tuple[Any, ...]:
    return content if isinstance(content, tuple) else ()


def _told(said: str) -> Refusal:
    if found := _UNKNOWN.match(said):
        name = f"{found[2]}.{found[1]}" if found[2] else found[1]
        return Refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    where = re.search(r"`\$\.?([^`]*)`$", said)
    return Refusal(f"Invalid value: {said}", param=where[1] if where else None, code="invalid_value")


def _check_parameters(request: Request) -> None:
    if request.previous_response_id is not None:
        raise Refusal(
            f"Previous response with id '{request.previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if request.conversation is not None:
        raise Refusal("There is no such conversation.", param="conversation", code="conversation_not_found", status=404)
    if request.background:
        raise Refusal("Background mode is not offered here.", param="background", code="unsupported_parameter")
    if request.max_output_tokens is not None and request.max_output_tokens < LEAST_OUTPUT:
        raise Refusal(
            f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= {LEAST_OUTPUT}, but got "
            f"{request.max_output_tokens} instead.",
            param="max_output_tokens",
            code="integer_below_min_value",
        )
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise Refusal("'temperature' must be between 0 and 2.", param="temperature", code="decimal_out_of_range")
    if request.top_p is not None and not 0 <= request.top_p <= 1:
        raise Refusal("'top_p' must be between 0 and 1.", param="top_p", code="decimal_out_of_range")
    for name in ("temperature", "top_p"):
        if request.thinks and getattr(request, name) is not None:
            said = f"Unsupported parameter: '{name}' is not supported with this model."
            raise Refusal(said, param=name, code="unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise Refusal("'stream_options' is only allowed when 'stream' is enabled.", param="stream_options")
    for name in ("prompt_cache_key", "safety_identifier"):
        if len(getattr(request, name) or "") > LONGEST_ID:
            raise Refusal(f"Invalid '{name}': string too long.", param=name, code="string_above_max_length")
    if request.tool_choice is not None and not bytes(request.tools):
        raise Refusal("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    form = request.text.format if request.text else None
    if isinstance(form, SchemaFormat) and not _NAME.match(form.name):
        raise Refusal(f"Invalid 'text.format.name': {form.name!r}.", param="text.format.name", code="invalid_value")
    if isinstance(form, SchemaFormat) and form.strict and not is_strict(form.schema):
        raise Refusal(
            f"Invalid schema for response_format '{form.name}': 'additionalProperties' must be false and 'required' "
            "must name every property.",
            param="text.format.schema",
            code="invalid_json_schema",
        )
    if isinstance(form, ObjectFormat) and "json" not in (_all_text(request)).lower():
        raise Refusal(
            "The input must contain the word 'json' to use 'text.format' of type 'json_object'.", param="input"
        )


def _all_text(request: Request) -> str:
    return " ".join([request.instructions or "", *(item.text() for item in request.items())])
