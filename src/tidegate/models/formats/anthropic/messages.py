"""Requests to Anthropic's Messages API: the format, and its messages, prefix and request body as bytes.

Equal values are encoded as equal bytes. Each request, except for its cache marks, is the beginning of the
conversation's next request. Requests contain nothing that the API would refuse: no empty blocks, no ids or names from
other formats, no reasoning block at the end of an answer. A model's signed reasoning blocks are sent back only to the
same model, verbatim and at their original positions. Nothing is stored per conversation.

Every block ends with its type, and every message starts with its role, so messages need not be decoded to add cache
marks to a request or to find its last answer.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.anthropic.messages_answer import API, PLACE, AnthropicAnswer
from tidegate.models.formats.anthropic.messages_parameters import blank_stops, parameters, sampling_of, wants_json
from tidegate.models.formats.call_names import call_name
from tidegate.models.formats.call_parameters import invalid
from tidegate.models.formats.request_text import aside, base64_data, file_name, media_placeholder
from tidegate.models.interface import EncodedPrefix
from tidegate.values import PDF, Call, Media, Message, Prefix, ToolCall, ToolDefinition

VERSION = "2026-10-21"
SAMPLED_VERSION = "2023-06-01"
"""The API version for models that accept temperature and top_p, which the newest version refuses for every model. It is
also the only version that other vendors' servers support."""

CacheTtl = Literal["5m", "1h"]
SHOWN = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp", PDF})

# Part of the wire format: raise `version` when one of these sentences changes.
NO_MESSAGE = "The message was empty."
NO_OUTPUT = "[no output]"
NO_BEGINNING = "What was said before this is not known."
JSON_ONLY = "Answer with one JSON object and nothing else."
UNREADABLE = "unreadable_arguments"

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
# The prefix of ids created here. Original ids with this prefix are replaced, too.
_MADE_ID = "tg_"
_MADE_DIGITS = 40

_ANSWER = b'{"role":"assistant",'
_THOUGHTFUL = (_ANSWER + b'"content":[{"thinking":', _ANSWER + b'"content":[{"data":')
_CALLING = b'"type":"tool_use"}]}'
_END = b"}]}"
# The endings of messages whose last block may have a cache mark; reasoning blocks may not.
_MARKABLE = (
    b'"type":"text"}]}',
    b'"type":"image"}]}',
    b'"type":"document"}]}',
    b'"type":"tool_result"}]}',
    _CALLING,
)
_MARKS: dict[CacheTtl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}
_NO_SCHEMA = msgspec.Raw(b'{"type":"object","properties":{}}')


class _Text(msgspec.Struct):
    text: str
    type: str = "text"


class _Source(msgspec.Struct):
    media_type: str
    data: msgspec.Raw
    type: str = "base64"


class _Image(msgspec.Struct):
    source: _Source
    type: str = "image"


class _Document(msgspec.Struct):
    source: _Source
    title: str
    type: str = "document"


_Shown = _Text | _Image | _Document


class _Use(msgspec.Struct):
    id: str
    name: str
    input: msgspec.Raw
    type: str = "tool_use"


class _Result(msgspec.Struct):
    tool_use_id: str
    content: "list[_Shown]"
    is_error: bool
    type: str = "tool_result"


class _Message(msgspec.Struct):
    role: str
    content: "Sequence[_Shown | _Use | _Result | msgspec.Raw]"


class _Tool(msgspec.Struct, omit_defaults=True, kw_only=True):
    name: str
    description: str = ""
    strict: bool = False
    input_schema: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_JSON_ONLY = _encode(_Message("user", [_Text(aside(JSON_ONLY))]))
_BEGINNING = _encode(_Message("user", [_Text(aside(NO_BEGINNING))])) + b","


