"""The Responses format: answers as bytes.

Requests are checked strictly (`responses_request`, `responses_rules`); answers are valid by the official types.
Reasoning is sealed, and accepted back only if it is unchanged. Nothing is stored. The simulated cache is automatic. The
answer repeats parameters of the request only as far as the types require.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.scripted.chat import check_bearer
from bench.scripted.interface import Asked, Tokens
from bench.scripted.responses_request import Item, Request, read_request, tokens_of
from bench.scripted.responses_rules import check_choice, check_items, check_tools, reasoning_of
from bench.scripted.reuse import Ledger
from bench.scripted.script import ANSWER, Plan
from bench.scripted.seal import sealed
from bench.scripted.toolset import Toolsets
from bench.scripted.wire import END, event, framed, stream_head

INCOMPLETE = {"length": "max_output_tokens"}
CREATED = 1_700_000_000
CANNED = 64
SYSTEM = ("system", "developer")
_encode = msgspec.json.encode


class Responses:
    """POST /v1/responses."""

    name = "responses"
    path = "/responses"
    identified = "x-request-id: req_scripted\r\n"
    head = stream_head(identified.encode())
    spoiled = event(b"response.output_text.delta", b'{"type": [oops')
    huge = (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":4,'
        b'"output_index":0,"content_index":0,"item_id":"msg_huge","logprobs":[],"delta":"',
        b'"}\n\n',
    )

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._toolsets = Toolsets(check_tools)
        self._canned: dict[str, tuple[bytes, bytes, bytes]] = {}

    def admit(self, headers: dict[str, str], key: str | None) -> None:
        check_bearer(headers, key)

    def read(self, body: bytes, headers: dict[str, str]) -> Asked:
        request = read_request(body)
        raw = bytes(request.tools)
        names, tools, tokens = self._toolsets.of(raw) if raw else ((), 0, 0)
        items = request.items()
        check_items(request, items)
        check_choice(request, names)
        prompt = tokens_of(request, items) + tokens
        system = request.instructions or _system(items)
        tag = request.user or (request.metadata or {}).get("conversation") or _first_words(items)
        tag = system if self.ledger.by_prompt else tag
        key, cached = self.ledger.note(tag, items, hash((tools, request.instructions)), prompt)
        last = max((place for place, item in enumerate(items) if item.directs()), default=-1)
        stream, most = bool(request.stream), request.max_output_tokens
        return Asked(
            request=request,
            model=request.model,
            stream=stream,
            text=items[last].text() if last >= 0 else "",
            last=last,
            names=names,
            key=key,
            tokens=Tokens(prompt, cached),
            most=most,
            canned=stream and not request.thinks,
            thinks=request.thinks,
            system=system,
        )

    def step(self, asked: Asked) -> int:
        """Consecutive calls are one step; an output ends it."""
        step, calling = 0, False
        for item in asked.request.items()[asked.last + 1 :]:
            if item.type == "function_call" and not calling:
                step, calling = step + 1, True
            elif item.type == "function_call_output":
                calling = False
        return step

    def said(self, asked: Asked) -> str:
        said: str = asked.request.items()[-1].text()
        return said

    def heard(self, asked: Asked) -> str:
        return "\n".join(item.text() for item in asked.request.items() if item.role not in SYSTEM)

    def call_id(self, asked: Asked, place: int) -> str:
        return f"call_{_tail(asked)}_{place}"

    # -- answers -------------------------------------------------------------------------------------------------------

    def plain(self, asked: Asked) -> bytes:
        """The ids are constant, so that everything but the usage is canned."""
        begin, before, after = self._canned.get(asked.model) or self._can(asked)
        completed = b"".join((before, _usage(asked, len(ANSWER), 0), after))
        return b"".join((begin, framed(completed), END))

    def _can(self, asked: Asked) -> tuple[bytes, bytes, bytes]:
        plan = Plan(ANSWER, [], "stop")
        if len(self._canned) >= CANNED:
            self._canned.clear()
        begin = self.head + framed(b"".join(_events(asked.model, "plain", plan, thinks=None)))
        items = list(_items(asked.model, "plain", plan, None))
        done = _told(plan, "response.completed", {"response": _response(asked.model, "plain", plan, items, b'"USAGE"')})
        before, _, after = done.partition(b'"USAGE"')
        self._canned[asked.model] = (begin, before, after)
        return self._canned[asked.model]

    def beats(self, asked: Asked, plan: Plan) -> Iterator[bytes]:
        return _events(asked.model, _tail(asked), plan, thinks=asked.request)

    def end(self, asked: Asked, plan: Plan, *, marked: bool) -> bytes:
        if not marked:
            return b""
        kind = "response.completed" if plan.finish in ("stop", "tool_calls") else "response.incomplete"
        return _told(plan, kind, {"response": msgspec.Raw(self.whole(asked, plan))})

    def whole(self, asked: Asked, plan: Plan) -> bytes:
        items = list(_items(asked.model, _tail(asked), plan, asked.request))
        usage = _usage(asked, plan.tokens, len(plan.thoughts))
        return _encode(_response(asked.model, _tail(asked), plan, items, usage))

    def error(
        self, status: int, message: str, *, code: str | None = None, kind: str | None = None, param: str | None = None
    ) -> bytes:
        kind = kind or "invalid_request_error"
        return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def complaint(self, asked: Asked, plan: Plan, message: str, code: str, words: list[str]) -> bytes:
        """An error event as in the official types; `nested`: in its common form; `failed`: as a failed response."""
        if "failed" in words:
            failed = _response(asked.model, _tail(asked), plan, [], b"null", status="failed")
            failed["error"] = {"code": code, "message": message}
            return _told(plan, "response.failed", {"response": failed})
        said = {"type": code, "code": code, "message": message, "param": None}
        if "nested" in words:
            return _told(plan, "error", {"error": said})
        return _told(plan, "error", {"code": code, "message": message, "param": None})


def _first_words(items: tuple[Item, ...]) -> str:
    return next((item.text() for item in items if item.role == "user"), "")


def _system(items: tuple[Item, ...]) -> str:
    return items[0].text() if items[0].role in SYSTEM else ""


def _tail(asked: Asked) -> str:
    """A suffix that makes the ids of one answer unique: its position, and the size before it."""
    return f"{len(asked.request.items())}_{asked.tokens.prompt}"


def _told(plan: Plan, kind: str, more: dict[str, Any]) -> bytes:
    told = event(kind.encode(), _encode({"type": kind, "sequence_number": plan.sequence, **more}))
    plan.sequence += 1
    return told


def _items(model: str, tail: str, plan: Plan, request: Request | None) -> Iterator[dict[str, Any]]:
    """The complete output. The id of an item after reasoning names that reasoning."""
    behind = "-r" if plan.thoughts else "-n"
    if plan.thoughts and request is not None:
        thought = "".join(plan.thoughts)
        shown = request.reasoning is not None and request.reasoning.summary is not None
        item: dict[str, Any] = {
            "id": f"rs_{tail}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": thought}] if shown else [],
        }
        if "reasoning.encrypted_content" in (request.include or ()):
            item["encrypted_content"] = sealed(reasoning_of(model, tail, thought))
        yield item
    if plan.pieces:
        text: dict[str, Any] = {"type": "output_text", "text": "".join(plan.pieces), "annotations": [], "logprobs": []}
        if plan.refused:
            text = {"type": "refusal", "refusal": "".join(plan.pieces)}
        status = "completed" if plan.finish in ("stop", "tool_calls") else "incomplete"
        yield {
            "id": f"msg_{tail}{behind}0",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [text],
        }
    for place, (identity, name, arguments) in enumerate(plan.calls):
        yield {
            "id": f"fc_{tail}{behind}{place}",
            "type": "function_call",
            "status": "completed",
            "call_id": identity,
            "name": name,
            "arguments": arguments,
        }


def _events(model: str, tail: str, plan: Plan, *, thinks: Request | None) -> Iterator[bytes]:
    """The events of an answer. An event that replaces a piece keeps the piece's number."""
    plan.sequence = before = 0
    for beat in _numbered(model, tail, plan, thinks):
        after, plan.sequence = plan.sequence, before
        yield beat
        plan.sequence = before = after


