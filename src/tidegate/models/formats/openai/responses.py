"""OpenAI's Responses, as one format of an HTTP model.

Guarantee: it holds nothing of a conversation; wire and answers are what `responses_wire` and `responses_answer`
promise.
"""

from collections.abc import Callable, Mapping

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.openai.responses_answer import ResponsesAnswer
from tidegate.models.formats.openai.responses_wire import API, ResponsesWire


class OpenAIResponses:
    api = API
    path = "/responses"

    def __init__(self, model: str, facts: Facts) -> None:
        self.facts = facts
        self.wire = ResponsesWire(model, facts)

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def answer(self, limit: int, on_text: Callable[[str], None]) -> ResponsesAnswer:
        return ResponsesAnswer(limit, on_text)
