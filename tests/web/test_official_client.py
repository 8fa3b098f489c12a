"""The official `openai` package, unchanged, against a gateway."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from bench.scripted_model import ScriptedModel
from tests.core import open_ids
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tidegate.web.app.app import App

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."


@contextlib.asynccontextmanager
async def client(h: InProcessGateway, **options: object) -> AsyncIterator[AsyncOpenAI]:
    settings = {"base_url": f"{h.url}/v1", "api_key": h.key, "timeout": WAIT, "max_retries": 0, **options}
    async with AsyncOpenAI(**settings) as made:  # type: ignore[arg-type]
        yield made


def user(text: str | None) -> list[dict[str, str | None]]:
    return [{"role": "user", "content": text}]


async def test_it_sends_and_streams(gateway: InProcessGateway) -> None:
    """H10: complete and streamed, with usage."""
    async with client(gateway) as openai_client:
        whole = await openai_client.chat.completions.create(model="main", messages=user("hello"))  # type: ignore[call-overload]
        assert whole.choices[0].message.content == ANSWER
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage.total_tokens > 0
        assert whole.usage.prompt_tokens_details.cached_tokens >= 0
        stream = await openai_client.chat.completions.create(  # type: ignore[call-overload]
            model="main", messages=user("x [tool clock {}]"), stream=True, stream_options={"include_usage": True}
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == ANSWER
        assert usage is not None and usage.total_tokens > 0


async def test_it_lists_models_and_names_its_conversations(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H02, H03: extra headers are all that a named session needs."""
    async with client(gateway, default_headers={"X-Session-Id": "notes"}) as openai_client:
        assert [entry.id async for entry in openai_client.models.list()] == ["main"]
        assert (await openai_client.models.retrieve("main")).id == "main"
        await openai_client.chat.completions.create(model="main", messages=user("one"))  # type: ignore[call-overload]
        raw = await openai_client.chat.completions.with_raw_response.create(model="main", messages=user("two"))  # type: ignore[call-overload]
        assert raw.headers["X-Turn-Id"].startswith("t_")
    said = [m["content"] for m in model.recorded[-1].decoded()["messages"] if m["role"] == "user"]
    assert said == ["one", "two"]


async def test_the_synchronous_client_works_as_well(gateway: InProcessGateway) -> None:
    """H10: from a thread, as in a script."""

    def script() -> tuple[str, str]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, timeout=WAIT, max_retries=0) as sync:
            whole = sync.chat.completions.create(model="main", messages=user("hello"))  # type: ignore[call-overload]
            stream = sync.chat.completions.create(model="main", messages=user("hello"), stream=True)  # type: ignore[call-overload]
            return whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with anyio.fail_after(WAIT):
        assert await anyio.to_thread.run_sync(script) == (ANSWER, ANSWER)


async def test_errors_become_its_own_exceptions(gateway: InProcessGateway) -> None:
    """H20, H21, H22: each status raises the exception that a program expects, with the gateway's message."""
    async with client(gateway) as good, client(gateway, api_key="wrong") as bad:
        create = good.chat.completions.create
        with pytest.raises(openai.AuthenticationError, match="key"):
            await bad.chat.completions.create(model="main", messages=user("x"))  # type: ignore[call-overload]
        with pytest.raises(openai.NotFoundError, match="main") as unknown:
            await create(model="nobody", messages=user("x"))  # type: ignore[call-overload]
        assert unknown.value.code == "model_not_found"
        assert unknown.value.param == "model"
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content"):
            await create(model="main", messages=user(None))  # type: ignore[call-overload]
        with pytest.raises(openai.InternalServerError) as failed:
            await create(model="main", messages=user("x [status 500]"))  # type: ignore[call-overload]
        assert failed.value.status_code in (502, 503)
        with pytest.raises(openai.UnprocessableEntityError):
            for text in ("one", "two"):
                await create(model="main", messages=user(text), extra_headers={"Idempotency-Key": "k"})  # type: ignore[call-overload]
        with pytest.raises(openai.ConflictError):
            for text in ("one", "two"):
                messages = [{"role": "system", "content": text}, *user("x")]
                await create(model="main", messages=messages, extra_headers={"X-Session-Id": "n"})  # type: ignore[call-overload]


