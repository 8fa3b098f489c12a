"""Recording of model traffic."""

import asyncio
import resource
import stat
import threading
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.logs import capture_logs
from tests.models.raw_server import answering
from tests.models.recording_files import REDACTOR, WAIT, lines_of, outcome, read, recording, replaying
from tests.models.support import CANARY, ask, configured
from tidegate.errors import Misconfigured, ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models.recording import writer as pens
from tidegate.models.recording.recorder import TransportRecorder
from tidegate.models.recording.recording_file import Event, RecordedAnswer, RecordedRequest, RecordingStopped
from tidegate.models.recording.writer import RecordingWriter
from tidegate.security import HIDDEN, Redactor


@pytest.mark.anyio
async def test_no_credential_is_in_the_file(server: ScriptedModel, tmp_path: Path) -> None:
    """X15: not from its own header, other headers, the user's text, an echo of the endpoint, or the model's text in
    pieces."""
    file = tmp_path / "talk.jsonl"
    headers = {"X-House": "env:CANARY", "X-Team": "harbour", "Cookie": "env:CANARY"}
    async with recording(server, file, {"headers": headers, "retries": 0}) as model:
        said = await ask(model, f"my key is {CANARY} [say {' '.join(CANARY)}]")
        assert said.text.replace(" ", "") == CANARY
        for text in (f"[say it is {CANARY} indeed]", "[status 401 echo]", "[status 500 echo]", "[error after=1 quote]"):
            await outcome(model, f"{text} {CANARY}")
    text = file.read_text()
    assert CANARY not in text
    first = (await read(file))[0]
    assert isinstance(first, RecordedRequest)
    hidden = {name for name, value in first.headers.items() if value == HIDDEN}
    assert hidden == {"authorization", "x-house", "cookie"}
    assert first.headers["x-team"] == "harbour"
    assert "Your credential was Bearer [hidden]" in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_redacted_is_left_out_and_recording_continues(tmp_path: Path) -> None:
    """X15: extremely nested JSON neither stops the recording nor is written without redaction."""
    file = tmp_path / "talk.jsonl"
    nested = b"[" * 900 + b'"%b"' % CANARY.encode() + b"]" * 900
    said = [nested, b"1"]

    async def answer(writer: asyncio.StreamWriter) -> None:
        chunk = b'{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}],"x":%b}' % said.pop(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"data: %b\n\ndata: [DONE]\n\n" % chunk)

    async with (
        answering(answer) as url,
        HttpClient() as clients,
        TransportRecorder(clients, file, REDACTOR) as recorder,
        configured(url, clients=recorder) as model,
    ):
        assert [(await ask(model, "x")).text, (await ask(model, "y")).text] == ["hi", "hi"]
    ends = [event for event in await read(file) if isinstance(event, RecordedAnswer)]
    assert [(len(end.pieces) > 0, end.left_out > 0) for end in ends] == [(False, True), (True, False)]
    assert CANARY not in file.read_text()


