"""Model steps with fallback, over real sockets: one model after the other, each once, with the right events."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from tests.faulty_model import NAMES, FaultyModel
from tests.models.support import ANSWER_BYTES, PREFIX, settings
from tidegate.agent import Conversation, ModelStep, SpendGuard
from tidegate.agent.model_step import FallBack, combined_failure
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models import Model, Models
from tidegate.security import Secret
from tidegate.tools import Toolset
from tidegate.values import Call, Event, Message, TextDelta, TextReset, Usage

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."


class RecordingTurn:
    """A turn that records events and cut calls: the part of `Turn` that a model step needs."""

    id = "t_test"
    session = "s_test"
    incoming = ()

    def __init__(self) -> None:
        self.usage = Usage()
        self.events: list[Event] = []
        self.cuts: list[tuple[str, Usage]] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def cut(self, model: str, usage: Usage) -> None:
        self.cuts.append((model, usage))

    @property
    def resets(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, TextReset)]

    @property
    def shown(self) -> str:
        """The text as shown by a client that honours resets."""
        text = ""
        for event in self.events:
            text = "" if isinstance(event, TextReset) else text + event.text if isinstance(event, TextDelta) else text
        return text


class Chain:
    """Falls back along the chain, and records the failures."""

    def __init__(self, models: Sequence[Model], messages: Sequence[Message]) -> None:
        self.models = models
        self._messages = messages
        self.failures: list[tuple[list[str], str]] = []
        self.made: list[Conversation] = []

    def talk(self, model: Model) -> Conversation:
        conversation = Conversation(
            model=model,
            lease=model.lease(),
            prefix=model.wire.encode_prefix(PREFIX),
            tools=Toolset(),
            signature=model.signature,
            messages=self._messages,
        )
        self.made.append(conversation)
        return conversation

    async def __call__(
        self, last: Conversation, failed: tuple[Model, ...], failure: ModelFailed
    ) -> tuple[Conversation, SpendGuard] | None:
        self.failures.append(([model.name for model in failed], failure.kind))
        rest = [model for model in self.models if model not in failed]
        return (self.talk(rest[0]), SpendGuard(model=rest[0].name)) if rest else None


@asynccontextmanager
async def chained(server: FaultyModel, said: str = "hello") -> AsyncIterator[Chain]:
    one = settings(server.base_url, retries=0, idle_timeout=0.3, first_byte_timeout=0.3)
    configured = {name: msgspec.structs.replace(one, model=name) for name in NAMES}
    async with (
        HttpClient() as clients,
        Models(configured, clients, lambda reference: Secret("x"), ANSWER_BYTES) as models,
    ):
        chain = Chain([models.get(name) for name in NAMES], [Message(role="user", text=said)])
        try:
            yield chain
        finally:
            for conversation in chain.made:
                await conversation.release()
            assert clients.stats().leases == {}
            assert clients.stats().busy == 0


async def ask(chain: Chain, turn: RecordingTurn, fall_back: FallBack | None = None) -> tuple[ModelStep, Message]:
    first = chain.talk(chain.models[0])
    model_step = ModelStep(first, SpendGuard(model="first"), fall_back or chain)
    with anyio.fail_after(20):
        return model_step, await model_step.run(turn, Call())  # type: ignore[arg-type]


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


async def test_no_other_model_is_asked_if_the_first_answers(server: FaultyModel) -> None:
    async with chained(server) as chain:
        turn = RecordingTurn()
        model_step, answer = await ask(chain, turn)
        assert (answer.text, answer.model, turn.shown) == (ANSWER, "first", ANSWER)
        assert model_step.conversation.model.name == model_step.spend_guard.model == "first"
    assert server.requested == ["first"]
    assert chain.failures == []


@pytest.mark.parametrize(
    ("directive", "kind"),
    [
        ("[status 503]", "overloaded"),
        ("[status 429]", "rate"),
        ("[status 402]", "quota"),
        ("[status 401]", "authorisation"),
        ("[status 400]", "invalid"),
        ("[close]", "network"),
        ("[hang]", "timeout"),
        ("[html]", "protocol"),
        ("[cut after=0]", "network"),
        ("[badjson after=0]", "protocol"),
    ],
)
async def test_if_a_model_fails_silently_the_next_is_asked_without_a_reset(
    server: FaultyModel, directive: str, kind: str
) -> None:
    server.directives["first"] = directive
    async with chained(server) as chain:
        turn = RecordingTurn()
        model_step, answer = await ask(chain, turn)
        assert (answer.text, answer.model, turn.shown) == (ANSWER, "second", ANSWER)
        assert model_step.conversation.model.name == model_step.spend_guard.model == "second"
        assert (turn.resets, turn.cuts) == ([], [])
    assert server.requested == ["first", "second"]
    assert chain.failures == [(["first"], kind)]


@pytest.mark.parametrize("directive", ["[cut after=3]", "[hang after=3]", "[error after=3]", "[badjson after=3]"])
async def test_text_of_a_failed_model_is_withdrawn_before_the_next_starts(server: FaultyModel, directive: str) -> None:
    """Each call that was cut off is charged under the name of its own model."""
    server.directives |= {"first": directive, "second": directive}
    async with chained(server) as chain:
        turn = RecordingTurn()
        _, answer = await ask(chain, turn)
        assert (answer.text, answer.model, turn.shown) == (ANSWER, "third", ANSWER)
        assert len(turn.resets) == 2
        assert [model for model, _ in turn.cuts] == ["first", "second"]
        assert all(usage.estimated and usage.input > 0 and usage.output > 0 for _, usage in turn.cuts)
    assert server.requested == list(NAMES)


async def test_if_all_models_fail_the_failure_names_all_and_has_the_kind_of_the_first(server: FaultyModel) -> None:
    server.directives |= {"first": "[status 429 retry-after=7]", "second": "[status 401]", "third": "[status 400]"}
    async with chained(server) as chain:
        turn = RecordingTurn()
        with pytest.raises(ModelFailed) as caught:
            await ask(chain, turn)
    assert server.requested == list(NAMES)
    told = caught.value.message
    for name in NAMES:
        assert told.count(f"Model '{name}'") == 1
    assert told.index("'first'") < told.index("'second'") < told.index("'third'")
    assert (caught.value.kind, caught.value.retryable, caught.value.retry_after) == ("rate", True, 7.0)
    assert [names for names, _ in chain.failures] == [["first"], ["first", "second"], list(NAMES)]


async def test_without_a_fallback_the_failure_is_unchanged(server: FaultyModel) -> None:
    server.directives["first"] = "[words 9] [cut after=4]"

    async def nobody(*_: object) -> None:
        return None

    async with chained(server) as chain:
        turn = RecordingTurn()
        with pytest.raises(ModelFailed) as caught:
            await ask(chain, turn, nobody)
    assert (caught.value.kind, caught.value.partial_answer) == ("network", True)
    assert turn.resets == [], "the reader decides what to do with an incomplete text"


async def test_each_step_may_ask_every_model_again(server: FaultyModel) -> None:
    async with chained(server) as chain:
        server.directives["first"] = "[status 503]"
        turn = RecordingTurn()
        model_step, _ = await ask(chain, turn)
        server.directives = {"second": "[status 503]"}
        with anyio.fail_after(20):
            answer = await model_step.run(turn, Call())  # type: ignore[arg-type]
        assert answer.model == "first"
    assert server.requested == ["first", "second", "second", "first"]


async def test_a_cancelled_step_asks_no_other_model(server: FaultyModel) -> None:
    async with chained(server, "[hold it]") as chain:
        turn = RecordingTurn()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, chain, turn)
            with anyio.fail_after(20):
                await server.held("it")
            group.cancel_scope.cancel()
        assert [model for model, _ in turn.cuts] == ["first"]
    assert server.requested == ["first"]


def test_a_combined_failure_has_one_sentence_for_each() -> None:
    first = ModelFailed("Model 'a': one.", kind="quota", retryable=False, endpoint_message="private words")
    second = ModelFailed(
        "Model 'b': two.", kind="network", retryable=True, endpoint_message="other words", partial_answer=True
    )
    told = combined_failure(first, second)
    assert told.brief == "Model 'a': one. Another model was tried. Model 'b': two."
    assert told.message == f"{told.brief} It said: other words"
    assert (told.kind, told.retryable, told.partial_answer) == ("quota", True, True)
