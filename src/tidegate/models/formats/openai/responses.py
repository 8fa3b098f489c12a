"""Requests to OpenAI's Responses API: the format, and its items, prefix and request body as bytes.

Equal values are encoded as equal bytes, and a conversation's request only grows at its end. The provider stores nothing
(`store` is off): a model's reasoning is sent back with every request, encrypted and verbatim, before the text and calls
that resulted from it. Tool arguments and schemas are sent verbatim. Nothing is stored per conversation.

The prompt is sent as the first input item instead of in the field `instructions`: either would be the start of the
cached prefix, but each answer would repeat `instructions` three times, and some compatible servers refuse the field.
Except for reasoning, items are sent without the provider's ids, which are useless because the provider stores nothing.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats import request_text
from tidegate.models.formats.call_names import call_id, call_name
from tidegate.models.formats.call_parameters import (
    caller_identifier,
    invalid,
    parse_response_format,
    parse_tool_choice,
    refuse_extras,
    refuse_fields,
    requested_effort,
)
from tidegate.models.formats.openai.responses_answer import API, ResponsesAnswer, ReturnedItem
from tidegate.models.interface import EncodedPrefix
from tidegate.values import PDF, Call, Media, Message, Prefix, ToolCall

CALL_ID_CHARACTERS = 64
"""Maximum length of a call id accepted by the service, in characters. Other models' ids may be longer."""

IDENTIFIER_CHARACTERS = 128
"""The service's documented limit for `safety_identifier`, in characters."""

_SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", PDF})


class _Text(msgspec.Struct):
    text: str
    type: Literal["input_text"] = "input_text"


class _Image(msgspec.Struct):
    image_url: msgspec.Raw
    detail: str = "auto"
    type: Literal["input_image"] = "input_image"


class _File(msgspec.Struct):
    filename: str
    file_data: msgspec.Raw
    type: Literal["input_file"] = "input_file"


_Part = _Text | _Image | _File


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part]
    phase: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["message"] = "message"


class _FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    type: Literal["function_call"] = "function_call"


class _Output(msgspec.Struct):
    call_id: str
    output: str | list[_Part]
    type: Literal["function_call_output"] = "function_call_output"


class _Tool(msgspec.Struct):
    name: str
    description: str
    parameters: msgspec.Raw
    strict: bool = False
    type: Literal["function"] = "function"


class _ChosenFunction(msgspec.Struct):
    name: str
    type: Literal["function"] = "function"


class _AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_ChosenFunction]
    type: Literal["allowed_tools"] = "allowed_tools"


class _Plain(msgspec.Struct):
    type: str


class _Schema(msgspec.Struct):
    name: str
    description: str
    schema: msgspec.Raw
    strict: bool
    type: Literal["json_schema"] = "json_schema"


class _Effort(msgspec.Struct):
    effort: str