def _numbered(model: str, tail: str, plan: Plan, thinks: Request | None) -> Iterator[bytes]:
    begun = _response(model, tail, plan, [], b"null", status="in_progress")
    yield _told(plan, "response.created", {"response": begun}) + _told(
        plan, "response.in_progress", {"response": begun}
    )
    before = b""
    for index, item in enumerate(_items(model, tail, plan, thinks)):
        opening, deltas, closing = _PARTS[item["type"]](item, plan)
        at = {"output_index": index}
        before += b"".join(_told(plan, kind, {**more, **at}) for kind, more in opening)
        if item["type"] == "function_call":
            yield before
            before = b""
        for kind, more in deltas:
            yield before + _told(plan, kind, {**more, **at})
            before = b""
        before += b"".join(_told(plan, kind, {**more, **at}) for kind, more in closing)
    yield before


_Told = list[tuple[str, dict[str, Any]]]


def _reasoning_parts(item: dict[str, Any], plan: Plan) -> tuple[_Told, _Told, _Told]:
    at = {"item_id": item["id"], "summary_index": 0}
    begun = {name: value for name, value in item.items() if name != "encrypted_content"}
    opening: _Told = [("response.output_item.added", {"item": {**begun, "summary": []}})]
    closing: _Told = [("response.output_item.done", {"item": item})]
    if not item["summary"]:
        return opening, [], closing
    kind = "response.reasoning_summary_"
    opening += [(kind + "part.added", {**at, "part": {"type": "summary_text", "text": ""}})]
    deltas: _Told = [(kind + "text.delta", {**at, "delta": thought}) for thought in plan.thoughts]
    told: _Told = [
        (kind + "text.done", {**at, "text": item["summary"][0]["text"]}),
        (kind + "part.done", {**at, "part": item["summary"][0]}),
    ]
    return opening, deltas, told + closing


