"""The parameters of a single call in a request to Anthropic's Messages API.

Only combinations of settings that the model is known to accept are sent. If the model does not accept a setting that
would change its answer, the call is refused with a one-sentence error. All functions are pure.
"""

import hashlib
from collections.abc import Callable
from typing import Literal

import msgspec

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.call_parameters import (
    caller_identifier,
    invalid,
    nearest_effort,
    parse_response_format,
    parse_tool_choice,
    refuse_extras,
    refuse_fields,
)
from tidegate.values import Call

# The smallest thinking budget that the API accepts, in tokens.
LEAST_BUDGET = 1024
# The largest budget is the one beyond which the provider advises against a single streaming connection.
BUDGETS = {"minimal": LEAST_BUDGET, "low": 4_096, "medium": 10_240, "high": 20_480, "xhigh": 26_624, "max": 32_000}
# Longer user ids are refused.
_USER_CHARACTERS = 256
# OpenAI's scale goes up to 2.
_MOST_TEMPERATURE = 1.0
_OFF = ("off", "none")
# OpenAI's service tiers. The others have no equivalent and do not change the answer.
_TIERS = {"auto": "auto", "default": "standard_only"}

_encode = msgspec.json.Encoder().encode


class _Thinking(msgspec.Struct, omit_defaults=True):
    type: str
    budget_tokens: int = 0


class _Format(msgspec.Struct):
    schema: msgspec.Raw
    type: str = "json_schema"


class _OutputConfig(msgspec.Struct, omit_defaults=True):
    effort: str | None = None
    format: _Format | None = None


class _Choice(msgspec.Struct, omit_defaults=True):
    type: str
    name: str = ""
    disable_parallel_tool_use: bool = False


class _Metadata(msgspec.Struct):
    user_id: str


class _Parameters(msgspec.Struct, omit_defaults=True):
    """The parameters of a call, in the order in which they are sent."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: tuple[str, ...] = ()
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    tool_choice: _Choice | None = None
    service_tier: str | None = None
    top_k: msgspec.Raw | None = None
    metadata: _Metadata | None = None


Sampling = Literal["fixed", "one", "free"]
"""The sampling parameters that a caller may set: neither temperature nor `top_p`, one of them, or both."""


def sampling_of(model: str, facts: Facts) -> Sampling:
    """Returns which sampling parameters the model accepts. Claude models accept either temperature or `top_p`; since
    4.7, they accept neither. The newest API version accepts neither for any model. A Claude model that is not in the
    catalogue is treated as a new one. Other vendors' models accept both."""
    if "claude" not in model.lower():
        return "free"
    return "one" if facts.known and facts.thinking != "adaptive" else "fixed"


def parameters(call: Call, facts: Facts, *, sampling: Sampling, tools: bool, thoughtless: Callable[[], bool]) -> bytes:
    """Returns the members of the request that depend on the call, as JSON without braces. `tools` is true if the
    request has tools. `thoughtless` returns True if the model is in the middle of a step that started without thinking;
    a model with a thinking budget must then also finish the step without thinking."""
    most = call.max_tokens or facts.output
    if facts.known:
        most = min(most, facts.output)
    refuse_fields(call, "seed", "frequency_penalty", "presence_penalty", "logit_bias")
    top_k = refuse_extras(call, "top_k").get("top_k")
    if call.top_logprobs is not None:
        raise invalid("This model returns no log probabilities; leave out `logprobs`.", "logprobs")
    if call.verbosity not in (None, "medium"):
        raise invalid(
            "This model does not support `verbosity`; leave it out, or ask for the length in words.",
            "verbosity",
        )
    choice = _choice(call.tool_choice) if tools and call.tool_choice else None
    if tools and call.parallel_tool_calls is False:
        choice = _alone(choice or _Choice("auto"))
    forced = choice is not None and choice.type in ("any", "tool")
    thinking, effort = _reasoning(call.reasoning, facts, most)
    if thinking is not None and thinking.type == "enabled" and (forced or thoughtless()):
        thinking = None
    if thinking is not None and thinking.type != "disabled":
        sampling = "fixed"
    if sampling == "fixed" and top_k is not None:
        raise invalid("This model does not support `top_k`; leave it out, or choose another model.", "top_k")
    temperature, top_p = _sampling(call, sampling)
    shape = _shape(call.response_format) if call.response_format else None
    encoded = _encode(
        _Parameters(
            max_tokens=most,
            temperature=temperature,
            top_p=top_p,
            stop_sequences=tuple(stop for stop in call.stop if stop.strip()),
            thinking=thinking,
            output_config=_OutputConfig(effort, shape) if effort or shape else None,
            tool_choice=choice,
            service_tier=_TIERS.get(call.service_tier or ""),
            top_k=top_k,
            metadata=_Metadata(_user(user)) if (user := caller_identifier(call)) else None,
        )
    )
    return encoded[1:-1]