class AnthropicWire:
    """Anthropic's wire format. `cache_ttl` is how long the provider caches marked content. Writing to the cache costs
    more for the longer duration."""

    version = 3001
    continues_answers = False

    def __init__(self, model: str, facts: Facts, *, cache_ttl: CacheTtl = "5m") -> None:
        self._facts = facts
        self._own = model
        self._model = _encode(model)
        self._sampling = sampling_of(model, facts)
        self._mark = _MARKS[cache_ttl]

    def unsent_stops(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        return blank_stops(stops)

    def takes(self, media_type: str) -> bool:
        return media_type in SHOWN and self._facts.takes(media_type)

    def encode(self, message: Message) -> bytes:
        if message.role == "tool":
            return self.encode_results((message,))
        if message.role == "assistant":
            blocks = self._answer(message)
            return _encode(_Message("assistant", blocks)) if blocks else b""
        content: list[_Shown] = [*_texts(message.text, aside(message.aside) if message.aside.strip() else "")]
        content += [self._shown(media) for media in message.media]
        return _encode(_Message("user", content or [_Text(aside(NO_MESSAGE))]))

    def encode_results(self, results: Sequence[Message]) -> bytes:
        """Returns one message, as the API requires. The message contains first all results, then the gateway's
        additions."""
        if not results:
            return b""
        blocks: list[_Result | _Shown] = []
        trailing: list[_Shown] = []
        for result in results:
            content: list[_Shown] = [*_texts(result.text)]
            # A failed result may contain only text.
            (trailing if result.failed else content).extend(map(self._shown, result.media))
            blocks.append(_Result(_id(result.call_id), content or [_Text(NO_OUTPUT)], result.failed))
        blocks += trailing
        blocks += [_Text(aside(result.aside)) for result in results if result.aside.strip()]
        return _encode(_Message("user", blocks))

    def encode_prefix(self, prefix: Prefix) -> EncodedPrefix:
        system = _encode(_Text(prefix.prompt)) if prefix.prompt.strip() else b""
        offered = prefix.offered
        return EncodedPrefix(system=system, tools=_encode([_tool(tool) for tool in offered]) if offered else b"")

    def body(self, prefix: EncodedPrefix, history: Sequence[bytes], call: Call) -> list[bytes]:
        tools = prefix.tools
        answer = _last_answer(history)
        settings = parameters(
            call,
            self._facts,
            sampling=self._sampling,
            tools=bool(tools),
            thoughtless=lambda: _begun_thoughtless(history, answer),
        )
        mark = self._mark
        pieces = [b'{"model":', self._model, b',"stream":true,', settings]
        if tools:
            pieces += (b',"tools":', tools[:-2], mark, b"}]")
        if prefix.system:
            pieces += (b',"system":[', prefix.system[:-1], mark, b"}]")
        pieces.append(b',"messages":[')
        if history and history[0].startswith(_ANSWER):
            pieces.append(_BEGINNING)  # the first message must be a user message
        # Mark the end of this request and of the previous one, so that the provider finds its cache entry: it looks at
        # only twenty blocks before a mark.
        marked = (len(history) - 1, answer - 1)
        for place, piece in enumerate(history):
            if place:
                pieces.append(b",")
            if place in marked and piece.endswith(_MARKABLE):
                pieces += (piece[: -len(_END)], mark, _END)
            else:
                pieces.append(piece)
        if wants_json(call):
            pieces += (b",", _JSON_ONLY)
        pieces.append(b"]}")
        return pieces

    def _answer(self, message: Message) -> list[_Text | _Use | msgspec.Raw]:
        """Returns the text, tool calls and reasoning of an answer, in their original order."""
        blocks: list[_Text | _Use | msgspec.Raw] = []
        text, calls = message.text, message.calls
        at = done = 0
        if message.carrier == API and message.model == self._own:
            for carried in message.carried:
                blocks += _texts(text[at : carried.text])
                blocks += [_use(call) for call in calls[done : carried.calls]]
                at, done = max(at, carried.text), max(done, carried.calls)
                if bytes(carried.item) != bytes(PLACE):
                    blocks.append(carried.item)
        blocks += _texts(text[at:])
        blocks += [_use(call) for call in calls[done:]]
        while blocks and isinstance(blocks[-1], msgspec.Raw):
            blocks.pop()  # the answer was cut off while the model was thinking
        return blocks

    def _shown(self, media: Media) -> _Shown:
        if not self.takes(media.media_type):
            return _Text(media_placeholder(media))
        # Raw JSON, so that large pictures are not copied more often than necessary. Nothing in it needs escaping.
        source = _Source(media.media_type, msgspec.Raw(b'"%b"' % base64_data(media)))
        return _Document(source, file_name(media)) if media.is_document else _Image(source)


class AnthropicMessages:
    api = API
    path = "/messages"

    def __init__(self, model: str, facts: Facts, *, cache_ttl: CacheTtl = "5m") -> None:
        self.facts = facts
        self.wire = AnthropicWire(model, facts, cache_ttl=cache_ttl)
        self._version = VERSION if sampling_of(model, facts) == "fixed" else SAMPLED_VERSION

    def headers(self, key: str | None) -> Mapping[str, str]:
        headers = {"anthropic-version": self._version}
        if key is not None:
            headers["x-api-key"] = key
        return headers

    def answer(self, limit: int, on_text: Callable[[str], None]) -> AnthropicAnswer:
        return AnthropicAnswer(limit, on_text)


def _texts(*texts: str) -> list[_Text]:
    """Returns text blocks for all texts that are not blank."""
    return [_Text(text) for text in texts if text.strip()]


def _use(call: ToolCall) -> _Use:
    return _Use(_id(call.id), call_name(call.name), _input(call.arguments))


def _id(id: str) -> str:
    """Returns a call id that the API accepts: the original id if possible, otherwise a digest, so that ids stay
    distinct."""
    if _ID.fullmatch(id) and not id.startswith(_MADE_ID):
        return id
    return _MADE_ID + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:_MADE_DIGITS]


def _input(arguments: str) -> msgspec.Raw:
    """Returns the model's own arguments if they are a JSON object, as required by the API; otherwise an object that
    quotes them."""
    text = arguments.strip().encode("utf-8", "replace")
    if not text:
        return msgspec.Raw(b"{}")
    try:
        readable = isinstance(_decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        readable = False
    return msgspec.Raw(text if readable else _encode({UNREADABLE: arguments}))


def _tool(tool: ToolDefinition) -> _Tool:
    return _Tool(
        name=tool.name, description=tool.description, strict=tool.strict, input_schema=_schema(tool.parameters)
    )


def _schema(parameters: msgspec.Raw) -> msgspec.Raw:
    """Returns the schema verbatim, except that a missing `type` is added because this API requires one."""
    raw = bytes(parameters)
    if not raw:
        return _NO_SCHEMA
    try:
        schema = _decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise invalid("The parameters of a tool are not JSON; send them as a JSON schema.", "tools") from None
    if not isinstance(schema, dict):
        raise invalid("The parameters of a tool are not an object; send them as a JSON schema.", "tools")
    return parameters if "type" in schema else msgspec.Raw(_encode({"type": "object", **schema}))


def _last_answer(history: Sequence[bytes]) -> int:
    """Returns the index of the entry that starts with the model's last answer, or 0 if there is none."""
    for place in range(len(history) - 1, 0, -1):
        if history[place].startswith(_ANSWER):
            return place
    return 0


def _begun_thoughtless(history: Sequence[bytes], answer: int) -> bool:
    """True if the request continues a step in which this model or another one has made tool calls without thinking."""
    return bool(answer) and history[answer].endswith(_CALLING) and not history[answer].startswith(_THOUGHTFUL)
