"""OpenAI's chat request: its fields, its messages, and their conversion to the gateway's values.

Every supported field is validated, and an error names the path of the invalid one. Unsupported fields that would change
the answer are refused; unknown fields are ignored. Messages are accepted in every form that OpenAI accepts. In the
resulting conversation, every tool result has its call and every call its result.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tidegate.errors import Refused, TooLarge
from tidegate.values import Attachment, Call, CallerTools, Frozen, Message, ToolCall, ToolDefinition
from tidegate.web.app.http_request import refuse
from tidegate.web.chat.content_parts import MEDIA_PARTS, ContentPart, attachment_of, text_of_file

REASONING = {
    "none": "off",
    "off": "off",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 500
MAX_METADATA = 16
MAX_METADATA_CHARACTERS = 512
MAX_BIASES = 1024
"""Limits that OpenAI documents for these fields."""

EXTRAS: dict[str, Any] = {
    "cache_prompt": bool,
    "chat_template_kwargs": dict[str, Any],
    "enable_thinking": bool,
    "guided_choice": list[Any],
    "guided_grammar": str,
    "guided_json": dict[str, Any] | str,
    "guided_regex": str,
    "keep_alive": float | str,
    "min_p": float,
    "min_tokens": int,
    "mirostat": int,
    "mirostat_eta": float,
    "mirostat_tau": float,
    "num_ctx": int,
    "prediction": dict[str, Any],
    "prompt_cache_retention": str,
    "provider": dict[str, Any] | str,
    "repetition_penalty": float,
    "safety_identifier": str,
    "top_a": float,
    "top_k": int,
    "transforms": list[Any],
    "typical_p": float,
}
"""Fields that only some providers of OpenAI's API support, with their types. They are forwarded to providers that may
support them. For other providers, fields that change the answer are refused (`refuse_extras`)."""

SYSTEM_ALONE = "The caller sent a system message and nothing else."
"""Replaces the missing user message in a request to a named session that has only a system message. The system message
itself becomes part of the session's prompt."""

MOST_MEDIA = 50
"""The maximum number of pictures, audio files and documents in a request. Most of them are examined in a separate
process each."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tokens = Annotated[int, Meta(ge=-1, le=100_000_000)]
"""A limit in tokens. Some clients send -1 for no limit."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Label = Annotated[str, Meta(max_length=512)]