class _Parameters(msgspec.Struct, omit_defaults=True):
    """The parameters of a call, in the order in which they are sent."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: _Effort | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: msgspec.Raw | None = None
    prompt_cache_options: msgspec.Raw | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None


_NO_CALL = Call()
_THOUGHTS = b',"include":["reasoning.encrypted_content"]'
"""Requests encrypted reasoning, so that it can be sent back. Models that cannot think refuse this field."""
_decode_item = msgspec.json.Decoder(ReturnedItem).decode


class ResponsesWire:
    version = 2001
    continues_answers = True

    def __init__(self, model: str, facts: Facts) -> None:
        self._model = model
        self._facts = facts
        self._encode = msgspec.json.Encoder().encode
        opening = b'{"model":%b,"stream":true,"store":false' % self._encode(model)
        if facts.thinking != "none" and not facts.thinking_unknown:
            opening += _THOUGHTS
        self._opening = opening

    def unsent_stops(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        return stops

    def takes(self, media_type: str) -> bool:
        """True if media of this type is sent as data. Audio is not, because messages in this format cannot contain
        it."""
        return media_type in _SHOWN and self._facts.takes(media_type)

    def encode(self, message: Message) -> bytes:
        if message.role == "assistant":
            return self._encode_answer(message)
        if message.aside or message.media:
            parts: list[_Part] = [_Text(message.text)] if message.text else []
            if message.aside:
                parts.append(_Text(request_text.aside(message.aside)))
            parts += self._media(message.media)
            return self._encode(_Message(message.role, parts))
        return self._encode(_Message(message.role, message.text))

    def encode_results(self, results: Sequence[Message]) -> bytes:
        return b",".join([self._encode(_Output(_id(result.call_id), self._output(result))) for result in results])

    def encode_prefix(self, prefix: Prefix) -> EncodedPrefix:
        system = self._encode(_Message("system", prefix.prompt)) if prefix.prompt else b""
        tools = [_Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in prefix.offered]
        return EncodedPrefix(system=system, tools=self._encode(tools) if tools else b"")

    def body(self, prefix: EncodedPrefix, history: Sequence[bytes], call: Call) -> list[bytes]:
        pieces = [self._opening]
        tools = prefix.tools
        if call is not _NO_CALL and call != _NO_CALL:
            pieces.append(self._parameters(call))
            if tools and call.tool_choice:
                pieces += (b',"tool_choice":', self._encode(_choice(call.tool_choice)))
            if tools and call.parallel_tool_calls is not None:
                pieces += (b',"parallel_tool_calls":', self._encode(call.parallel_tool_calls))
        key = self._encode(call.prompt_cache_key) if call.prompt_cache_key else b'"%b"' % _cache_key(prefix)
        pieces += (b',"prompt_cache_key":', key)
        if tools:
            pieces += (b',"tools":', tools)
        return pieces + request_text.message_list(b',"input":[', prefix.system, history)

    def _encode_answer(self, message: Message) -> bytes:
        """Encodes an answer. Reasoning that is not followed by text or a call is omitted because the service refuses
        it."""
        carried = message.carried if message.carrier == API and message.model == self._model else ()
        items: list[bytes] = []
        text, calls, wanted = 0, 0, 0
        for mark in carried:
            stored = _decode_item(mark.item)
            before = len(items)
            items += self._text_items(message.text[text : mark.text])
            items += self._call_items(message.calls[calls : mark.calls])
            text, calls = max(text, mark.text), max(calls, mark.calls)
            if not stored.item:
                items += self._text_items(message.text[text : text + stored.characters], stored.phase)
                text += stored.characters
            if len(items) > before:
                wanted = len(items)
            if stored.item:
                items.append(bytes(stored.item))
        rest = self._text_items(message.text[text:]) + self._call_items(message.calls[calls:])
        return b",".join(items + rest if rest else items[:wanted])

    def _text_items(self, text: str, phase: str = "") -> list[bytes]:
        """Returns a message item, or none for the blank separator that we put between two messages in one answer."""
        return [self._encode(_Message("assistant", text, phase or msgspec.UNSET))] if text.strip() else []

    def _call_items(self, calls: Iterable[ToolCall]) -> list[bytes]:
        return [self._encode(_FunctionCall(_id(call.id), call_name(call.name), call.arguments)) for call in calls]

    def _output(self, result: Message) -> str | list[_Part]:
        """Returns a list if the result has a picture or a document, otherwise plain text, which every server
        accepts."""
        parts: list[_Part] = [_Text(result.text)] if result.text else []
        parts += self._media(result.media)
        texts = [part.text for part in parts if isinstance(part, _Text)]
        return "\n".join(texts) if len(texts) == len(parts) else parts

    def _media(self, items: Iterable[Media]) -> list[_Part]:
        return [self._shown(media) for media in items]

    def _shown(self, media: Media) -> _Part:
        if not self.takes(media.media_type):
            return _Text(request_text.media_placeholder(media))
        data = msgspec.Raw(request_text.data_url(media))
        return _File(request_text.file_name(media), data) if media.is_document else _Image(data, media.detail or "auto")

    def _parameters(self, call: Call) -> bytes:
        refuse_fields(call, "seed", "frequency_penalty", "presence_penalty", "logit_bias")
        extras = refuse_extras(call)
        if call.top_logprobs is not None:
            raise invalid("This model returns no log probabilities; leave out `logprobs`.", "logprobs")
        facts = self._facts
        effort = requested_effort(facts, call.reasoning)
        thinks = facts.thinking != "none" and effort != "none" and not (facts.thinking_unknown and effort is None)
        if thinks:
            refuse_fields(call, "temperature", "top_p")
        encoded = self._encode(
            _Parameters(
                temperature=None if thinks else call.temperature,
                top_p=None if thinks else call.top_p,
                max_output_tokens=call.max_tokens,
                reasoning=None if effort is None else _Effort(effort),
                safety_identifier=_identifier(user) if (user := caller_identifier(call)) else None,
                prompt_cache_retention=extras.get("prompt_cache_retention"),
                prompt_cache_options=extras.get("prompt_cache_options"),
                metadata=call.metadata,
                service_tier=call.service_tier,
            )
        )
        parts = b"," + encoded[1:-1] if len(encoded) > 2 else b""
        if facts.thinking_unknown and effort is not None:
            parts += _THOUGHTS
        shape = call.response_format
        text = [b'"format":' + self._encode(_shape(shape))] if shape else []
        if call.verbosity:
            text.append(b'"verbosity":' + self._encode(call.verbosity))
        return parts + b',"text":{' + b",".join(text) + b"}" if text else parts


class OpenAIResponses:
    api = API
    path = "/responses"

    def __init__(self, model: str, facts: Facts) -> None:
        self.facts = facts
        self.wire = ResponsesWire(model, facts)

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def answer(self, limit: int, on_text: Callable[[str], None]) -> ResponsesAnswer:
        return ResponsesAnswer(limit, on_text)


def _choice(raw: bytes) -> str | _ChosenFunction | _AllowedTools:
    choice = parse_tool_choice(raw)
    chosen = [_ChosenFunction(name) for name in choice.names]
    if choice.kind == "allowed":
        return _AllowedTools("required" if choice.is_required else "auto", chosen)
    return chosen[0] if chosen else choice.kind


def _shape(raw: bytes) -> _Plain | _Schema:
    shape = parse_response_format(raw)
    if shape.kind != "json_schema":
        return _Plain(shape.kind)
    return _Schema(shape.name, shape.description, shape.schema, shape.strict)


def _cache_key(prefix: EncodedPrefix) -> bytes:
    """Returns the key for the provider's prompt cache. Conversations with the same prefix share it, so that their
    requests are routed to a server that has cached the prefix."""
    digest = hashlib.blake2b(prefix.system, digest_size=16)
    digest.update(prefix.tools)
    return digest.hexdigest().encode()


def _id(id: str) -> str:
    return call_id(id, CALL_ID_CHARACTERS)


def _identifier(user: str) -> str:
    """Returns the caller's user id. An id that is too long is replaced by a digest, which the service recommends for
    all ids."""
    return user if len(user) <= IDENTIFIER_CHARACTERS else hashlib.blake2b(user.encode(), digest_size=32).hexdigest()