def _message_parts(item: dict[str, Any], plan: Plan) -> tuple[_Told, _Told, _Told]:
    at = {"item_id": item["id"], "content_index": 0}
    part = item["content"][0]
    if plan.refused:
        return _refusal_parts(item, plan)
    opening: _Told = [
        ("response.output_item.added", {"item": {**item, "content": [], "status": "in_progress"}}),
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
    ]
    deltas: _Told = [("response.output_text.delta", {**at, "delta": piece, "logprobs": []}) for piece in plan.pieces]
    closing: _Told = [
        ("response.output_text.done", {**at, "text": part["text"], "logprobs": []}),
        ("response.content_part.done", {**at, "part": part}),
        ("response.output_item.done", {"item": item}),
    ]
    return opening, deltas, closing


def _refusal_parts(item: dict[str, Any], plan: Plan) -> tuple[_Told, _Told, _Told]:
    at = {"item_id": item["id"], "content_index": 0}
    part = item["content"][0]
    opening: _Told = [
        ("response.output_item.added", {"item": {**item, "content": [], "status": "in_progress"}}),
        ("response.content_part.added", {**at, "part": {**part, "refusal": ""}}),
    ]
    deltas: _Told = [("response.refusal.delta", {**at, "delta": piece}) for piece in plan.pieces]
    closing: _Told = [
        ("response.refusal.done", {**at, "refusal": part["refusal"]}),
        ("response.content_part.done", {**at, "part": part}),
        ("response.output_item.done", {"item": item}),
    ]
    return opening, deltas, closing


def _call_parts(item: dict[str, Any], plan: Plan) -> tuple[_Told, _Told, _Told]:
    at = {"item_id": item["id"]}
    arguments = item["arguments"]
    half = len(arguments) // 2
    kind = "response.function_call_arguments."
    opening: _Told = [
        ("response.output_item.added", {"item": {**item, "arguments": "", "status": "in_progress"}}),
    ]
    deltas: _Told = [(kind + "delta", {**at, "delta": part}) for part in (arguments[:half], arguments[half:]) if part]
    closing: _Told = [
        (kind + "done", {**at, "arguments": arguments}),
        ("response.output_item.done", {"item": item}),
    ]
    return opening, deltas, closing


_PARTS = {"reasoning": _reasoning_parts, "message": _message_parts, "function_call": _call_parts}


def _response(
    model: str, tail: str, plan: Plan, items: list[dict[str, Any]], usage: bytes, *, status: str | None = None
) -> dict[str, Any]:
    done = plan.finish in ("stop", "tool_calls")
    reason = INCOMPLETE.get(plan.finish, plan.finish)
    status = status or ("completed" if done else "incomplete")
    return {
        "id": f"resp_{tail}",
        "object": "response",
        "created_at": CREATED,
        "model": model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "output": items,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": msgspec.Raw(usage),
    }


def _usage(asked: Asked, output: int, reasoning: int) -> bytes:
    prompt = asked.tokens.prompt
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        % (prompt, asked.tokens.cached, output, reasoning, prompt + output)
    )