@pytest.mark.anyio
async def test_a_recording_never_overwrites_a_file(tmp_path: Path) -> None:
    """Neither a file nor the target of a link."""
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, why in (
        ("there", "already exists"),
        ("link", "already exists"),
        ("no/where", "folder .* does not exist"),
    ):
        async with HttpClient() as clients:
            with pytest.raises(Misconfigured, match=why):
                async with TransportRecorder(clients, tmp_path / name, Redactor()):
                    pass
        with pytest.raises(Misconfigured, match=why):
            await anyio.to_thread.run_sync(pens.check, tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


@pytest.mark.anyio
async def test_long_bodies_are_left_out_and_marked(server: ScriptedModel, tmp_path: Path) -> None:
    """A long request is still matched by its digest; a replay fails only if it needs the missing part of an answer."""
    file = tmp_path / "talk.jsonl"
    long = "x" * 4000 + " [say short]"
    async with recording(server, file, body_bytes=3000) as model:
        await ask(model, long)
        await ask(model, "[words 400]")
    request, answer, _, cut = await read(file)
    assert isinstance(request, RecordedRequest) and request.body is None and request.left_out > 4000 and request.digest
    assert isinstance(answer, RecordedAnswer) and not answer.left_out
    assert isinstance(cut, RecordedAnswer) and cut.left_out > 0
    async with replaying(file) as (model, _):
        assert (await ask(model, long)).text == "short"
        with pytest.raises(ModelFailed, match=f"lacks the last {cut.left_out} bytes of this answer"):
            await ask(model, "[words 400]")


@pytest.mark.anyio
async def test_a_full_recording_stops_with_a_last_line_and_the_model_goes_on(
    server: ScriptedModel, tmp_path: Path
) -> None:
    """Logged once."""
    file = tmp_path / "talk.jsonl"
    with capture_logs() as lines:
        async with recording(server, file, file_bytes=6000) as model:
            for number in range(20):
                await ask(model, f"hello {number}")
    assert file.stat().st_size <= 6000
    *kept, last = await read(file)
    assert kept and last == RecordingStopped("it would be larger than 6000 bytes")
    assert [entry["event"] for entry in lines] == ["the recording stopped; the gateway continues without it"]


@pytest.mark.anyio
async def test_a_disk_error_ends_the_recording_with_a_complete_line(server: ScriptedModel, tmp_path: Path) -> None:
    """The conversation goes on; logged once."""
    file = tmp_path / "talk.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as lines:
        async with recording(server, file) as model:
            await ask(model, "hello")
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            try:
                with anyio.fail_after(WAIT):
                    while not lines:  # the writer has its own thread
                        assert (await ask(model, "hello " + "x" * 3000)).text
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (told_once,) = lines
    assert told_once["why"] == "writing to the disk failed (File too large)" and told_once["level"] == "error"
    assert file.read_bytes().endswith(b"\n") and isinstance((await read(file))[0], RecordedRequest)


def test_a_disk_that_cannot_keep_up_ends_the_recording(tmp_path: Path) -> None:
    """The queue of lines is bounded, and no request waits for it."""
    pen = RecordingWriter(tmp_path / "f", 10**9)
    pen.open()
    going = threading.Event()

    def slow() -> Event:
        assert going.wait(WAIT)
        return RecordingStopped("slow")

    with capture_logs() as lines:
        for _ in range(3):
            pen.write(slow, pens.PENDING_BYTES // 2)
        assert pen.stopped == "the disk cannot keep up" and len(lines) == 1
        going.set()
        pen.close()
    assert lines_of(tmp_path / "f")[-1] == RecordingStopped("the disk cannot keep up")
    assert pen.pending == 0


@pytest.mark.anyio
async def test_concurrent_exchanges_are_recorded_each_with_its_own_answer(
    server: ScriptedModel, tmp_path: Path
) -> None:
    """In any order of their ends."""
    file = tmp_path / "talk.jsonl"
    texts = [f"[say number {number}] [slow ms={number % 3}]" for number in range(30)]
    async with recording(server, file) as model:
        then = await asyncio.gather(*(outcome(model, text) for text in texts))
    async with replaying(file) as (model, _):
        assert await asyncio.gather(*(outcome(model, text) for text in reversed(texts))) == then[::-1]


def test_one_long_request_is_not_taken_for_a_slow_disk(tmp_path: Path) -> None:
    """A request of any length is written if nothing else waits."""
    pen = RecordingWriter(tmp_path / "f", 10**9)
    pen.open()
    pen.write(lambda: RecordingStopped("long"), pens.PENDING_BYTES + 1)
    pen.close()
    assert lines_of(tmp_path / "f") == [RecordingStopped("long")] and pen.stopped is None
    pen.write(lambda: RecordingStopped("late"), 1)
    assert pen.pending == 0


def test_a_disk_error_at_the_start_prevents_the_recording(tmp_path: Path) -> None:
    """No file is left that would block the next attempt."""
    pen = RecordingWriter(tmp_path / "f", 10**9)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(Misconfigured, match=r"cannot be written .File too large.: record elsewhere"):
            pen.open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "f").exists()
