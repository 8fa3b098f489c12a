"""OpenAI's chat request: its fields, and their conversion to a call's parameters.

Every supported field is validated, and errors name the path of the invalid one. Unsupported fields that would change
the answer are refused; unknown fields are ignored. The messages are parsed in `messages.py`.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tidegate.errors import Refused
from tidegate.values import Call, CallerTools, ToolDefinition
from tidegate.web.app.http_request import refuse
from tidegate.web.chat.messages import ChatMessage, Label

REASONING = {
    "none": "off",
    "off": "off",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 500
MAX_METADATA = 16
MAX_METADATA_CHARACTERS = 512
MAX_BIASES = 1024
"""OpenAI's documented limits for these fields."""

EXTRAS: dict[str, Any] = {
    "allowed_token_ids": list[int],
    "bad_words": list[str],
    "cache_prompt": bool,
    "chat_template_kwargs": dict[str, Any],
    "dry_multiplier": float,
    "enable_thinking": bool,
    "grammar": str,
    "guided_choice": list[Any],
    "guided_grammar": str,
    "guided_json": dict[str, Any] | str,
    "guided_regex": str,
    "ignore_eos": bool,
    "include_reasoning": bool,
    "include_stop_str_in_output": bool,
    "json_schema": dict[str, Any],
    "keep_alive": float | str,
    "length_penalty": float,
    "min_p": float,
    "min_tokens": int,
    "mirostat": int,
    "mirostat_eta": float,
    "mirostat_tau": float,
    "models": list[str],
    "num_ctx": int,
    "prediction": dict[str, Any],
    "prompt_cache_options": dict[str, Any],
    "prompt_cache_retention": str,
    "provider": dict[str, Any] | str,
    "random_seed": int,
    "reasoning": dict[str, Any],
    "repeat_last_n": int,
    "repeat_penalty": float,
    "repetition_penalty": float,
    "safe_prompt": bool,
    "safety_identifier": str,
    "skip_special_tokens": bool,
    "stop_token_ids": list[int],
    "structured_outputs": dict[str, Any],
    "thinking": dict[str, Any],
    "top_a": float,
    "top_k": int,
    "transforms": list[Any],
    "typical_p": float,
    "xtc_probability": float,
    "xtc_threshold": float,
}
"""Fields supported only by some providers of OpenAI's API, with their types. The fields are forwarded to providers that
may support them. For other providers, fields that change the answer are refused (`refuse_extras`)."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tokens = Annotated[int, Meta(ge=-1, le=100_000_000)]
"""A limit in tokens. Some clients send -1 to mean no limit."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[int, Meta(ge=-100, le=100)] | Annotated[float, Meta(ge=-100, le=100)]
"""Whole numbers stay whole, since some servers accept nothing else."""

_ABSENT = re.compile(rb"null|\[\s*\]")
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


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
    logit_bias: dict[Annotated[str, Meta(max_length=32)], Bias] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Label | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prompt_cache_key: Label | None = None
    modalities: list[str] | None = None
    moderation: Raw = msgspec.field(default_factory=Raw)
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
    """Returns the request's names for fields that have a different name in `Call`."""
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
    """Parses a call's parameters. Unsupported ones are refused, not dropped. `mode` is the agent's setting
    `caller_tools`; `extras` is the result of `parse_extras`."""
    if request.n is not None and request.n != 1:
        raise Refused(f"`n` is {request.n}; each request gets one answer: send 1 or leave it out.", param="n")
    if is_present(request.audio):
        raise Refused("Answers are text only; leave out `audio`.", param="audio")
    if any(modality != "text" for modality in request.modalities or ()):
        raise Refused('Answers are text only; set `modalities` to `["text"]` or leave it out.', param="modalities")
    if is_present(request.web_search_options):
        raise Refused(
            "Agents search the web with their own tools; leave out `web_search_options`.",
            param="web_search_options",
        )
    if is_present(request.moderation):
        raise Refused("Answers have no moderation results; leave out `moderation`.", param="moderation")
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
    """Returns the limit on the answer's tokens. If both names of the field are used, the newer one has priority."""
    for param in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(request, param)
        if value == 0:
            raise Refused(f"`{param}` must be at least 1, or -1 for no limit.", param=param)
        if value is not None:
            return None if value < 0 else value
    return None


def _biases(biases: dict[str, int | float] | None) -> dict[str, int | float] | None:
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
    """Returns the request's fields that only some providers support, as a JSON object. The object is empty if there are
    none; null counts as absent."""
    found = {name: value for name, value in _decode_fields(body).items() if name in EXTRAS and bytes(value) != b"null"}
    for name, value in found.items():
        _checked(name, value, EXTRAS[name])
    return msgspec.json.encode(found) if found else b""


# -- tools and the shape of the answer --------------------------------------------------------------------------------


def caller_tools(request: ChatRequest, mode: str) -> CallerTools | None:
    """Returns the tools in the request if the agent accepts them. `mode` is the agent's setting `caller_tools`."""
    param = "functions" if is_present(request.functions) else "tools"
    raw = request.functions if param == "functions" else request.tools
    if not is_present(raw):
        return None
    if param == "functions" and is_present(request.tools):
        raise Refused("The request has both `tools` and `functions`; send only one of them.", param=param)
    if mode == "refuse":
        raise Refused(f"This agent does not accept `{param}` (its caller_tools setting is refuse).", param=param)
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
    # Clients that collect their tools in a set send the same ones in any order.
    unordered = msgspec.json.encode(sorted(definitions, key=lambda definition: definition.name))
    digest = hashlib.blake2b(unordered, digest_size=16, person=b"only" if only else b"merge")
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
    return msgspec.structs.replace(definition, parameters=msgspec.Raw(parameters))  # a copy, since it outlives the body


def _choice(request: ChatRequest) -> bytes:
    """Returns the tool choice, from the newer or the older field. In a request without tools, it applies to the agent's
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


class _Choice(msgspec.Struct, tag_field="type", tag="function"):
    function: _ChosenFunction


class _Allowed(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Choice], Meta(min_length=1)]


class _AllowedTools(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    allowed_tools: _Allowed


def _tool_choice(raw: Raw) -> bytes:
    _checked("tool_choice", raw, Literal["none", "auto", "required"] | _Choice | _AllowedTools)
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
