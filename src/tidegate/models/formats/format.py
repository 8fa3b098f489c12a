"""Provider formats: the interface of a format, and the choice of a format for a model.

To add a format, write a package next to `openai` and `anthropic` with a class that implements `Format`, add its `api`
to `config/tables/models.py`, and return it from `format_for`. For a complete example of one API's requests and answers,
see `openai/responses.py` and `openai/responses_answer.py`.

A format belongs to one configured model and stores nothing per conversation.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from tidegate.config import ModelSettings
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import IncomingAnswer
from tidegate.models.interface import Wire


class Format(Protocol):
    """One provider API, for one model: its endpoint, its requests and its answers."""

    @property
    def api(self) -> str:
        """The API's name in the configuration."""
        ...

    @property
    def path(self) -> str:
        """The endpoint's path below `base_url`."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts:
        """The facts about the model."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Returns the headers with the key and any others that the API requires."""
        ...

    def answer(self, limit: int, on_text: Callable[[str], None]) -> IncomingAnswer:
        """Returns a parser for one incoming answer of at most `limit` bytes."""
        ...


def format_for(settings: ModelSettings, facts: Facts) -> Format:
    """Returns the format for a model's API. Only formats used in the configuration are imported."""
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