_ABSENT = re.compile(rb"null|\[\s*\]")
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class FunctionCall(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str


class ToolCallIn(msgspec.Struct):
    id: Annotated[str, Meta(min_length=1, max_length=256)]
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: Label | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """`POST /v1/chat/completions`. `model` names an agent."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    user: Label | int | None = None
    metadata: dict[Annotated[str, Meta(max_length=64)], Any] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[Annotated[str, Meta(max_length=32)], Annotated[float, Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Label | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prompt_cache_key: Label | None = None
    modalities: list[str] | None = None
    audio: Raw = msgspec.field(default_factory=Raw)
    web_search_options: Raw = msgspec.field(default_factory=Raw)
    tools: Raw = msgspec.field(default_factory=Raw)
    tool_choice: Raw = msgspec.field(default_factory=Raw)
    functions: Raw = msgspec.field(default_factory=Raw)
    function_call: Raw = msgspec.field(default_factory=Raw)
    response_format: Raw = msgspec.field(default_factory=Raw)


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Raw = msgspec.field(default_factory=Raw)
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


def is_present(raw: Raw) -> bool:
    return bool(raw) and _ABSENT.fullmatch(raw) is None


def has_tools(request: ChatRequest) -> bool:
    return is_present(request.tools) or is_present(request.functions)


def field_aliases(request: ChatRequest) -> dict[str, str]:
    """Returns the request's names for fields that have another name in `Call`."""
    names: dict[str, str] = {}
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if is_present(request.functions):
        names["tools"] = "functions"
        if request.parallel_tool_calls is None:
            names["parallel_tool_calls"] = "functions"
    if not is_present(request.tool_choice) and is_present(request.function_call):
        names["tool_choice"] = "function_call"
    return names


def parse_call(request: ChatRequest, mode: str, extras: bytes = b"") -> Call:
    """Parses the parameters of one call. Unsupported ones are refused, not dropped. `mode` is the agent's setting
    `caller_tools`; `extras` is the result of `parse_extras`."""
    if request.n is not None and request.n != 1:
        raise Refused(f"`n` is {request.n}; each request gets one answer: send 1 or leave it out.", param="n")
    if is_present(request.audio):
        raise Refused("Answers are text only; leave out `audio`.", param="audio")
    if any(modality != "text" for modality in request.modalities or ()):
        raise Refused("Answers are text only; the only supported modality is `text`.", param="modalities")
    if is_present(request.web_search_options):
        raise Refused(
            "Agents search the web with their own tools; leave out `web_search_options`.",
            param="web_search_options",
        )
    if request.top_logprobs and not request.logprobs:
        raise Refused("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    tools = caller_tools(request, mode)
    return Call(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=_most_tokens(request),
        reasoning=_reasoning(request.reasoning_effort),
        stop=_stops(request.stop),
        user=None if request.user is None else str(request.user),
        metadata=_metadata(request.metadata),
        seed=request.seed,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias=_biases(request.logit_bias),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        parallel_tool_calls=_parallel(request, tools),
        service_tier=request.service_tier,
        verbosity=request.verbosity,
        prompt_cache_key=request.prompt_cache_key,
        extras=extras,
        caller_tools=tools,
        tool_choice=b"" if tools is None and has_tools(request) else _choice(request),
        response_format=_response_format(request),
    )


def _parallel(request: ChatRequest, tools: CallerTools | None) -> bool | None:
    """Returns the setting for parallel calls. An answer to a request with the older `functions` has a single
    `function_call`, so the model is then limited to one call."""
    if request.parallel_tool_calls is None and tools is not None and is_present(request.functions):
        return False
    return request.parallel_tool_calls


def _reasoning(effort: str | None) -> str | None:
    if effort is None:
        return None
    if effort not in REASONING:
        raise Refused(f"`reasoning_effort` must be one of {', '.join(REASONING)}.", param="reasoning_effort")
    return REASONING[effort]


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise Refused(f"`stop` has {len(stops)} strings; the limit is {MAX_STOPS}.", param="stop")
    if "" in stops:
        raise Refused("`stop` must not be empty.", param="stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise Refused(f"A string in `stop` is longer than {MAX_STOP_CHARACTERS} characters.", param="stop")
    return stops


def _most_tokens(request: ChatRequest) -> int | None:
    """Returns the limit of the answer's tokens. If both names of the field are used, the newer one has priority."""
    for param in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(request, param)
        if value == 0:
            raise Refused(f"`{param}` must be at least 1, or -1 for no limit.", param=param)
        if value is not None:
            return None if value < 0 else value
    return None


def _biases(biases: dict[str, float] | None) -> dict[str, float] | None:
    if biases is not None and len(biases) > MAX_BIASES:
        raise Refused(f"`logit_bias` has {len(biases)} entries; the limit is {MAX_BIASES}.", param="logit_bias")
    return biases or None


def _metadata(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    """Returns the metadata as strings, which providers require. Other values are encoded as JSON."""
    if not metadata:
        return None
    if len(metadata) > MAX_METADATA:
        raise Refused(f"`metadata` has {len(metadata)} entries; the limit is {MAX_METADATA}.", param="metadata")
    texts = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in metadata.items()
    }
    for key, text in texts.items():
        if len(text) > MAX_METADATA_CHARACTERS:
            raise Refused(
                f"`metadata.{key}` is longer than {MAX_METADATA_CHARACTERS} characters.", param=f"metadata.{key}"
            )
    return texts


def parse_extras(body: bytes) -> bytes:
    """Returns the fields of a request that only some providers support, as a JSON object. The object is empty if there
    are none; null counts as absent."""
    found = {name: value for name, value in _decode_fields(body).items() if name in EXTRAS and bytes(value) != b"null"}
    for name, value in found.items():
        _checked(name, value, EXTRAS[name])
    return msgspec.json.encode(found) if found else b""


# -- tools and the shape of the answer --------------------------------------------------------------------------------


def caller_tools(request: ChatRequest, mode: str) -> CallerTools | None:
    """Returns the tools in the request, if the agent accepts them. `mode` is the agent's setting `caller_tools`."""
    param = "functions" if is_present(request.functions) else "tools"
    raw = request.functions if param == "functions" else request.tools
    if not is_present(raw):
        return None
    if param == "functions" and is_present(request.tools):
        raise Refused("The request has both `tools` and `functions`; send only one of them.", param=param)
    if mode == "refuse":
        raise Refused(f"This agent does not accept `{param}` (its setting caller_tools is refuse).", param=param)
    if param == "functions":
        functions = _checked(param, raw, list[_Function])
    else:
        functions = [tool.function for tool in _checked(param, raw, list[_Tool])]
    for index, function in enumerate(functions):
        if _TOOL_NAME.fullmatch(function.name) is None:
            where = f"{param}[{index}].name" if param == "functions" else f"{param}[{index}].function.name"
            raise Refused(f"`{where}` must be a string that matches ^{_TOOL_NAME.pattern}$.", param=where)
    _unique(param, (function.name for function in functions))
    if mode == "ignore":
        return None
    definitions = tuple(_definition(function, param) for function in functions)
    only = mode == "only"
    digest = hashlib.blake2b(msgspec.json.encode(definitions), digest_size=16, person=b"only" if only else b"merge")
    return CallerTools(digest=digest.digest(), definitions=definitions, only=only)


def _definition(function: "_Function", param: str) -> ToolDefinition:
    parameters = bytes(function.parameters).strip()
    definition = ToolDefinition(
        name=function.name, description=function.description or "", strict=bool(function.strict)
    )
    if parameters in (b"", b"null", b"{}"):
        return definition
    if not parameters.startswith(b"{"):
        raise Refused(f"The parameters of the tool {function.name!r} must be an object.", param=param)
    return msgspec.structs.replace(definition, parameters=msgspec.Raw(parameters))  # a copy: it outlives the body


def _choice(request: ChatRequest) -> bytes:
    """Returns the tool choice, from the newer or the older field. In a request without tools it applies to the agent's
    own tools."""
    if is_present(request.tool_choice):
        return _tool_choice(request.tool_choice)
    return _old_choice(request.function_call) if is_present(request.function_call) else b""


def _checked(param: str, raw: Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise refuse(str(error), kind, root=param) from None
    except (ValueError, RecursionError):
        raise Refused(f"`{param}` is not valid JSON.", param=param, code="invalid_json") from None


def _unique(param: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Refused(f"`{param}` repeats the name {name!r}.", param=param)
        seen.add(name)


class _ChosenFunction(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: Literal["function"]
    function: _ChosenFunction


def _tool_choice(raw: Raw) -> bytes:
    _checked("tool_choice", raw, Literal["none", "auto", "required"] | _Choice)
    return bytes(raw)


def _old_choice(raw: Raw) -> bytes:
    choice = _checked("function_call", raw, Literal["none", "auto"] | _ChosenFunction)
    if isinstance(choice, str):
        return msgspec.json.encode(choice)
    return msgspec.json.encode({"type": "function", "function": {"name": choice.name}})


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


def _response_format(request: ChatRequest) -> bytes:
    if not is_present(request.response_format):
        return b""
    response_format = _checked("response_format", request.response_format, _Format)
    if response_format.type == "text":
        return b""
    if response_format.type == "json_schema" and response_format.json_schema is None:
        raise Refused("`response_format.json_schema` is missing.", param="response_format.json_schema")
    return bytes(request.response_format)


# -- messages ----------------------------------------------------------------------------------------------------------


class ParsedMessages(Frozen, frozen=True):
    """The result of parsing a request's messages: the messages to add, the extra prompt, and the attachments."""

    messages: tuple[Message, ...]
    extra_prompt: str | None
    attachments: tuple[Attachment, ...] = ()


def parse_new_messages(messages: Sequence[ChatMessage], limit: int) -> ParsedMessages:
    """Parses a request to a named session. The gateway already has the history, so only messages after the last
    assistant message are new. Results of the caller's tools come first; all user messages are joined into one."""
    last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1)
    prompts: list[str] = []
    results: list[Message] = []
    user_indexes: list[int] = []
    attachments: list[Attachment] = []
    for index, message in enumerate(messages):
        if message.role in ("system", "developer"):
            prompts.append(_text(message, index))
        elif index > last and message.role == "user":
            user_indexes.append(index)
        elif index > last:
            where = f"messages[{index}]"
            if user_indexes:
                raise Refused(
                    f"`{where}` is a tool result after a user message; send the results first.", param=f"{where}.role"
                )
            id, name = message.tool_call_id or "", message.name or ""
            missing = "tool_call_id" if message.role == "tool" else "name"
            if not id and (message.role == "tool" or not name):
                raise Refused(f"`{where}.{missing}` is missing.", param=f"{where}.{missing}")
            text, more = _content(message, index, len(results), limit)
            results.append(Message(role="tool", text=text, call_id=id, name="" if id else name))
            attachments += more
    texts: list[str] = []
    for index in user_indexes:
        text, more = _user_content(messages[index], index, len(results), limit)
        texts.append(text)
        attachments += more
    if last == len(messages) - 1:
        raise Refused(
            f"`messages[{last}]` is an assistant message. The answers of a named session cannot be continued; send a "
            "user message, or leave out X-Session-Id.",
            param=f"messages[{last}].role",
        )
    found = results
    if not texts and not results:
        found = [Message(role="user", aside=SYSTEM_ALONE)]
    elif texts:
        text = "\n\n".join(filter(str.strip, texts))
        _bound(text, len(messages) - 1, limit)
        names = {messages[index].name or "" for index in user_indexes}
        found = [*results, Message(role="user", text=text, name=names.pop() if len(names) == 1 else "")]
    return _parsed(tuple(found), "\n\n".join(filter(None, prompts)), attachments)


def parse_conversation(messages: Sequence[ChatMessage], limit: int) -> ParsedMessages:
    """Parses a request to an ephemeral session, which contains the complete conversation."""
    prompts: list[str] = []
    attachments: list[Attachment] = []
    found: list[Message] = []
    open_calls: dict[str, str] = {}
    used_ids: set[str] = set()
    for index, message in enumerate(messages):
        if message.role in ("tool", "function"):
            text, more = _content(message, index, len(found), limit)
            found.append(Message(role="tool", text=text, call_id=_call_id(message, index, open_calls)))
            attachments += more
            continue
        if open_calls:
            raise _unanswered(index, open_calls)
        if message.role in ("system", "developer"):
            text = _text(message, index)
            if not text.strip():
                continue
            if found:
                found.append(Message(role="system", text=text, name=message.name or ""))
            else:
                prompts.append(text)
        elif message.role == "user":
            text, more = _user_content(message, index, len(found), limit)
            found.append(Message(role="user", text=text, name=message.name or ""))
            attachments += more
        else:
            by_id = index + 1 < len(messages) and messages[index + 1].role == "tool"
            found.append(_assistant(message, index, open_calls, used_ids, results_by_id=by_id))
    if open_calls:
        raise _unanswered(len(messages), open_calls)
    if not found:  # a request with only a system message is answered to that message
        found.append(Message(role="system", text=prompts.pop()) if prompts else Message(role="user"))
    return _parsed(tuple(found), "\n\n".join(prompts), attachments)


def _parsed(messages: tuple[Message, ...], prompt: str, attachments: list[Attachment]) -> ParsedMessages:
    if len(attachments) > MOST_MEDIA:
        raise TooLarge(
            f"`messages` contain {len(attachments)} pictures, sounds and documents; the limit is {MOST_MEDIA}.",
            limit="pictures, sounds and documents of a request",
            value=MOST_MEDIA,
            param="messages",
        )
    return ParsedMessages(messages=messages, extra_prompt=prompt or None, attachments=tuple(attachments))


def _assistant(
    message: ChatMessage, index: int, open_calls: dict[str, str], used_ids: set[str], *, results_by_id: bool
) -> Message:
    """Parses an assistant message. OpenAI allows a call id to be reused in a later message. Other providers do not, so
    a repeated id gets a suffix, and `open_calls` maps each original id to its replacement. A message with both
    `tool_calls` and the older `function_call` has the call twice. The results that follow decide which of the two
    fields is used."""
    text = _text(message, index) or message.refusal or ""
    old = message.function_call
    listed = message.tool_calls if old is None or results_by_id else None
    calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in listed or ()]
    if old is not None and not calls:
        calls.append(ToolCall(id=f"call_{index}", name=old.name, arguments=old.arguments))
    if len({call.id for call in calls}) != len(calls):
        raise Refused(f"`messages[{index}].tool_calls` repeats an id.", param=f"messages[{index}].tool_calls")
    renamed: list[ToolCall] = []
    for call in calls:
        id = call.id
        while id in used_ids:
            id = f"{id}_{index}"
        used_ids.add(id)
        open_calls[call.id] = id
        renamed.append(msgspec.structs.replace(call, id=id))
    finish = "tool_calls" if calls else "stop"
    return Message(role="assistant", text=text, calls=tuple(renamed), name=message.name or "", finish=finish)


def _call_id(message: ChatMessage, index: int, open_calls: dict[str, str]) -> str:
    """Returns the id of the call that a tool result belongs to, as used in the resulting conversation."""
    call_id = message.tool_call_id
    if message.role == "function" and call_id is None and open_calls:
        call_id = next(iter(open_calls))
    if call_id is None or call_id not in open_calls:
        raise Refused(
            f"`messages[{index}].tool_call_id` does not match a tool call of the assistant message before it.",
            param=f"messages[{index}].tool_call_id",
        )
    return open_calls.pop(call_id)


def _unanswered(index: int, open_calls: dict[str, str]) -> Refused:
    return Refused(
        f"The tool call {next(iter(open_calls))[:100]!r} before `messages[{index}]` has no result.",
        param=f"messages[{index - 1}]",
    )


def _user_content(message: ChatMessage, index: int, number: int, limit: int) -> tuple[str, list[Attachment]]:
    """Returns the text and attachments of a user message. `number` is the position of the message among the parsed
    ones."""
    if message.content is None:
        raise Refused(f"`messages[{index}].content` is missing.", param=f"messages[{index}].content")
    return _content(message, index, number, limit)


def _content(message: ChatMessage, index: int, number: int, limit: int) -> tuple[str, list[Attachment]]:
    """Returns the text and attachments of a user message or a tool result."""
    attachments: list[Attachment] = []
    for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type in MEDIA_PARTS and (media := attachment_of(part, f"messages[{index}].content[{place}]", number)):
            attachments.append(media)
    text = _text(message, index)
    _bound(text, index, limit)
    return text, attachments


def _text(message: ChatMessage, index: int) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    pieces: list[str] = []
    media = MEDIA_PARTS if message.role in ("user", "tool") else ()
    for place, part in enumerate(content):
        if part.type == "refusal" and message.role == "assistant":
            pieces.append(part.refusal or "")
        elif part.type == "file" and part.type in media:
            text = text_of_file(part, f"messages[{index}].content[{place}]")
            pieces.append(f"\n{text}" if text and pieces else text)
        elif part.type in media:
            continue
        elif part.type != "text":
            where = f"messages[{index}].content[{place}]"
            known = "', '".join(("text", *media))
            raise Refused(
                f"`{where}` is of type {part.type[:100]!r}; only parts of type '{known}' are supported here.",
                param=f"{where}.type",
            )
        elif part.text is None:
            where = f"messages[{index}].content[{place}].text"
            raise Refused(f"`{where}` is missing.", param=where)
        else:
            pieces.append(part.text)
    return "".join(pieces)


def _bound(text: str, index: int, limit: int) -> None:
    """Refuse a text of more than `limit` bytes. Everywhere in this module, `limit` is limits.message_bytes."""
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise TooLarge(
            f"`messages[{index}].content` is larger than limits.message_bytes ({limit} bytes).",
            limit="limits.message_bytes",
            value=limit,
            param=f"messages[{index}].content",
        )
