"""The encoding of requests for OpenAI's chat completions API: messages, prefix and request body.

Encoding is deterministic, and the body is ordered (model, parameters, tools, messages) so that each request of a
conversation only appends to the previous one. Tool arguments, tool schemas and fields that an endpoint expects back are
sent verbatim; images, audio and documents are sent unchanged. Nothing is stored per conversation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats import request_text
from tidegate.models.formats.call_names import call_id, call_name, participant_name, short_id
from tidegate.models.formats.call_parameters import refuse_extras, refuse_fields, requested_effort
from tidegate.models.formats.openai.chat_answer import API, ChatAnswer, EndpointFields
from tidegate.models.interface import EncodedPrefix
from tidegate.values import PDF, Call, Media, Message, Prefix, ToolCall

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_SOUNDS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
"""The audio types that the format accepts, and its names for them."""

CALL_ID_CHARACTERS = 40
"""Maximum length of a call id accepted by OpenAI's service, in characters. Other servers, such as vLLM, create longer
ids."""

# OpenAI's own services accept only the newer name for the output limit.
_NEWER_HOSTS = ("api.openai.com", ".openai.azure.com")
# This endpoint refuses conversations with answers that have no reasoning field; an empty one is enough.
_THOUGHTFUL_HOST = "api.deepseek.com"
# This endpoint refuses calls without a signature. For other models' calls, it accepts the placeholder below.
_MARKING_HOST = "generativelanguage.googleapis.com"
# This endpoint refuses calls whose ids do not have the form of its own ids.
_SHORT_ID_HOST = "api.mistral.ai"
# These endpoints refuse messages with a name.
_NAMELESS_HOSTS = frozenset({"api.mistral.ai", "api.groq.com", "api.cerebras.ai"})
_FOREIGN_MARK = b'{"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}}'


class _Text(msgspec.Struct):
    text: str
    type: Literal["text"] = "text"


class _Url(msgspec.Struct, omit_defaults=True):
    url: msgspec.Raw
    detail: str = ""


class _Image(msgspec.Struct):
    image_url: _Url
    type: Literal["image_url"] = "image_url"


class _Sound(msgspec.Struct):
    data: msgspec.Raw
    format: str


class _Audio(msgspec.Struct):
    input_audio: _Sound
    type: Literal["input_audio"] = "input_audio"


class _FileData(msgspec.Struct):
    filename: str
    file_data: msgspec.Raw


class _File(msgspec.Struct):
    file: _FileData
    type: Literal["file"] = "file"


_Part = _Text | _Image | _Audio | _File


class _Plain(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | list[_Part]
    name: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Calling(msgspec.Struct):
    content: str | None
    tool_calls: list[msgspec.Raw]
    role: Literal["assistant"] = "assistant"


class _Result(msgspec.Struct):
    tool_call_id: str
    content: str
    role: Literal["tool"] = "tool"


class _ToolFunction(msgspec.Struct):
    name: str
    description: str
    parameters: msgspec.Raw
    strict: bool | msgspec.UnsetType = msgspec.UNSET


class _Tool(msgspec.Struct):
    function: _ToolFunction
    type: Literal["function"] = "function"


class _Parameters(msgspec.Struct, omit_defaults=True):
    """The parameters of a call, in the order in which they are sent."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = ()
    user: str | None = None
    metadata: dict[str, str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, int | float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None


_NO_CALL = Call()
_ONE_AT_A_TIME = b',"parallel_tool_calls":false'
_decode_fields = msgspec.json.Decoder(EndpointFields).decode


class ChatWire:
    """The wire format of chat completions. `completion_tokens` is true for OpenAI's own service, which requires the
    newer name for the output limit, unknown to most compatible servers, and refuses sampling parameters for reasoning
    models. `names` is true if messages may name their participant. `missing_thought` contains fields, as a JSON object,
    that are added to answers without this model's reasoning; `missing_mark` contains fields that are added to the first
    call in another model's answer. `short_ids` is true if call ids have nine characters."""

    version = 1003
    continues_answers = True

    def __init__(
        self,
        model: str,
        facts: Facts,
        *,
        completion_tokens: bool = False,
        names: bool = True,
        missing_thought: bytes = b"",
        missing_mark: bytes = b"",
        short_ids: bool = False,
    ) -> None:
        self._model = model
        self._facts = facts
        self._completion_tokens = completion_tokens
        self._names = names
        self._missing_thought = msgspec.Raw(missing_thought)
        self._missing_mark = msgspec.Raw(missing_mark)
        self._short_ids = short_ids
        self._encode = msgspec.json.Encoder().encode
        self._opening = b'{"model":%b,"stream":true,"stream_options":{"include_usage":true}' % self._encode(model)

    def unsent_stops(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def takes(self, media_type: str) -> bool:
        known = media_type in _PICTURES or media_type in _SOUNDS or media_type == PDF
        return known and self._facts.takes(media_type)

    def encode(self, message: Message) -> bytes:
        if message.role == "assistant":
            return self._encode_answer(message)
        if message.aside or message.media:
            parts: list[_Part] = [_Text(message.text)] if message.text else []
            if message.aside:
                parts.append(_Text(request_text.aside(message.aside)))
            parts += self._media(message.media)
            return self._encode(_Plain(message.role, parts, self._name(message)))
        return self._encode(_Plain(message.role, message.text, self._name(message)))

    def encode_results(self, results: Sequence[Message]) -> bytes:
        """Returns the results, followed by their media in a user message. The format accepts media only in user
        messages, and allows no message between the results of one step."""
        parts = [self._encode(_Result(self._id(result.call_id), result.text)) for result in results]
        if caption := request_text.media_caption(results):
            media = tuple(item for result in results for item in result.media)
            parts.append(self.encode(Message(role="user", aside=caption, media=media)))
        return b",".join(parts)

    def encode_prefix(self, prefix: Prefix) -> EncodedPrefix:
        system = self._encode(_Plain("system", prefix.prompt)) if prefix.prompt else b""
        tools = [
            _Tool(_ToolFunction(tool.name, tool.description, tool.parameters, tool.strict or msgspec.UNSET))
            for tool in prefix.offered
        ]
        return EncodedPrefix(system=system, tools=self._encode(tools) if tools else b"")

    def body(self, prefix: EncodedPrefix, history: Sequence[bytes], call: Call) -> list[bytes]:
        pieces = [self._opening]
        tools = prefix.tools
        if call is not _NO_CALL and call != _NO_CALL:
            pieces.append(self._parameters(call))
            if tools and call.tool_choice:
                pieces += (b',"tool_choice":', call.tool_choice)
            if tools and call.parallel_tool_calls is not None:
                pieces.append(b',"parallel_tool_calls":true' if call.parallel_tool_calls else _ONE_AT_A_TIME)
        if tools:
            pieces += (b',"tools":', tools)
        return pieces + request_text.message_list(b',"messages":[', prefix.system, history)

    def _encode_answer(self, message: Message) -> bytes:
        if not (message.calls or message.carried or self._missing_thought):
            return self._encode(_Plain(message.role, message.text, self._name(message)))
        own = message.model == self._model
        carried = message.carried if own and message.carrier == API else ()
        fields_of_items = [(item.calls, _decode_fields(item.item)) for item in carried]
        fields = [found.message for _, found in fields_of_items if found.message] or [self._missing_thought]
        marks = [(place, found.call) for place, found in fields_of_items] if own else [(0, self._missing_mark)]
        if message.calls:
            calls = [
                msgspec.Raw(_with_fields(self._encode_call(call), [mark for at, mark in marks if at == place]))
                for place, call in enumerate(message.calls)
            ]
            encoded = self._encode(_Calling(message.text or None, calls))
        else:
            encoded = self._encode(_Plain(message.role, message.text))
        return _with_fields(encoded, fields)

    def _name(self, message: Message) -> str:
        return participant_name(message.name) if message.name and self._names else ""

    def _id(self, id: str) -> str:
        return short_id(id) if self._short_ids else call_id(id, CALL_ID_CHARACTERS)

    def _encode_call(self, call: ToolCall) -> bytes:
        return self._encode(_Call(self._id(call.id), _Function(call_name(call.name), call.arguments)))

    def _media(self, media_items: Iterable[Media]) -> list[_Part]:
        """Returns media as raw JSON, so that large data is not copied more often than necessary. The data needs no
        escaping."""
        parts: list[_Part] = []
        for media in media_items:
            if not self.takes(media.media_type):
                parts.append(_Text(request_text.media_placeholder(media)))
            elif media.is_sound:
                data = msgspec.Raw(b'"%b"' % request_text.base64_data(media))
                parts.append(_Audio(_Sound(data, _SOUNDS[media.media_type])))
            elif media.is_document:
                parts.append(_File(_FileData(request_text.file_name(media), msgspec.Raw(request_text.data_url(media)))))
            else:
                # Compatible servers do not know the newest value and would refuse the conversation from then on.
                newest = media.detail == "original" and not self._completion_tokens
                detail = "high" if newest else media.detail
                parts.append(_Image(_Url(msgspec.Raw(request_text.data_url(media)), detail)))
        return parts

    def _parameters(self, call: Call) -> bytes:
        newer = self._completion_tokens
        facts = self._facts
        effort = requested_effort(facts, call.reasoning)
        thinks = facts.thinking != "none" and effort != "none" and not (facts.thinking_unknown and effort is None)
        sampled = not newer or not thinks
        if newer:
            refuse_extras(call)
        if not sampled:
            refuse_fields(call, "temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias")
        encoded = self._encode(
            _Parameters(
                temperature=call.temperature if sampled else None,
                top_p=call.top_p if sampled else None,
                max_tokens=None if newer else call.max_tokens,
                max_completion_tokens=call.max_tokens if newer else None,
                reasoning_effort=effort,
                stop=call.stop,
                user=call.user,
                metadata=call.metadata,
                seed=call.seed,
                frequency_penalty=call.frequency_penalty if sampled else None,
                presence_penalty=call.presence_penalty if sampled else None,
                logit_bias=call.logit_bias or None,
                logprobs=call.top_logprobs is not None,
                top_logprobs=call.top_logprobs or None,
                service_tier=call.service_tier,
                verbosity=call.verbosity,
                prompt_cache_key=call.prompt_cache_key,
            )
        )
        parts = b"," + encoded[1:-1] if len(encoded) > 2 else b""
        if call.extras:
            parts += b"," + call.extras[1:-1]
        shape = call.response_format
        return parts + b',"response_format":' + shape if shape else parts


class OpenAIChat:
    api = API
    path = "/chat/completions"

    def __init__(self, base_url: str, model: str, facts: Facts) -> None:
        host = urlsplit(base_url).hostname or ""
        self.facts = facts
        self.wire = ChatWire(
            model,
            facts,
            completion_tokens=host.endswith(_NEWER_HOSTS),
            names=host not in _NAMELESS_HOSTS,
            missing_thought=b'{"reasoning_content":""}' if host == _THOUGHTFUL_HOST else b"",
            missing_mark=_FOREIGN_MARK if host == _MARKING_HOST else b"",
            short_ids=host == _SHORT_ID_HOST,
        )

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def answer(self, limit: int, on_text: Callable[[str], None]) -> ChatAnswer:
        return ChatAnswer(limit, on_text)


def _with_fields(encoded: bytes, added: Iterable[msgspec.Raw]) -> bytes:
    """Returns a JSON object with the fields of other objects appended."""
    fields = [bytes(raw)[1:-1] for raw in added if len(raw) > 2]
    return b",".join((encoded[:-1], *fields)) + b"}" if fields else encoded
