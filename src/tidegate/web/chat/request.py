"""OpenAI's chat request: its fields, its messages, and their translation into our values.

Every field that is honoured is checked, and a refusal names the path of the wrong one. Fields that cannot be honoured
and would change the answer are refused; unknown fields are ignored. Messages are taken in every shape that OpenAI
takes; in the conversation that comes out, every tool result has its call and every call its result.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tidegate.errors import Refused, TooLarge
from tidegate.values import Attachment, Call, CallerTools, Frozen, Message, ToolCall, ToolDefinition
from tidegate.web.app.request_body import refuse
from tidegate.web.chat.content_parts import MEDIA_PARTS, ContentPart, brought_by, text_of_file

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
"""OpenAI's own bounds, which its clients keep to."""

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
"""Fields that only some servers of OpenAI's API know, with their types. They are passed on where they may be known.
Where they are not, those that change the answer are refused (`refuse_extras`)."""

SYSTEM_ALONE = "The caller sent a system message and nothing else."
"""Stands for the user's message in a named session, whose system message is part of its prompt."""

MOST_MEDIA = 50
"""Pictures, sounds and documents of one request: most are looked at by a process of its own."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tokens = Annotated[int, Meta(ge=-1, le=100_000_000)]
"""-1 is how some clients say that there is no limit."""
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
    name: Annotated[str, Meta(pattern=_TOOL_NAME.pattern.join("^$"))]
    description: str | None = None
    parameters: Raw = msgspec.field(default_factory=Raw)
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


def is_given(raw: Raw) -> bool:
    return bool(raw) and _ABSENT.fullmatch(raw) is None


def brings_tools(request: ChatRequest) -> bool:
    return is_given(request.tools) or is_given(request.functions)


def other_names(request: ChatRequest) -> dict[str, str]:
    """The names that this request has for fields which `Call` knows by another."""
    names: dict[str, str] = {}
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if is_given(request.functions):
        names.update(tools="functions", tool_choice="function_call")
    return names


def call_of(request: ChatRequest, mode: str, extras: bytes = b"") -> Call:
    """The parameters of this one call. What cannot be honoured is refused, not left out. `mode` is the agent's setting
    `caller_tools`; `extras` is what `extras_of` found."""
    if request.n is not None and request.n != 1:
        raise Refused(f"`n` is {request.n}: one answer is given per request; send 1 or leave it out.", param="n")
    if is_given(request.audio) or "audio" in (request.modalities or ()):
        param = "audio" if is_given(request.audio) else "modalities"
        raise Refused("Answers are text; leave out `audio` and the modality of that name.", param=param)
    if is_given(request.web_search_options):
        raise Refused(
            "An agent searches the web with tools of its own; leave `web_search_options` out.",
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
        parallel_tool_calls=request.parallel_tool_calls,
        service_tier=request.service_tier,
        verbosity=request.verbosity,
        prompt_cache_key=request.prompt_cache_key,
        extras=extras,
        caller_tools=tools,
        tool_choice=b"" if tools is None and brings_tools(request) else _choice(request),
        response_format=_response_format(request),
    )


def _reasoning(effort: str | None) -> str | None:
    if effort is None:
        return None
    if effort not in REASONING:
        raise Refused(f"`reasoning_effort` must be one of {', '.join(REASONING)}.", param="reasoning_effort")
    return REASONING[effort]


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise Refused(f"`stop` has {len(stops)} texts; at most {MAX_STOPS} are taken.", param="stop")
    if "" in stops:
        raise Refused("`stop` must not be empty.", param="stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise Refused(f"A text of `stop` is longer than {MAX_STOP_CHARACTERS} characters.", param="stop")
    return stops


def _most_tokens(request: ChatRequest) -> int | None:
    """The newer name of the limit goes first."""
    for param in ("max_completion_tokens", "max_tokens"):
        given: int | None = getattr(request, param)
        if given == 0:
            raise Refused(f"`{param}` must be at least 1, or -1 for no limit.", param=param)
        if given is not None:
            return None if given < 0 else given
    return None


def _biases(given: dict[str, float] | None) -> dict[str, float] | None:
    if given is not None and len(given) > MAX_BIASES:
        raise Refused(f"`logit_bias` has {len(given)} entries; at most {MAX_BIASES} are taken.", param="logit_bias")
    return given or None


def _metadata(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    """As texts, which is what providers take: other values as JSON."""
    if not metadata:
        return None
    if len(metadata) > MAX_METADATA:
        raise Refused(f"`metadata` has {len(metadata)} entries; at most {MAX_METADATA} are taken.", param="metadata")
    texts = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in metadata.items()
    }
    for key, text in texts.items():
        if len(text) > MAX_METADATA_CHARACTERS:
            raise Refused(
                f"`metadata.{key}` is longer than {MAX_METADATA_CHARACTERS} characters.", param=f"metadata.{key}"
            )
    return texts


def extras_of(body: bytes) -> bytes:
    """The fields of a request that only some providers know, a JSON object; empty without any. A null is no value."""
    found = {name: value for name, value in _decode_fields(body).items() if name in EXTRAS and bytes(value) != b"null"}
    for name, value in found.items():
        _checked(name, value, EXTRAS[name])
    return msgspec.json.encode(found) if found else b""


# -- tools and the shape of the answer --------------------------------------------------------------------------------


def caller_tools(request: ChatRequest, mode: str) -> CallerTools | None:
    """The tools that the request brings, as far as the agent takes any (`caller_tools` of its settings is `mode`)."""
    param = "functions" if is_given(request.functions) else "tools"
    raw = request.functions if param == "functions" else request.tools
    if not is_given(raw):
        return None
    if mode == "refuse":
        raise Refused(f"This agent takes no `{param}` from callers (its setting caller_tools is refuse).", param=param)
    if param == "functions":
        functions = _checked(param, raw, list[_Function])
    else:
        functions = [tool.function for tool in _checked(param, raw, list[_Tool])]
    _unique(param, (function.name for function in functions))
    if mode == "ignore":
        return None
    definitions = tuple(_definition(function, param) for function in functions)
    only = mode == "only"
    digest = hashlib.blake2b(msgspec.json.encode(definitions), digest_size=16, person=b"only" if only else b"merge")
    return CallerTools(digest=digest.digest(), definitions=definitions, only=only)


def _definition(function: "_Function", param: str) -> ToolDefinition:
    given = bytes(function.parameters).strip()
    definition = ToolDefinition(
        name=function.name, description=function.description or "", strict=bool(function.strict)
    )
    if given in (b"", b"null", b"{}"):
        return definition
    if not given.startswith(b"{"):
        raise Refused(f"The parameters of the tool {function.name!r} must be an object.", param=param)
    return msgspec.structs.replace(definition, parameters=msgspec.Raw(given))  # a copy of its own, not the whole body


def _choice(request: ChatRequest) -> bytes:
    """Without tools of the caller's it is about the agent's own."""
    if is_given(request.functions):
        return _old_choice(request.function_call)
    return _tool_choice(request.tool_choice) if is_given(request.tool_choice) else b""


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
            raise Refused(f"`{param}` gives the name {name!r} twice.", param=param)
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
    if not is_given(raw):
        return b""
    choice = _checked("function_call", raw, Literal["none", "auto"] | _ChosenFunction)
    if isinstance(choice, str):
        return msgspec.json.encode(choice)
    return msgspec.json.encode({"type": "function", "function": {"name": choice.name}})


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


def _response_format(request: ChatRequest) -> bytes:
    if not is_given(request.response_format):
        return b""
    given = _checked("response_format", request.response_format, _Format)
    if given.type == "text":
        return b""
    if given.type == "json_schema" and given.json_schema is None:
        raise Refused("`response_format.json_schema` is missing.", param="response_format.json_schema")
    return bytes(request.response_format)


# -- messages ----------------------------------------------------------------------------------------------------------


class ParsedMessages(Frozen, frozen=True):
    """What a request's messages mean: those that are taken in, the extra prompt, and what users' messages bring."""

    messages: tuple[Message, ...]
    extra_prompt: str | None
    brought: tuple[Attachment, ...] = ()


def new_message(messages: Sequence[ChatMessage], limit: int) -> ParsedMessages:
    """For a named session, whose history is ours: what follows the last assistant message is new. Results of the tools
    that the caller runs come first, then what the user says becomes one message."""
    last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1)
    prompts: list[str] = []
    results: list[Message] = []
    said: list[int] = []
    brought: list[Attachment] = []
    for index, message in enumerate(messages):
        if message.role in ("system", "developer"):
            prompts.append(_text(message, index))
        elif index > last and message.role == "user":
            said.append(index)
        elif index > last:
            where = f"messages[{index}]"
            if said:
                raise Refused(
                    f"`{where}` is a tool's result after a user message; send results first.", param=f"{where}.role"
                )
            id, name = message.tool_call_id or "", message.name or ""
            missing = "tool_call_id" if message.role == "tool" else "name"
            if not id and (message.role == "tool" or not name):
                raise Refused(f"`{where}.{missing}` is missing.", param=f"{where}.{missing}")
            text, more = _content(message, index, len(results), limit)
            results.append(Message(role="tool", text=text, call_id=id, name="" if id else name))
            brought += more
    texts: list[str] = []
    for index in said:
        text, more = _said(messages[index], index, len(results), limit)
        texts.append(text)
        brought += more
    if last == len(messages) - 1:
        raise Refused(
            f"`messages[{last}]` is the assistant's: a named session has no answer to be continued; send a user "
            "message, or leave out X-Session-Id.",
            param=f"messages[{last}].role",
        )
    found = results
    if not texts and not results:
        found = [Message(role="user", aside=SYSTEM_ALONE)]
    elif texts:
        text = "\n\n".join(filter(str.strip, texts))
        _bound(text, len(messages) - 1, limit)
        names = {messages[index].name or "" for index in said}
        found = [*results, Message(role="user", text=text, name=names.pop() if len(names) == 1 else "")]
    return _understood(tuple(found), "\n\n".join(filter(None, prompts)), brought)


def conversation(messages: Sequence[ChatMessage], limit: int) -> ParsedMessages:
    """For an ephemeral session: the whole conversation."""
    prompts: list[str] = []
    brought: list[Attachment] = []
    found: list[Message] = []
    open_calls: dict[str, str] = {}
    taken: set[str] = set()
    for index, message in enumerate(messages):
        if message.role in ("tool", "function"):
            text, more = _content(message, index, len(found), limit)
            found.append(Message(role="tool", text=text, call_id=_call_id(message, index, open_calls)))
            brought += more
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
            text, more = _said(message, index, len(found), limit)
            found.append(Message(role="user", text=text, name=message.name or ""))
            brought += more
        else:
            found.append(_assistant(message, index, open_calls, taken))
    if open_calls:
        raise _unanswered(len(messages), open_calls)
    if not found:  # a system message alone is what there is to answer
        found.append(Message(role="system", text=prompts.pop()) if prompts else Message(role="user"))
    return _understood(tuple(found), "\n\n".join(prompts), brought)


def _understood(messages: tuple[Message, ...], prompt: str, brought: list[Attachment]) -> ParsedMessages:
    if len(brought) > MOST_MEDIA:
        raise TooLarge(
            f"`messages` bring {len(brought)} pictures, sounds and documents; at most {MOST_MEDIA} are taken at once.",
            limit="pictures, sounds and documents of a request",
            value=MOST_MEDIA,
            param="messages",
        )
    return ParsedMessages(messages=messages, extra_prompt=prompt or None, brought=tuple(brought))


def _assistant(message: ChatMessage, index: int, open_calls: dict[str, str], taken: set[str]) -> Message:
    """Calls are told apart by the message they are of, as OpenAI does, so that an id may come again; with other
    providers it may not, and is given an end. `open_calls` says what each of them is called then."""
    text = _text(message, index) or message.refusal or ""
    calls = [
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in message.tool_calls or ()
    ]
    if message.function_call is not None:
        old = message.function_call
        calls.append(ToolCall(id=f"call_{index}", name=old.name, arguments=old.arguments))
    if len({call.id for call in calls}) != len(calls):
        raise Refused(f"`messages[{index}].tool_calls` has an id twice.", param=f"messages[{index}].tool_calls")
    named: list[ToolCall] = []
    for call in calls:
        own = call.id
        while own in taken:
            own = f"{own}_{index}"
        taken.add(own)
        open_calls[call.id] = own
        named.append(msgspec.structs.replace(call, id=own))
    finish = "tool_calls" if calls else "stop"
    return Message(role="assistant", text=text, calls=tuple(named), name=message.name or "", finish=finish)


def _call_id(message: ChatMessage, index: int, open_calls: dict[str, str]) -> str:
    """The call that a tool's result answers, by the name that it has in our conversation."""
    call_id = message.tool_call_id
    if message.role == "function" and call_id is None and open_calls:
        call_id = next(iter(open_calls))
    if call_id is None or call_id not in open_calls:
        raise Refused(
            f"`messages[{index}].tool_call_id` names no tool call of the assistant message before it.",
            param=f"messages[{index}].tool_call_id",
        )
    return open_calls.pop(call_id)


