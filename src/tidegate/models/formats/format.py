"""Provider formats: the interface of a format, and the choice of one for a model.

To add a format, write a package next to `openai` and `anthropic` with a class that satisfies `Format`, name its `api`
in `config/tables/models.py`, and return it from `format_for`. `openai/responses.py` and `openai/responses_answer.py`
are a complete example: requests and answers of one API. A format belongs to one configured model and holds nothing per
conversation.
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
        """The name of the API in the configuration."""
        ...

    @property
    def path(self) -> str:
        """The path of the endpoint below `base_url`."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts:
        """The facts of the model."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Returns the headers with the key, and any others that the API requires."""
        ...

    def answer(self, limit: int, on_text: Callable[[str], None]) -> IncomingAnswer:
        """Returns a parser for one incoming answer of at most `limit` bytes."""
        ...


def format_for(settings: ModelSettings, facts: Facts) -> Format:
    """Returns the format for a model's API. Only the formats that the configuration uses are imported."""
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
