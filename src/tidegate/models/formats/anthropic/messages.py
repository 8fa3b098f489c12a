"""Anthropic's Messages API, as one format of an HTTP model.

Guarantee: it holds nothing of a conversation; wire and answers are what `wire` and `answer` promise.
"""

from collections.abc import Callable, Mapping

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.anthropic.messages_answer import AnthropicAnswer
from tidegate.models.formats.anthropic.messages_parameters import sampling_of
from tidegate.models.formats.anthropic.messages_wire import API, AnthropicWire, CacheTtl

VERSION = "2026-10-21"
SAMPLED_VERSION = "2023-06-01"
"""The newest refuses temperature and top_p for every model; those that take them are asked by the one before, which is
also the only one that other makers' servers know."""


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