def _unanswered(index: int, open_calls: dict[str, str]) -> Refused:
    return Refused(
        f"The tool call {next(iter(open_calls))[:100]!r} before `messages[{index}]` has no result.",
        param=f"messages[{index - 1}]",
    )


def _said(message: ChatMessage, index: int, number: int, limit: int) -> tuple[str, list[Attachment]]:
    """What a user's message says, and what it brings; it will be the one of this number."""
    if message.content is None:
        raise Refused(f"`messages[{index}].content` is missing.", param=f"messages[{index}].content")
    return _content(message, index, number, limit)


def _content(message: ChatMessage, index: int, number: int, limit: int) -> tuple[str, list[Attachment]]:
    """The text of a user's message or a tool's result, and the media that it brings."""
    brought: list[Attachment] = []
    for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type in MEDIA_PARTS and (media := brought_by(part, f"messages[{index}].content[{place}]", number)):
            brought.append(media)
    text = _text(message, index)
    _bound(text, index, limit)
    return text, brought


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
                f"`{where}` is of type {part.type[:100]!r}; only parts of type '{known}' are taken here.",
                param=f"{where}.type",
            )
        elif part.text is None:
            where = f"messages[{index}].content[{place}].text"
            raise Refused(f"`{where}` is missing.", param=where)
        else:
            pieces.append(part.text)
    return "".join(pieces)


def _bound(text: str, index: int, limit: int) -> None:
    """`limit` is limits.message_bytes, everywhere in this module."""
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise TooLarge(
            f"`messages[{index}].content` is larger than limits.message_bytes ({limit} bytes).",
            limit="limits.message_bytes",
            value=limit,
            param=f"messages[{index}].content",
        )
