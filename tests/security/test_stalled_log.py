"""A log whose reader has stopped reading."""

import json
import os
import threading
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.gateway.process import WAIT, GatewayProcess
from tidegate.config import LogSettings
from tidegate.log import Log
from tidegate.security import Redactor, configure_logging

PIPE_BYTES = 65536
"""What a pipe holds before writing to it waits."""

LINES = 30
"""Of ten thousand bytes each: more than that."""

NOWHERE = """
[models.main]
api = "openai-chat"
base_url = "http://127.0.0.1:1/v1"
model = "m"
retries = 0
[agents.main]
model = "main"
"""


def _talk() -> None:
    for number in range(LINES):
        Log("tidegate.test").info("line", number=number, text="ü" * 5000)


def test_a_reader_that_stopped_reading_holds_up_nobody_and_the_loss_is_told() -> None:
    """L21, L20: lines that do not fit are counted; when the pipe is writable again, the count comes first."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as pipe, os.fdopen(writer, "w") as stream:
        undo = configure_logging(LogSettings(format="json"), Redactor(), stream)
        try:
            # In a thread of its own, so that a log that waits is seen and does not wait for ever.
            talker = threading.Thread(target=_talk)
            talker.start()
            talker.join(WAIT)
            stalled = talker.is_alive()
            early = pipe.read(2 * PIPE_BYTES).decode()
            Log("tidegate.test").info("room again")
            late = pipe.read(2 * PIPE_BYTES).decode()
        finally:
            undo()
    assert not stalled
    *whole, torn = early.split("\n")
    assert len(early.encode()) <= PIPE_BYTES
    assert [json.loads(line)["number"] for line in whole] == list(range(len(whole)))
    first, second = map(json.loads, late.removeprefix("\n").splitlines())
    assert late.startswith("\n") == bool(torn)
    assert (first["event"], first["lines"]) == ("log lines were lost", LINES - len(whole))
    assert second["event"] == "room again"


@pytest.mark.parametrize("closed", [False, True])
def test_a_gateway_whose_log_nobody_reads_goes_on_answering(tmp_path: Path, closed: bool) -> None:
    """L21, L20: more failures than a pipe holds lines, and every caller is answered; also when the reader is gone."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(NOWHERE)
    os.mkfifo(tmp_path / "home.log")  # where the gateway's standard error goes
    reader = os.open(tmp_path / "home.log", os.O_RDONLY | os.O_NONBLOCK)
    running = GatewayProcess(home)
    try:
        running.wait_ready()
        if closed:
            os.close(reader)
        for number in range(400):
            with pytest.raises(HTTPError) as failed:
                running.say(f"hello {number}")
            failed.value.close()
            assert failed.value.code == 502
        assert running.call("GET", "/api/status")["turns"]["failed"] == 400
    finally:
        running.end()
        if not closed:
            os.close(reader)
