"""Requests of chat completions, with strict types and the rules that types cannot express.

A request that a strict provider would refuse raises Refusal or msgspec's ValidationError.
"""

import json
import re
from typing import Any, Literal

import msgspec

from bench.scripted.interface import Refusal
from bench.scripted.media import AUDIO_CHARACTERS, IMAGE_CHARACTERS, check_audio, check_data_url, check_file
from bench.scripted.reuse import CHARACTERS_PER_TOKEN
from bench.scripted.script import directs
from bench.scripted.toolset import check_unique, is_strict

# Tokens of a message in addition to its content.
MESSAGE_CHARACTERS = 16
_TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
LONGEST_ID = 40
LARGEST_PENALTY = 2
LARGEST_BIAS = 100
MOST_LOGPROBS = 20
SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Text(_Strict, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageUrl(_Strict, frozen=True):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class Image(_Strict, frozen=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class InputAudio(_Strict, frozen=True):
    data: str
    format: Literal["wav", "mp3"]


class Audio(_Strict, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class FileData(_Strict, frozen=True):
    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class File(_Strict, frozen=True, tag_field="type", tag="file"):
    file: FileData


class RefusalPart(_Strict, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class Function(_Strict, frozen=True):
    name: str
    arguments: str


class ToolCall(_Strict, frozen=True):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(_Strict, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[Text | Image | Audio | File | RefusalPart, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    """A field that compatible servers send and accept back."""

    def text(self) -> str:
        content = self.content
        if isinstance(content, str):
            return content
        return "\n".join(part.text for part in content if isinstance(part, Text)) if content else ""

    def media(self) -> list[Image | Audio | File]:
        content = self.content
        if content is None or isinstance(content, str):
            return []
        return [part for part in content if isinstance(part, Image | Audio | File)]

    def refuses(self) -> bool:
        """Whether the message is a refusal, as text or as a part."""
        content = self.content if isinstance(self.content, tuple) else ()
        return self.refusal is not None or any(isinstance(part, RefusalPart) for part in content)

    def directs(self) -> bool:
        plain = isinstance(self.content, str)
        return self.role == "user" and directs("" if plain else self.text(), plain=plain)


class StreamOptions(_Strict, frozen=True):
    include_usage: bool = False


class Request(_Strict, frozen=True):
    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    response_format: Any = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    service_tier: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prompt_cache_key: str | None = None
    n: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    reasoning: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    """These seven are accepted by compatible servers, but not by OpenAI's own."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: dict[str, str] | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    prediction: Any = None
    web_search_options: Any = None


class ToolFunction(_Strict, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict, frozen=True):
    type: Literal["function"]
    function: ToolFunction


_request = msgspec.json.Decoder(Request).decode
_tools = msgspec.json.Decoder(list[Tool]).decode


def read_request(body: bytes) -> Request:
    """Decode a request without its tools, which are checked once for the same bytes."""
    try:
        request = _request(body)
    except msgspec.ValidationError as error:
        raise Refusal(f"Invalid request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("We could not parse the JSON body of your request.") from error
    if request.tool_choice is not None and not bytes(request.tools):
        raise Refusal("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if request.stream_options is not None and not request.stream:
        raise Refusal("'stream_options' is only allowed when 'stream' is enabled.", param="stream_options")
    for limit in (request.max_tokens, request.max_completion_tokens):
        if limit is not None and limit < 1:
            raise Refusal("the limit of tokens must be at least 1.", param="max_tokens")
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise Refusal("'temperature' must be between 0 and 2.", param="temperature")
    _check_sampling(request)
    check_messages(request.messages)
    return request


def _check_sampling(request: Request) -> None:
    if request.service_tier not in (None, *SERVICE_TIERS):
        tiers = ", ".join(map(repr, SERVICE_TIERS))
        raise Refusal(
            f"Invalid value: {request.service_tier!r}. Supported values are: {tiers}.",
            param="service_tier",
            code="invalid_value",
        )
    schema = request.response_format.get("json_schema") if isinstance(request.response_format, dict) else None
    if schema and schema.get("strict") and not is_strict(schema.get("schema") or {}):
        raise Refusal(
            f"Invalid schema for response_format {schema.get('name')!r}: 'additionalProperties' must be false and "
            "'required' must name every property.",
            param="response_format",
            code="invalid_json_schema",
        )
    for name in ("frequency_penalty", "presence_penalty"):
        if not -LARGEST_PENALTY <= (getattr(request, name) or 0) <= LARGEST_PENALTY:
            raise Refusal(f"'{name}' must be between -2 and 2.", param=name, code="decimal_out_of_range")
    for token, bias in (request.logit_bias or {}).items():
        if not token.isdigit() or abs(bias) > LARGEST_BIAS:
            raise Refusal("'logit_bias' maps token ids to numbers between -100 and 100.", param="logit_bias")
    if request.top_logprobs is not None and not request.logprobs:
        raise Refusal("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    if not 0 <= (request.top_logprobs or 0) <= MOST_LOGPROBS:
        raise Refusal("'top_logprobs' must be between 0 and 20.", param="top_logprobs")
    if request.parallel_tool_calls is not None and not bytes(request.tools):
        raise Refusal("'parallel_tool_calls' is only allowed when 'tools' are specified.", param="parallel_tool_calls")


def check_messages(messages: tuple[Message, ...]) -> None:
    """Raise Refusal where a provider would: unbalanced calls and results, empty messages except the user's."""
    if not messages:
        raise Refusal("'messages' must not be empty.", param="messages")
    open_calls: set[str] = set()
    for place, message in enumerate(messages):
        where = f"messages.[{place}]"
        role = message.role
        if role == "tool":
            if message.tool_call_id is None or message.tool_call_id not in open_calls:
                raise Refusal(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls', once each.",
                    param=where,
                )
            if message.content is None or message.media():
                raise Refusal("a tool result needs content, and takes text only.", param=where)
            open_calls.discard(message.tool_call_id)
            continue
        if open_calls:
            raise Refusal(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. Not answered: {', '.join(sorted(open_calls))}",
                param=where,
            )
        if message.tool_call_id is not None:
            raise Refusal("only a tool message has a 'tool_call_id'.", param=where)
        if role != "assistant":
            if message.tool_calls is not None:
                raise Refusal("only an assistant message has 'tool_calls'.", param=where)
            if message.refuses():
                raise Refusal("only an assistant message has a 'refusal'.", param=where)
            if message.reasoning_content is not None:
                raise Refusal("only an assistant message has 'reasoning_content'.", param=where)
            media = message.media()
            if role != "user" and not message.text().strip() and not media:
                raise Refusal(f"a {role} message must not be empty.", param=where)
            if message.content is None or message.content == ():
                raise Refusal(f"a {role} message needs content.", param=where)
            if media:
                check_media(media, role, where)
        elif message.tool_calls is not None:
            open_calls = {call.id for call in message.tool_calls}
            if not open_calls or len(open_calls) != len(message.tool_calls):
                raise Refusal("'tool_calls' must not be empty, and each id must be its own.", param=where)
            check_calls(message.tool_calls, where)
        elif message.content is None and not message.refuses():
            raise Refusal("an assistant message needs content or 'tool_calls'.", param=where)
    if open_calls:
        raise Refusal(f"tool calls without results: {', '.join(sorted(open_calls))}", param="messages")


def check_calls(calls: tuple[ToolCall, ...], where: str) -> None:
    for place, call in enumerate(calls):
        param = f"{where}.tool_calls[{place}]"
        if not _TOOL_NAME.match(call.function.name):
            raise Refusal(f"Invalid '{param}.function.name': string does not match pattern.", param=param)
        if len(call.id) > LONGEST_ID:
            raise Refusal(
                f"Invalid '{param}.id': string too long. Expected a string with maximum length {LONGEST_ID}.",
                param=param,
            )


def check_media(media: list[Image | Audio | File], role: str, where: str) -> None:
    """Raise Refusal for media that is not a picture or sound inside the request, such as a web address."""
    if role != "user":
        raise Refusal("only a user message may contain images, audio or files.", param=where)
    for part in media:
        if isinstance(part, Image):
            check_data_url(part.image_url.url, where)
        elif isinstance(part, File):
            check_file(part.file.file_data, part.file.filename, part.file.file_id, where)
        else:
            check_audio(part.input_audio.format, part.input_audio.data, where)


def check_tools(raw: bytes) -> tuple[tuple[str, ...], int, int]:
    """The names, a hash of the canonical content, and its number of tokens."""
    try:
        tools = _tools(raw)
    except msgspec.ValidationError as error:
        raise Refusal(f"Invalid tools: {error}", param="tools") from error
    names = tuple(tool.function.name for tool in tools)
    for name in names:
        if not _TOOL_NAME.match(name):
            raise Refusal(f"Invalid tool name {name!r}.", param="tools")
    check_unique(names)
    if not names:
        raise Refusal("'tools' must not be an empty list.", param="tools")
    written = json.dumps(msgspec.json.decode(raw), sort_keys=True)
    return names, hash(written), len(written) // CHARACTERS_PER_TOKEN


def tokens_of(messages: tuple[Message, ...]) -> int:
    """An estimate of a provider's count, by content and independent of formatting."""
    size = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            size += MESSAGE_CHARACTERS + len(content)
        else:
            size += MESSAGE_CHARACTERS + len(message.text())
            size += sum(IMAGE_CHARACTERS if isinstance(part, Image) else AUDIO_CHARACTERS for part in message.media())
        if message.tool_calls is not None:
            size += sum(len(call.function.name) + len(call.function.arguments) for call in message.tool_calls)
    return size // CHARACTERS_PER_TOKEN
