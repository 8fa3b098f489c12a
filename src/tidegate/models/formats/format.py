"""Provider formats: the interface of a format, and the choice of one for a model.

To add a format, write a package beside `openai` and `anthropic` with a class that satisfies `Format`, name its `api`
in `config/settings.py`, and return it from `format_for`. `openai/responses.py` and `openai/responses_answer.py` are a
complete example: requests and answers of one API.

A format belongs to one configured model and holds nothing per conversation.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from tidegate.config import ModelSettings
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import IncomingAnswer
from tidegate.models.interface import Wire


class Format(Protocol):
    """How one API is spoken: what is sent, and how the answer is read."""

    @property
    def api(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def path(self) -> str:
        """Of its endpoint, below `base_url`."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts:
        """Of the model that it is made for."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """By which it knows who asks, and whatever else it insists on."""
        ...

    def answer(self, limit: int, on_text: Callable[[str], None]) -> IncomingAnswer:
        """An answer that is about to arrive, of at most so many bytes."""
        ...


def format_for(settings: ModelSettings, facts: Facts) -> Format:
    """How the model's API is spoken; only the formats that are configured are imported."""
    match settings.api:
        case "openai-responses":
            from tidegate.models.formats.openai.responses import OpenAIResponses

            return OpenAIResponses(settings.model, facts)
        case "anthropic":
            from tidegate.models.formats.anthropic.messages import AnthropicMessages

            return AnthropicMessages(settings.model, facts, cache_ttl=settings.cache_ttl or "5m")
        case _:
            from tidegate.models.formats.openai.chat import OpenAIChat

            return OpenAIChat(settings.base_url, settings.model, facts)
