"""Helpers for recordings: a model whose traffic is recorded, and a model that is replayed from a recording."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from bench.scripted_model import ScriptedModel
from tests.models.support import CANARY, Listener, ask, configured
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient, Target, Timeouts
from tidegate.models import Model
from tidegate.models.recording.recorder import TransportRecorder
from tidegate.models.recording.recording_file import Event, RecordedRequest, RecordingHead, events, line
from tidegate.models.recording.replayer import TransportReplayer
from tidegate.security import Redactor, Secret
from tidegate.values import Message

WAIT = 30
REDACTOR = Redactor([Secret(CANARY)])
NOWHERE = "http://127.0.0.1:1/v1"


@asynccontextmanager
async def recording(
    server: ScriptedModel, path: Path, given: dict[str, Any] | None = None, **bounds: int
) -> AsyncIterator[Model]:
    """A model whose traffic is recorded. The file is complete when the context is left."""
    async with (
        HttpClient() as clients,
        TransportRecorder(clients, path, REDACTOR, referred={"x-house"}, **bounds) as recorder,
        configured(server.base_url, clients=recorder, key="env:CANARY", **(given or {})) as model,
    ):
        yield model


@asynccontextmanager
async def replaying(
    path: Path, base_url: str = NOWHERE, **given: Any
) -> AsyncIterator[tuple[Model, TransportReplayer]]:
    replayer = await opened(path)
    async with configured(base_url, clients=replayer, **given) as model:
        yield model, replayer


async def outcome(model: Model, text: str | Sequence[Message]) -> tuple[Any, ...]:
    """Everything that a caller sees of an answer or of its failure."""
    listener = Listener()
    try:
        with anyio.fail_after(WAIT):
            message = await ask(model, text, listener)
    except ModelFailed as failure:
        return (
            failure.kind,
            failure.retryable,
            failure.upstream_status,
            failure.partial_answer,
            failure.endpoint_message,
            listener.text,
        )
    return message, listener.text


def lines_of(path: Path) -> list[Event]:
    return [placed.event for placed in events(path)]


async def read(path: Path) -> list[Event]:
    return await anyio.to_thread.run_sync(lines_of, path)


def recorded_request(number: int, body: Any, path: str = "/v1/chat/completions") -> RecordedRequest:
    return RecordedRequest(
        id=number, time="2026-01-01T00:00:00.000Z", origin=NOWHERE, method="POST", path=path, body=body
    )


def written(path: Path, *lines: Event, version: int = 1) -> Path:
    opening = RecordingHead("recording", version, "tidegate test", "2026-01-01T00:00:00.000Z")
    path.write_bytes(line(opening) + b"".join(map(line, lines)))
    return path


async def send(traffic: TransportReplayer, body: Any, path: str = "/v1/chat/completions") -> str:
    """Send a bare request and return its complete answer."""
    target = Target("POST", f"http://127.0.0.1:1{path}", {"Authorization": f"Bearer {CANARY}"})
    waits = Timeouts(connect=1, first_byte=1, idle=1)
    response = await traffic.request(target, [json.dumps(body).encode()], waits)
    parts = []
    while data := await response.read():
        parts.append(data)
    assert response.complete
    response.close()
    return b"".join(parts).decode()


async def opened(path: Path) -> TransportReplayer:
    replayer = TransportReplayer(path, Redactor())
    await anyio.to_thread.run_sync(replayer.open)
    return replayer
