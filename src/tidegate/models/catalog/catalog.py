"""The catalogue of known models (`catalog.toml`), overridden by the configuration.

The same name always has the same facts, whatever the order in the file: the most specific matching pattern wins.
Unknown models get safe defaults. The file is read once per start; only the facts about configured models are kept.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from tidegate.config import ModelSettings
from tidegate.models.catalog.facts import UNKNOWN_OUTPUT, UNKNOWN_TEXT, UNKNOWN_WINDOW, Facts, Prices, Thinking
from tidegate.values import Frozen

FILE = Path(__file__).with_name("catalog.toml")

CHAT_EFFORTS = ("low", "medium", "high")
"""The efforts that every endpoint with an OpenAI format accepts, if it accepts any."""

ANTHROPIC_EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""The efforts for Anthropic's API. "none", which switches thinking off, is not included because some models refuse
it."""

_VENDOR = re.compile(r".*/")
_DATE = re.compile(r"[-@]20\d\d-?[01]\d-?[0-3]\d$")
_FREE = ":free"
_LATEST = "-latest"


class Family(Frozen, frozen=True, forbid_unknown_fields=True):
    """A table in `catalog.toml`, which describes a family of models. The comment at the top of that file explains the
    keys."""

    window: int
    thinking: Thinking
    models: dict[str, list[float]]
    output: int | None = None
    vision: bool = False
    audio: bool = False
    efforts: tuple[str, ...] = ()
    chat: tuple[str, ...] | None = None
    long: tuple[int, float, float] | None = None
    minute: float = 0.0
    characters: float = 0.0


class Catalog:
    """All model families, by the patterns of their models' names."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = {pattern: family for family in families.values() for pattern in family.models}

    @classmethod
    def shipped(cls) -> Self:
        """Reads the file. Blocks for a few milliseconds, so call it in a thread if other tasks are running."""
        return cls(msgspec.convert(tomllib.loads(FILE.read_text("utf-8")), dict[str, Family]))

    def facts_of(self, settings: ModelSettings) -> Facts:
        """Returns the facts about a model. The model's settings take precedence over the catalogue."""
        if settings.api == "demo":
            from tidegate.models.demo.model import FACTS  # loaded only when it is configured

            window = settings.context_window  # the demo model has no real window; one can be set to try out compaction
            if window is None:
                return FACTS
            return msgspec.structs.replace(FACTS, window=window, output=settings.max_output or _output(window, None))
        pattern = self._find(settings.model)
        family = None if pattern is None else self._families[pattern]
        if settings.kind != "chat":
            return Facts(
                window=settings.context_window or (UNKNOWN_TEXT if family is None else family.window),
                output=0,
                prices=_prices(settings, pattern, family),
                known=family is not None or settings.context_window is not None or settings.kind != "embeddings",
            )
        window = settings.context_window or (UNKNOWN_WINDOW if family is None else family.window)
        thinking, efforts = _thinking(settings, family)
        return Facts(
            window=window,
            output=settings.max_output or _output(window, family),
            vision=_override(settings.vision, family is not None and family.vision),
            audio=_override(settings.audio, family is not None and family.audio),
            thinking=thinking,
            efforts=efforts,
            prices=_prices(settings, pattern, family),
            known=family is not None or (settings.context_window is not None and settings.vision is not None),
            thinking_unknown=family is None and settings.thinking is None,
        )

    def _find(self, name: str) -> str | None:
        for candidate in _candidates(name):
            fitting = [pattern for pattern in self._families if _fits(pattern, candidate)]
            if fitting:
                return max(fitting, key=lambda pattern: ("*" not in pattern, len(pattern), pattern))
        return None


def _candidates(name: str) -> Iterator[str]:
    """Yields the spellings of a name that the catalogue may contain, from the longest to the shortest."""
    tagged = _VENDOR.sub("", name.lower())
    bare = tagged.partition(":")[0]
    undated = _DATE.sub("", bare).removesuffix(_LATEST)
    # In `llama3.2:3b`, the tag is only a size; in `gemma4:31b`, it distinguishes models. Resellers write Claude
    # versions with a dot.
    spoken = (tagged.replace(":", "-"), bare, undated, undated.replace(".", "-"))
    yield from dict.fromkeys(spoken)


def _fits(pattern: str, name: str) -> bool:
    """Returns True if a name matches a pattern. `fnmatch` is not used because it would cache every compiled pattern."""
    head, *parts = pattern.split("*")
    if not parts:
        return name == head
    if not name.startswith(head):
        return False
    place = len(head)
    for part in parts[:-1]:
        if (found := name.find(part, place)) < 0:
            return False
        place = found + len(part)
    return name.endswith(parts[-1]) and len(name) - len(parts[-1]) >= place


def _override(setting: bool | None, known: bool) -> bool:
    return known if setting is None else setting


def _output(window: int, family: Family | None) -> int:
    known = UNKNOWN_OUTPUT if family is None or family.output is None else family.output
    # Even if the configured window is smaller than the model's own, it must leave room for a conversation.
    return min(known, window // 4)


def _thinking(settings: ModelSettings, family: Family | None) -> tuple[Thinking, tuple[str, ...]]:
    """Returns how the model's thinking effort is set, and its levels. Other vendors' models use the configured API's
    levels."""
    anthropic = settings.api == "anthropic"
    thinking: Thinking = "adaptive" if anthropic else "effort"
    efforts: tuple[str, ...] = ANTHROPIC_EFFORTS if anthropic else CHAT_EFFORTS
    if family is not None and family.thinking == "none":
        thinking = "none"
    elif family is not None and family.thinking == "budget" and anthropic:
        thinking = "budget"
    elif family is not None and (family.thinking == thinking or anthropic):
        efforts = family.chat if family.chat is not None and settings.api == "openai-chat" else family.efforts
    thinking = settings.thinking or thinking
    if settings.efforts is not None:
        efforts = settings.efforts
    return thinking, efforts if thinking in ("effort", "adaptive") else ()


def _prices(settings: ModelSettings, pattern: str | None, family: Family | None) -> Prices | None:
    if settings.price_minute is not None or settings.price_characters is not None:
        return Prices(0, 0, minute=settings.price_minute or 0.0, characters=settings.price_characters or 0.0)
    if settings.price_input is not None and settings.kind == "embeddings":
        return Prices(settings.price_input, 0)
    if settings.price_input is not None and settings.price_output is not None:
        return Prices(settings.price_input, settings.price_output, settings.price_cached, settings.price_written)
    if settings.model.endswith(_FREE):
        return Prices(input=0, output=0)
    if pattern is None or family is None or not family.models[pattern]:
        return None
    input, output, *others = family.models[pattern]
    cached, written, written_1h = (*others, None, None, None)[:3]
    long, input_times, output_times = family.long or (None, 1.0, 1.0)
    cache_write = written_1h if settings.cache_ttl == "1h" else written
    return Prices(input, output, cached, cache_write, long, input_times, output_times, family.minute, family.characters)
