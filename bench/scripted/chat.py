"""The chat-completions format: answers as bytes.

Requests are checked strictly (`chat_request`); answers are canonical. The simulated cache is automatic, as with most
providers.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.scripted.chat_request import Message, Request, check_tools, read_request, tokens_of
from bench.scripted.interface import Asked, Refusal, Tokens
from bench.scripted.reuse import Ledger
from bench.scripted.script import ANSWER, Plan
from bench.scripted.toolset import Toolsets
from bench.scripted.wire import END, framed, stream_head

DONE = b"data: [DONE]\n\n"
CANNED = 64
SYSTEM = ("system", "developer")
CANNED_END = framed(DONE) + END
_encode = msgspec.json.encode


def _error(message: str, kind: str, code: str | None, param: str | None) -> bytes:
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def event_of(model: bytes, delta: bytes, finish: bytes = b"null") -> bytes:
    return (
        b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","created":1700000000,"model":%b,'
        b'"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}],"usage":null}\n\n'
        % (model, delta, finish)
    )


def usage_of(prompt: int, cached: int, output: int, reasoning: int = 0) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
        b'"completion_tokens_details":{"reasoning_tokens":%d}}' % (prompt, output, prompt + output, cached, reasoning)
    )


def usage_event_of(model: bytes, usage: bytes) -> bytes:
    return (
        b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","created":1700000000,"model":%b,'
        b'"choices":[],"usage":%b}\n\n' % (model, usage)
    )


class Chat:
    """POST /v1/chat/completions."""

    name = "chat"
    path = "/chat/completions"
    identified = "x-request-id: req_scripted\r\n"
    head = stream_head(identified.encode())
    spoiled = b'data: {"choices": [oops\n\n'
    huge = (b'data: {"choices":[{"index":0,"delta":{"content":"', b'"}}]}\n\n')

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._toolsets = Toolsets(check_tools)
        self._canned: dict[str, tuple[bytes, bytes]] = {}

    def admit(self, headers: dict[str, str], key: str | None) -> None:
        check_bearer(headers, key)

    def read(self, body: bytes, headers: dict[str, str]) -> Asked:
        request = read_request(body)
        raw = bytes(request.tools)
        names, tools, tokens = self._toolsets.of(raw) if raw else ((), 0, 0)
        messages = request.messages
        prompt = tokens_of(messages) + tokens
        system = _system(messages)
        tag = request.user or (request.metadata or {}).get("conversation") or _first_words(messages)
        tag = system if self.ledger.by_prompt else tag
        key, cached = self.ledger.note(tag, messages, tools, prompt)
        last = max((place for place, message in enumerate(messages) if message.directs()), default=-1)
        most = request.max_completion_tokens or request.max_tokens
        options = request.stream_options
        stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
        return Asked(
            request=request,
            model=request.model,
            stream=request.stream,
            text=messages[last].text() if last >= 0 else "",
            last=last,
            names=names,
            key=key,
            tokens=Tokens(prompt, cached),
            most=most,
            canned=options is not None
            and options.include_usage
            and not stops
            and (most is None or most >= len(ANSWER)),
            stops=stops,
            thinks_when_told=True,
            system=system,
        )

    def step(self, asked: Asked) -> int:
        return sum(message.tool_calls is not None for message in asked.request.messages[asked.last + 1 :])

    def said(self, asked: Asked) -> str:
        said: str = asked.request.messages[-1].text()
        return said

    def heard(self, asked: Asked) -> str:
        return "\n".join(message.text() for message in asked.request.messages if message.role not in SYSTEM)

    def call_id(self, asked: Asked, place: int) -> str:
        return f"call_{len(asked.request.messages)}_{place}"

    def plain(self, asked: Asked) -> bytes:
        begin, model = self._canned.get(asked.model) or self._can(asked.model)
        usage = usage_event_of(model, usage_of(asked.tokens.prompt, asked.tokens.cached, len(ANSWER)))
        return b"".join((begin, framed(usage), CANNED_END))

    def _can(self, name: str) -> tuple[bytes, bytes]:
        model = _encode(name)
        if len(self._canned) >= CANNED:
            self._canned.clear()
        events = events_of(Plan(ANSWER, [], "stop"), model)
        self._canned[name] = (self.head + b"".join(framed(event) for event in events), model)
        return self._canned[name]

    def beats(self, asked: Asked, plan: Plan) -> Iterator[bytes]:
        return events_of(plan, _encode(asked.model))

    def end(self, asked: Asked, plan: Plan, *, marked: bool) -> bytes:
        request: Request = asked.request
        usage = b""
        if request.stream_options is not None and request.stream_options.include_usage:
            usage = usage_event_of(_encode(asked.model), _usage(asked, plan))
        return usage + DONE if marked else usage

    def whole(self, asked: Asked, plan: Plan) -> bytes:
        return completion_of(plan, _encode(asked.model), _usage(asked, plan))

    def error(
        self, status: int, message: str, *, code: str | None = None, kind: str | None = None, param: str | None = None
    ) -> bytes:
        return _error(message, kind or "invalid_request_error", code, param)

    def complaint(self, asked: Asked, plan: Plan, message: str, code: str, words: list[str]) -> bytes:
        return b"data: " + _error(message, code, code, None) + b"\n\n"


def check_bearer(headers: dict[str, str], key: str | None) -> None:
    if key is not None and headers.get("authorization") != f"Bearer {key}":
        raise Refusal("Incorrect API key provided.", code="invalid_api_key", status=401)


def _first_words(messages: tuple[Message, ...]) -> str:
    return next((message.text() for message in messages if message.role == "user"), "")


def _system(messages: tuple[Message, ...]) -> str:
    return messages[0].text() if messages[0].role in SYSTEM else ""


def _usage(asked: Asked, plan: Plan) -> bytes:
    return usage_of(asked.tokens.prompt, asked.tokens.cached, plan.tokens, len(plan.thoughts))


def events_of(plan: Plan, model: bytes) -> Iterator[bytes]:
    speaks = bool(plan.pieces) and not plan.refused
    yield event_of(model, b'{"role":"assistant","content":%b}' % (b'""' if speaks else b"null"))
    for thought in plan.thoughts:
        yield event_of(model, b'{"reasoning_content":%b}' % _encode(thought))
    for piece in plan.pieces:
        yield event_of(model, (b'{"refusal":%b}' if plan.refused else b'{"content":%b}') % _encode(piece))
    for place, (identity, name, arguments) in enumerate(plan.calls):
        begun = {"index": place, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
        yield event_of(model, _encode({"tool_calls": [begun]}))
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            if part:
                yield event_of(model, _encode({"tool_calls": [{"index": place, "function": {"arguments": part}}]}))
    yield event_of(model, b"{}", _encode(plan.finish))


def completion_of(plan: Plan, model: bytes, usage: bytes) -> bytes:
    calls = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for identity, name, arguments in plan.calls
    ]
    said = "".join(plan.pieces) or None
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
    if plan.refused:
        message |= {"content": None, "refusal": said}
    if plan.thoughts:
        message["reasoning_content"] = "".join(plan.thoughts)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish}
    return (
        b'{"id":"chatcmpl-scripted","object":"chat.completion","created":1700000000,"model":%b,"choices":[%b],"usage":%b}'
        % (
            model,
            _encode(choice),
            usage,
        )
    )
