"""A real gateway that is killed when a one-shot call has ended and its caller does not have the answer yet."""

import http.client
import json
import os
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from tests.gateway.process import WAIT, gateway

DIES = """
import os
import tidegate.engine.embedded

def die(*_):
    os.kill(os.getpid(), 9)

tidegate.engine.embedded.EmbeddedEngine._publish_end = die
"""


def test_an_answer_that_was_stored_and_not_delivered_is_fetched_after_the_restart(tmp_path: Path) -> None:
    """B1, F4, V18: without an idempotency key, as often as its caller asks, by nobody else."""
    faulty = tmp_path / "faulty"
    faulty.mkdir()
    (faulty / "sitecustomize.py").write_text(DIES)
    home = tmp_path / "home"
    path = os.pathsep.join(filter(None, (str(faulty), os.environ.get("PYTHONPATH"))))
    with gateway(home, PYTHONPATH=path) as running:
        turn = begin_stream(running.address, (home / "api-key").read_text().strip())
        assert running.wait() == -9
    with gateway(home) as running:
        for _ in range(2):
            outcome = running.call("GET", f"/api/turns/{turn}")
            assert (outcome["state"], outcome["text"]) == ("answered", "one two three")
        other = running.call("POST", "/api/keys", {"name": "anna"})["key"]
        with pytest.raises(HTTPError, match="404"):
            running.call("GET", f"/api/turns/{turn}", Authorization=f"Bearer {other}")


def begin_stream(address: str, key: str) -> str:
    """Sends a one-shot call whose answer is streamed. Returns its turn, of which the stream's header has told."""
    parts = urlsplit(address)
    body = {"model": "main", "stream": True, "messages": [{"role": "user", "content": "slow one two three"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        turn = response.headers["X-Turn-Id"]
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    return turn
