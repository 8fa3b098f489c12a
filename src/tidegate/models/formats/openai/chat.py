"""OpenAI's chat completions, as one format of an HTTP model.

Guarantee: it holds nothing of a conversation; wire and answers are what `chat_wire` and `chat_answer` promise.
"""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.openai.chat_answer import ChatAnswer
from tidegate.models.formats.openai.chat_wire import API, ChatWire

# OpenAI's own services know the output limit by its newer name only.
_NEWER_HOSTS = ("api.openai.com", ".openai.azure.com")
# Refuses a conversation in which an answer has not even an empty thought.
_THOUGHTFUL_HOST = "api.deepseek.com"
# Refuses a call without its mark, except with this one, which it offers for calls that are not its own.
_MARKING_HOST = "generativelanguage.googleapis.com"
# Refuses a call whose id is not as its own are.
_SHORT_ID_HOST = "api.mistral.ai"
# Refuse a message with a name.
_NAMELESS_HOSTS = frozenset({"api.mistral.ai", "api.groq.com", "api.cerebras.ai"})
_FOREIGN_MARK = b'{"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}}'


class OpenAIChat:
    api = API
    path = "/chat/completions"

    def __init__(self, base_url: str, model: str, facts: Facts) -> None:
        host = urlsplit(base_url).hostname or ""
        self.facts = facts
        self.wire = ChatWire(
            model,
            facts,
            completion_tokens=host.endswith(_NEWER_HOSTS),
            names=host not in _NAMELESS_HOSTS,
            missing_thought=b'{"reasoning_content":""}' if host == _THOUGHTFUL_HOST else b"",
            missing_mark=_FOREIGN_MARK if host == _MARKING_HOST else b"",
            short_ids=host == _SHORT_ID_HOST,
        )

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def answer(self, limit: int, on_text: Callable[[str], None]) -> ChatAnswer:
        return ChatAnswer(limit, on_text)
