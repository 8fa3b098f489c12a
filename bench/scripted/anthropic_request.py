"""Requests of the Messages format, with strict types.

Unknown fields, roles and blocks are refused with errors in the provider's form (`messages.0.content.1: …`). Rules that
types cannot express are in `anthropic_rules`.
"""

import json
import re
from typing import Any, Literal

import msgspec

from bench.scripted.interface import Refusal
from bench.scripted.toolset import check_unique

_TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`(?: - at `\$(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `([^`]*)`(?: - at `\$(.*)`)?$", re.DOTALL)
_OTHER = re.compile(r"^(.*?)(?: - at `\$(.*)`)?$", re.DOTALL)


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class CacheControl(_Strict, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class Text(_Strict, frozen=True, tag_field="type", tag="text"):
    text: str
    cache_control: CacheControl | None = None
    citations: tuple[Any, ...] | None = None


class Base64Source(_Strict, frozen=True, tag_field="type", tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(_Strict, frozen=True, tag_field="type", tag="url"):
    url: str


class Image(_Strict, frozen=True, tag_field="type", tag="image"):
    source: Base64Source | UrlSource
    cache_control: CacheControl | None = None


class PdfSource(_Strict, frozen=True, tag_field="type", tag="base64"):
    media_type: Literal["application/pdf"]
    data: str


class Document(_Strict, frozen=True, tag_field="type", tag="document"):
    source: PdfSource
    title: str | None = None
    cache_control: CacheControl | None = None


class ToolUse(_Strict, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResult(_Strict, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | tuple[Text | Image | Document, ...] | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None


class Thinking(_Strict, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class Redacted(_Strict, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


Block = Text | Image | Document | ToolUse | ToolResult | Thinking | Redacted


class Message(_Strict, frozen=True):
    role: Literal["user", "assistant"]
    content: str | tuple[Block, ...]

    def blocks(self) -> tuple[Block, ...]:
        return (Text(text=self.content),) if isinstance(self.content, str) else self.content

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


class ThinkingEnabled(_Strict, frozen=True, tag_field="type", tag="enabled"):
    budget_tokens: int
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(_Strict, frozen=True, tag_field="type", tag="adaptive"):
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(_Strict, frozen=True, tag_field="type", tag="disabled"):
    pass


class OutputFormat(_Strict, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(_Strict, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ChoiceAuto(_Strict, frozen=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool = False


class ChoiceAny(_Strict, frozen=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool = False


class ChoiceTool(_Strict, frozen=True, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool = False


class ChoiceNone(_Strict, frozen=True, tag_field="type", tag="none"):
    pass


class Metadata(_Strict, frozen=True):
    user_id: str | None = None


class Request(_Strict, frozen=True):
    model: str
    max_tokens: int
    messages: tuple[Message, ...]
    stream: bool = False
    system: str | tuple[Text, ...] = ()
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: ChoiceAuto | ChoiceAny | ChoiceTool | ChoiceNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    metadata: Metadata | None = None
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @property
    def thinks(self) -> bool:
        return isinstance(self.thinking, ThinkingEnabled | ThinkingAdaptive)

    def system_blocks(self) -> tuple[Text, ...]:
        if isinstance(self.system, str):
            return (Text(text=self.system),) if self.system else ()
        return self.system


class InputSchema(msgspec.Struct, frozen=True):
    """Only the type is checked; the rest is any JSON schema."""

    type: Literal["object"]


class Tool(_Strict, frozen=True):
    name: str
    input_schema: InputSchema
    description: str = ""
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None


class Toolset(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    written: tuple[str, ...]
    """The canonical content of each tool, without cache marks."""
    digests: tuple[int, ...]
    marks: tuple[CacheControl | None, ...]


_request = msgspec.json.Decoder(Request).decode
_tools = msgspec.json.Decoder(tuple[Tool, ...]).decode


def read_request(body: bytes) -> Request:
    """Decode a request without checking its rules. Tools are decoded once for the same bytes."""
    try:
        return _request(body)
    except msgspec.ValidationError as error:
        raise Refusal(_told(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("The request body is not valid JSON.") from error


def check_tools(raw: bytes) -> Toolset:
    try:
        tools = _tools(raw)
    except msgspec.ValidationError as error:
        raise Refusal("tools." + _told(str(error))) from error
    for place, tool in enumerate(tools):
        if not _TOOL_NAME.match(tool.name):
            raise Refusal(f"tools.{place}.custom.name: String should match pattern '{_TOOL_NAME.pattern}'")
    names = tuple(tool.name for tool in tools)
    check_unique(names)
    written = []
    for tool in msgspec.json.decode(raw):
        tool.pop("cache_control", None)
        written.append(json.dumps(tool, sort_keys=True))
    return Toolset(
        names=names,
        written=tuple(written),
        digests=tuple(hash(text) for text in written),
        marks=tuple(tool.cache_control for tool in tools),
    )


def _told(said: str) -> str:
    """A decoder's error in the provider's form: first the location, then the problem."""
    if found := _UNKNOWN.match(said):
        return f"{_place(found[2], found[1])}: Extra inputs are not permitted"
    if found := _MISSING.match(said):
        return f"{_place(found[2], found[1])}: Field required"
    found = _OTHER.match(said)
    assert found is not None
    return f"{_place(found[2], '') or 'body'}: {found[1]}"


def _place(path: str | None, name: str) -> str:
    parts = re.findall(r"\[(\d+)\]|\.([^.\[]+)", path or "")
    return ".".join([*(number or field for number, field in parts), *([name] if name else [])])
