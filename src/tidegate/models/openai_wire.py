"""The chat-completions wire format, outgoing: messages, prefix and request body as bytes.

Guarantee: equal values give equal bytes, and the order of the body (model, parameters, tools, messages) lets a
request only ever grow at its end. Tool arguments and the schemas of tools go out verbatim; pictures go as they are, in
data URLs. Nothing is kept here.
"""

import base64
from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegate.errors import ModelFailed
from tidegate.models.interface import Encoded
from tidegate.values import Call, Media, Message, Prefix

# Says to the model whose words these are. Part of the wire format: to change it is to raise the version.
ASIDE_HEADING = "[Note from the gateway, not written by the user]\n"

_EFFORTS = {"off": "none", "max": "xhigh"}


class _Text(msgspec.Struct):
    text: str
    type: Literal["text"] = "text"


class _Url(msgspec.Struct):
    url: msgspec.Raw


class _Image(msgspec.Struct):
    image_url: _Url
    type: Literal["image_url"] = "image_url"


class _Plain(msgspec.Struct):
    role: str
    content: str | list[_Text | _Image]


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Calling(msgspec.Struct):
    content: str | None
    tool_calls: list[_Call]
    role: Literal["assistant"] = "assistant"


class _Result(msgspec.Struct):
    tool_call_id: str
    content: str
    role: Literal["tool"] = "tool"


class _ToolFunction(msgspec.Struct):
    name: str
    description: str
    parameters: msgspec.Raw


class _Tool(msgspec.Struct):
    function: _ToolFunction
    type: Literal["function"] = "function"


class _NameOnly(msgspec.Struct):
    name: str = ""


class _ToolName(msgspec.Struct):
    function: _NameOnly = msgspec.field(default_factory=_NameOnly)


class _Parameters(msgspec.Struct, omit_defaults=True):
    """What one call may set, in the order in which it goes out."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = ()
    user: str | None = None
    metadata: dict[str, object] | None = None


_NO_CALL = Call()
_names = msgspec.json.Decoder(list[_ToolName])


class OpenAIWire:
    """`completion_tokens` chooses the newer name of the output limit, which OpenAI's own service insists on and most
    compatible servers do not know."""

    version = 1

    def __init__(self, *, completion_tokens: bool = False) -> None:
        self._completion_tokens = completion_tokens
        self._encode = msgspec.json.Encoder().encode

    def encode(self, message: Message) -> bytes:
        """A tool's result goes without its pictures: this format takes them from users only."""
        if message.role == "tool":
            return self._encode(_Result(message.call_id, message.text))
        if message.calls:
            calls = [_Call(call.id, _Function(call.name, call.arguments)) for call in message.calls]
            return self._encode(_Calling(message.text or None, calls))
        if message.aside or message.media:
            parts: list[_Text | _Image] = [_Text(message.text)] if message.text else []
            if message.aside:
                parts.append(_Text(ASIDE_HEADING + message.aside))
            parts += [_Image(_Url(_data_url(picture))) for picture in message.media]
            return self._encode(_Plain(message.role, parts))
        return self._encode(_Plain(message.role, message.text))

    def encode_prefix(self, prefix: Prefix) -> Encoded:
        system = self._encode(_Plain("system", prefix.prompt)) if prefix.prompt else b""
        tools = [_Tool(_ToolFunction(tool.name, tool.description, tool.parameters)) for tool in prefix.tools]
        return Encoded(system=system, tools=self._encode(tools) if tools else b"")

    def body(self, model: str, prefix: Encoded, history: Sequence[bytes], call: Call, *, stream: bool) -> bytes:
        parts = [b'{"model":', self._encode(model)]
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}' if stream else b',"stream":false')
        tools = prefix.tools
        if call is not _NO_CALL and call != _NO_CALL:
            parts.append(self._parameters(call))
            if call.tools:
                tools = _join_tools(tools, call.tools)
            if tools and call.tool_choice:
                parts += (b',"tool_choice":', call.tool_choice)
        if tools:
            parts += (b',"tools":', tools)
        parts.append(b',"messages":[')
        messages = [prefix.system, *history] if prefix.system else [*history] or [b""]
        messages[0] = b"".join((*parts, messages[0]))
        messages[-1] += b"]}"
        return b",".join(messages)  # the only copy of a history that may be long

    def _parameters(self, call: Call) -> bytes:
        newer = self._completion_tokens
        effort = call.reasoning
        encoded = self._encode(
            _Parameters(
                temperature=call.temperature,
                top_p=call.top_p,
                max_tokens=None if newer else call.max_tokens,
                max_completion_tokens=call.max_tokens if newer else None,
                reasoning_effort=None if effort is None else _EFFORTS.get(effort, effort),
                stop=call.stop,
                user=call.user,
                metadata=call.metadata,
            )
        )
        parts = b"," + encoded[1:-1] if len(encoded) > 2 else b""
        shape = call.response_format
        return parts + b',"response_format":' + shape if shape else parts


def _data_url(picture: Media) -> msgspec.Raw:
    """Already JSON, so that a large picture is copied as seldom as can be; nothing in it needs escaping."""
    if not picture.data:
        raise ValueError(f"the picture {picture.spooled} was not loaded before it was encoded")
    return msgspec.Raw(b'"data:%b;base64,%b"' % (picture.media_type.encode(), base64.b64encode(picture.data)))


def _join_tools(own: bytes, brought: bytes) -> bytes:
    """The agent's tools, then the caller's; one name twice would let the caller answer for a tool of the agent."""
    try:
        names = [tool.function.name for tool in _names.decode(brought)]
        taken = {tool.function.name for tool in _names.decode(own)} if own else set()
    except msgspec.DecodeError as error:
        raise ModelFailed(
            "The caller's tools are not a list of function tools; send them in OpenAI's shape.",
            kind="invalid",
            retryable=False,
        ) from error
    for name in names:
        if name in taken:
            raise ModelFailed(
                f"The tool {name!r} is offered twice in one request; give the caller's tool another name.",
                kind="invalid",
                retryable=False,
            )
        taken.add(name)
    if not names:
        return own
    return brought if not own else own[:-1] + b"," + brought.strip()[1:]