async def test_an_error_in_a_begun_stream_is_raised(gateway: InProcessGateway) -> None:
    """H22: after text was sent, as an event that the client raises."""
    async with client(gateway) as openai_client:
        stream = await openai_client.chat.completions.create(  # type: ignore[call-overload]
            model="main", messages=user("x [words 40] [cut after=5]"), stream=True
        )
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_a_stream_that_fails_before_it_began_has_its_status(gateway: InProcessGateway) -> None:
    """H22: the response begins with the first text."""
    async with client(gateway) as openai_client:
        with pytest.raises(openai.InternalServerError) as failed:
            await openai_client.chat.completions.create(  # type: ignore[call-overload]
                model="main", messages=user("x [status 503]"), stream=True
            )
        assert failed.value.status_code == 503


@pytest.mark.parametrize("session", ["notes", None])
@pytest.mark.parametrize("stream", [False, True])
async def test_its_own_retry_does_not_make_a_second_turn(
    home: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, session: str | None, stream: bool
) -> None:
    """H19: the connection breaks after the message was accepted; the client retries and gets the one answer."""
    dropped = []
    call_app = App.__call__

    async def drop_the_first(self: App, scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["path"] != "/v1/chat/completions" or dropped:
            return await call_app(self, scope, receive, send)

        async def broken(message):  # type: ignore[no-untyped-def]
            dropped.append(message)
            scope["tidegate.abort"]()

        return await call_app(self, scope, receive, broken)

    monkeypatch.setattr(App, "__call__", drop_the_first)
    headers = {"X-Session-Id": session} if session else {}
    async with (
        in_process_gateway(home, model=model) as h,
        client(h, max_retries=2, default_headers=headers) as openai_client,
    ):
        created = await openai_client.chat.completions.create(  # type: ignore[call-overload]
            model="main", messages=user("hello"), stream=stream
        )
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in created])
        else:
            text = created.choices[0].message.content
        assert text == ANSWER
        assert dropped
        assert len(model.recorded) == 1


IMPATIENCE = 1.0
"""Seconds that the client's first attempt waits; a later one is given all the time there is."""


async def timed_out(h: InProcessGateway, model: ScriptedModel, headers: dict[str, str], *, stream: bool = False) -> str:
    """The client's result when its first attempt times out while the model is held and it retries. The model is
    released when the second attempt has arrived."""
    answers: list[str] = []

    async def ask(impatient: AsyncOpenAI) -> None:
        created = await impatient.chat.completions.create(  # type: ignore[call-overload]
            model="main", messages=user("hello [hold there times=1]"), stream=stream
        )
        if stream:
            answers.append("".join([chunk.choices[0].delta.content or "" async for chunk in created]))
        else:
            answers.append(created.choices[0].message.content)

    with anyio.fail_after(WAIT):
        options = {"timeout": IMPATIENCE, "max_retries": 1, "default_headers": headers}
        async with client(h, **options) as impatient, anyio.create_task_group() as group:
            group.start_soon(ask, impatient)
            await model.held("there")
            impatient.timeout = WAIT
            [turn] = await open_ids(h)
            while (live := h.service.turn_log(turn)) is not None and live.readers < 2:
                await anyio.sleep(0.005)
            model.release("there")
    [answer] = answers
    return answer


@pytest.mark.parametrize(
    ("headers", "stream"),
    [({"X-Session-Id": "notes"}, False), ({"X-Session-Id": "notes"}, True), ({"X-On-Disconnect": "continue"}, False)],
)
async def test_its_retry_after_a_timeout_joins_a_turn_that_continued(
    gateway: InProcessGateway, model: ScriptedModel, headers: dict[str, str], stream: bool
) -> None:
    """H15, H19: the turn continued; the message is stored once, and the model was called once."""
    assert await timed_out(gateway, model, headers, stream=stream) == ANSWER
    assert len(model.recorded) == 1
    assert gateway.service.status().turns.answered == 1
    if "X-Session-Id" in headers:
        async with client(gateway, default_headers=headers) as patient:
            await patient.chat.completions.create(model="main", messages=user("next"))  # type: ignore[call-overload]
        said = [m["content"] for m in model.recorded[-1].decoded()["messages"] if m["role"] == "user"]
        assert said == ["hello [hold there times=1]", "next"]


async def test_its_retry_after_a_timeout_restarts_a_turn_that_was_stopped(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H16, H19: a call without a session ends with its reader, including its model request; the retry is a new turn."""
    assert await timed_out(gateway, model, {}) == ANSWER
    assert len(model.recorded) == 2
    turns = gateway.service.status().turns
    assert (turns.stopped, turns.answered) == (1, 1)
    assert model.stats()["disconnects"] == 1