def _sampling(call: Call, sampling: Sampling) -> tuple[float | None, float | None]:
    """Returns the temperature and `top_p` to send. A default value is omitted if the model would refuse the field."""
    temperature, top_p = call.temperature, call.top_p
    if sampling == "fixed":
        refuse_fields(call, "temperature", "top_p")
        return None, None
    if temperature is not None and temperature > _MOST_TEMPERATURE:
        raise invalid("This model accepts a `temperature` of at most 1; send a lower one.", "temperature")
    if sampling == "free" or temperature is None or top_p is None:
        return temperature, top_p
    if 1 not in (temperature, top_p):
        raise invalid("This model accepts `temperature` or `top_p`, but not both; leave out one of them.", "top_p")
    return (temperature, None) if top_p == 1 else (None, top_p)


def _reasoning(reasoning: str | None, facts: Facts, most: int) -> tuple[_Thinking | None, str | None]:
    """Returns the thinking parameter and the model's name for the effort."""
    if reasoning is None or facts.thinking == "none":
        return None, None
    if facts.thinking == "budget":
        return _budget(reasoning, most), None
    if reasoning in _OFF and facts.thinking_unknown:
        return None, None
    level = nearest_effort(reasoning, facts.efforts)
    off = (level or reasoning) in _OFF
    if facts.thinking == "effort":
        return None, None if off else level
    # If the model has no effort "off", its thinking cannot be switched off, so use the lowest effort.
    return _Thinking("disabled" if off else "adaptive"), None if off else level


def _budget(reasoning: str, most: int) -> _Thinking | None:
    """Returns the thinking parameter for a model that thinks only with a token budget."""
    if reasoning in _OFF:
        return None
    budget = BUDGETS.get(reasoning)
    if budget is None:
        known = f"use one of off, {', '.join(BUDGETS)}"
        raise invalid(f"The reasoning effort {reasoning!r} is unknown; {known}.", "reasoning_effort")
    # Thinking counts towards the answer's limit; half of the limit is left for the text.
    tokens = min(budget, most // 2)
    return _Thinking("enabled", tokens) if tokens >= LEAST_BUDGET else None


def _alone(choice: _Choice) -> _Choice:
    """Returns the same choice, limited to one call at a time."""
    return choice if choice.type == "none" else _Choice(choice.type, choice.name, disable_parallel_tool_use=True)


def _choice(tool_choice: bytes) -> _Choice:
    choice = parse_tool_choice(tool_choice)
    if choice.kind == "allowed":
        raise invalid("This model cannot be limited to some of its tools; send fewer `tools` instead.", "tool_choice")
    if choice.kind == "function":
        return _Choice("tool", choice.names[0])
    return _Choice("any" if choice.kind == "required" else choice.kind)


def _shape(response_format: bytes) -> _Format | None:
    """Returns the schema of the response format, if it has one. The API accepts only schemas; JSON of any shape is
    requested in the prompt instead (`wants_json`)."""
    shape = parse_response_format(response_format)
    return _Format(shape.schema) if shape.kind == "json_schema" else None


def blank_stops(stops: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the stop sequences that contain only white space, which the API refuses."""
    return tuple(stop for stop in stops if not stop.strip())


def wants_json(call: Call) -> bool:
    return bool(call.response_format) and parse_response_format(call.response_format).kind == "json_object"


def _user(user: str) -> str:
    return user if len(user) <= _USER_CHARACTERS else hashlib.sha256(user.encode()).hexdigest()
