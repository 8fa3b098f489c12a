"""The messages in OpenAI's chat request, and their conversion to the gateway's messages.

Messages are accepted in every form that OpenAI accepts. Errors name the path of the invalid value. In the resulting
conversation, every tool result has its call, and every call its result.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegate.errors import Refused, TooLarge
from tidegate.values import Attachment, Frozen, Message, ToolCall
from tidegate.web.chat.content_parts import MEDIA_PARTS, ContentPart, attachment_of, text_of_file

SYSTEM_ALONE = "The caller sent a system message and nothing else."
"""Replaces the missing user message in a request to a named session that contains only a system message. The system
message itself becomes part of the session's prompt."""

MOST_MEDIA = 50
"""Maximum number of pictures, audio files and documents in a request. Most of them require a separate process to
examine them."""

Label = Annotated[str, Meta(max_length=512)]


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


class ParsedMessages(Frozen, frozen=True):
    """The result of parsing a request's messages: the messages to add, the extra prompt, and the attachments."""

    messages: tuple[Message, ...]
    extra_prompt: str | None
    attachments: tuple[Attachment, ...] = ()


def parse_new_messages(messages: Sequence[ChatMessage], limit: int) -> ParsedMessages:
    """Parses a request to a named session. The gateway already has the history, so only messages after the last
    assistant message are new. Results from the caller's tools come first; all user messages are joined into one."""
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
    """Parses a request to an ephemeral session, which contains the entire conversation."""
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
    if not found:  # if there is only a system message, that message is answered
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
    `tool_calls` and the older `function_call` contains the call twice; the results that follow determine which of the
    two fields is used."""
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
    """Returns the id of the call to which a tool result belongs, as used in the resulting conversation."""
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
    """Returns the text and attachments of a user message. `number` is the message's position among the parsed ones."""
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
    """Refuses texts of more than `limit` bytes. Throughout this module, `limit` is limits.message_bytes."""
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise TooLarge(
            f"`messages[{index}].content` is larger than limits.message_bytes ({limit} bytes).",
            limit="limits.message_bytes",
            value=limit,
            param=f"messages[{index}].content",
        )
