"""Replay of a recording in place of the network."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.models.recording_files import NOWHERE, opened, outcome, recorded_request, recording, replaying, send, written
from tests.models.support import ANSWER_BYTES, CANARY, Slept, ask, settings
from tidegate.errors import ModelFailed
from tidegate.http_client import ConnectionFailed, Target, Timeouts
from tidegate.models import Models
from tidegate.models.recording.recording_file import Event, RecordedAnswer, RecordedPiece
from tidegate.security import Secret
from tidegate.values import Message


@pytest.mark.anyio
async def test_a_replayed_answer_is_the_recorded_one_and_no_connection_is_opened(
    server: ScriptedModel, tmp_path: Path
) -> None:
    """Text, pieces, tool calls, usage; the server is up but gets no request."""
    file = tmp_path / "talk.jsonl"
    texts = ("hello", "[words 40] [slow ms=1]", '[tool clock {"zone": "UTC"}]', "[say grüße ☂ aus dem watt]")
    async with recording(server, file) as model:
        then = [await outcome(model, text) for text in texts]
    came = server.counts["connections"]
    async with replaying(file, server.base_url) as (model, _):
        now = [await outcome(model, text) for text in texts]
    assert now == then
    assert server.counts["connections"] == came
    assert then[2][0].calls


FAILING = (
    "[status 400]",
    "[status 401]",
    "[status 404]",
    "[status 429 retry-after=1]",
    "[status 429 retry-after=3600]",
    "[status 500 echo]",
    "[cut after=2]",
    "[close]",
    "[hang]",
    "[hang after=2]",
    "[badjson after=1]",
    "[error after=2 code=server_error]",
    "[nodone] [cut after=3]",
    "[html]",
    "[words 9] [status 429 times=1 retry-after=1]",
    "[words 9] [cut after=4 times=1]",
)


@pytest.mark.anyio
async def test_recorded_failures_are_replayed_as_the_same_failures_without_waiting(
    server: ScriptedModel, tmp_path: Path
) -> None:
    """Statuses, broken and silent streams, and retries; with timeouts of an hour."""
    file = tmp_path / "talk.jsonl"
    impatient = {"retries": 1, "first_byte_timeout": 0.2, "idle_timeout": 0.2}
    async with recording(server, file, impatient) as model:
        then = [await outcome(model, text) for text in FAILING]
    assert CANARY not in file.read_text()
    slept = Slept()
    async with replaying(file, retries=1, sleep=slept) as (model, _):
        now = [await outcome(model, text) for text in FAILING]
    for text, one, other in zip(FAILING, then, now, strict=True):
        assert other == one, text
    assert {one[0] for one in then if isinstance(one[0], str)} >= {"rate", "timeout", "network", "protocol"}


@pytest.mark.anyio
async def test_replayed_models_retry_without_pauses(server: ScriptedModel, tmp_path: Path) -> None:
    """For any Retry-After, including a date in the past."""
    file = tmp_path / "talk.jsonl"
    async with recording(server, file) as model:
        await ask(model, "[status 429 times=2 retry-after=29] [say there]")
    replayer = await opened(file)
    chosen = {"main": settings(NOWHERE)}
    async with Models(chosen, replayer, Secret, ANSWER_BYTES, retry_policy=replayer.retry_policy) as models:
        with anyio.fail_after(10):
            assert (await ask(models.get("main"), "[status 429 times=2 retry-after=29] [say there]")).text == "there"


@pytest.mark.anyio
async def test_a_retry_after_date_gives_the_same_wait_as_when_recorded(tmp_path: Path) -> None:
    """An hour from then is an hour from now."""
    headers = {"retry-after": "Thu, 01 Jan 2026 01:00:00 GMT"}
    answer = RecordedAnswer(1, 5, "complete", status=429, headers=headers)
    file = written(tmp_path / "f", recorded_request(1, {}), answer)
    target = Target("POST", "http://x/v1/chat/completions", {})
    response = await (await opened(file)).request(target, [b"{}"], Timeouts(connect=1, first_byte=1, idle=1))
    assert response.headers["retry-after"] == "3600.0"


@pytest.mark.anyio
async def test_equal_requests_get_their_answers_in_order_and_then_the_last_again(tmp_path: Path) -> None:
    """Requests with differently formatted JSON are equal."""
    lines: list[Event] = []
    for number, said in enumerate(("one", "two"), 1):
        lines += (
            recorded_request(number, {"a": 1, "b": [2.0]}),
            RecordedAnswer(number, 1, "complete", status=200, pieces=[RecordedPiece(1, said)]),
        )
    replayer = await opened(written(tmp_path / "f", *lines))
    assert [await send(replayer, {"b": [2.0], "a": 1}) for _ in range(4)] == ["one", "two", "two", "two"]
    assert replayer.status().replayed == 4 and replayer.status().again == 2


@pytest.mark.anyio
async def test_an_interrupted_exchange_is_reported(server: ScriptedModel, tmp_path: Path) -> None:
    """And is not retried."""
    file = tmp_path / "talk.jsonl"
    async with recording(server, file) as model, anyio.create_task_group() as group:
        group.start_soon(outcome, model, "[hold before]")
        await server.held("before")
        group.cancel_scope.cancel()
    killed = tmp_path / "killed"
    killed.write_bytes(file.read_bytes().rsplit(b"\n", 2)[0] + b'\n{"event":"answered","id":1,"af')
    for path, why in ((file, "was cancelled before an answer started"), (killed, "exited before the answer ended")):
        async with replaying(path) as (model, _):
            with pytest.raises(ModelFailed, match=why) as failed:
                await ask(model, "[hold before]")
        assert not failed.value.retryable


@pytest.mark.anyio
async def test_an_unrecorded_request_fails_with_the_first_difference(server: ScriptedModel, tmp_path: Path) -> None:
    """X16: from the nearest recorded one; the differing values are for the caller and not for the log."""
    file = tmp_path / "talk.jsonl"
    first = Message(role="user", text="what time is it")
    answer = Message(role="assistant", text="It is ten o'clock in the lighthouse.")
    async with recording(server, file) as model:
        await ask(model, [first])
        await ask(model, [first, answer, Message(role="user", text="thanks")])
    late = Message(role="assistant", text="It is eleven o'clock in the lighthouse.")
    async with replaying(file) as (model, replayer):
        with pytest.raises(ModelFailed) as failed:
            await ask(model, [first, late, Message(role="user", text="thanks")])
        assert (failed.value.kind, failed.value.retryable) == ("invalid", False)
        assert f"{file}" in failed.value.brief
        assert "difference from the nearest one (number 2) is in messages[2].content." in failed.value.brief
        assert "ten o'clock" in failed.value.message and "eleven o'clock" in failed.value.message
        assert "o'clock" not in failed.value.brief
        assert replayer.status().unknown == 1


@pytest.mark.anyio
async def test_a_request_to_another_path_lists_the_recorded_paths(tmp_path: Path) -> None:
    """As with a wrong base_url."""
    file = written(tmp_path / "f", recorded_request(1, {}), RecordedAnswer(1, 1, "complete", status=200))
    with pytest.raises(ModelFailed, match=r"no request POST /v2/x, only POST /v1/chat/completions; check base_url"):
        await send(await opened(file), {}, "/v2/x")


@pytest.mark.parametrize(
    ("recorded", "now", "place", "then_said", "now_said"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "b", "nothing", "2"),
        ({"a": 1, "b": 2}, {"a": 1}, "b", "2", "nothing"),
        ({"a": True}, {"a": 1}, "a", "true", "1"),
        ({"a": [1, 2]}, {"a": [1]}, "a[1]", "2", "nothing"),
        ({"a": "x"}, {"a": "xy"}, "a", "'x'", "'xy'"),
        ({"a": "x"}, {"a": "y" * 70}, "a", "'x'", f"'{'y' * 60}…'"),
        (
            {"a": "c" * 90 + "x" * 90},
            {"a": "c" * 90 + "y"},
            "a",
            "'…" + "c" * 15 + "x" * 45 + "…'",
            "'…" + "c" * 15 + "y'",
        ),
        ([1], {}, "the whole body", "[1]", "{}"),
    ],
)
@pytest.mark.anyio
async def test_a_difference_is_shown_with_both_sides(
    tmp_path: Path, recorded: Any, now: Any, place: str, then_said: str, now_said: str
) -> None:
    """Also if a side is longer or missing."""
    file = written(tmp_path / "f", recorded_request(1, recorded), RecordedAnswer(1, 1, "complete", status=200))
    with pytest.raises(ModelFailed) as failed:
        await send(await opened(file), now)
    assert f" is in {place}." in failed.value.brief
    assert failed.value.endpoint_message == f"recorded: {then_said}; now: {now_said}"


@pytest.mark.anyio
async def test_a_file_that_is_removed_during_the_replay_is_reported(tmp_path: Path) -> None:
    """As a failure of the turn."""
    file = written(tmp_path / "f", recorded_request(1, {}), RecordedAnswer(1, 1, "complete", status=200))
    replayer = await opened(file)
    file.unlink()
    for body in ({}, {"other": 1}):
        with pytest.raises(ModelFailed, match="changed or removed"):
            await send(replayer, body)


@pytest.mark.anyio
async def test_a_recorded_connection_failure_is_replayed(tmp_path: Path) -> None:
    """Before an answer, and in the middle of one."""
    before, middle = (
        RecordedAnswer(1, 1, "unconnected", "no route"),
        RecordedAnswer(2, 1, "silent", status=200, pieces=[RecordedPiece(1, "x")]),
    )
    replayer = await opened(written(tmp_path / "f", recorded_request(1, 1), before, recorded_request(2, 2), middle))
    for body, trouble in ((1, "unconnected"), (2, "silent")):
        with pytest.raises(ConnectionFailed) as failed:
            await send(replayer, body)
        assert failed.value.trouble == trouble
