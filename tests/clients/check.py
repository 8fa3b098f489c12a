"""Helpers for the checks of a Python client. They run inside the client's environment: standard library only.

A check is a function with the name of the plan's check (`plain`, `stream`; see plan.py), decorated with `check`, that
takes the name of an agent and raises AssertionError, or anything else, when it fails. It is called once for each of
AGENTS, or once in total. Each result is a line of JSON on standard output.
"""

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import struct
import subprocess
import sys
import traceback
import urllib.request
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

URL = os.environ["TIDEGATE"]
BASE_URL = f"{URL}/v1"
KEY = os.environ["TIDEGATE_KEY"]
MODEL_URL = os.environ["SCRIPTED_MODEL"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"

AGENTS = ("main", "responses", "anthropic")
"""One for each wire format."""
SMALL = "small"
"""An agent whose model takes few tokens."""
WINDOW = 4096
ANSWER = "The tide comes in, the gate keeps the level."
TOO_LONG = "word " * (WINDOW * 4)
WITHIN = 60
"""Seconds for one check with one agent."""
LONGEST = 600
"""Characters of a reason."""

_checks: list[tuple[str, tuple[str, ...], Callable[[str], Any]]] = []


class Skipped(Exception):
    """The check does not apply; the message says why."""


def check(agents: tuple[str, ...] = AGENTS) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    def register(function: Callable[[str], Any]) -> Callable[[str], Any]:
        _checks.append((function.__name__.strip("_").replace("_", "-"), agents, function))
        return function

    return register


def run() -> None:
    """Run all checks of the calling script, or those named on the command line."""
    named = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # The client's own output is not part of the results.
    signal.signal(signal.SIGALRM, _expired)
    # One event loop for all: clients keep connections that belong to the loop they were made in.
    runner = asyncio.Runner()
    for name, agents, function in _checks:
        for agent in agents if not named or name in named else ():
            result = {"check": name, "agent": agent, **_outcome(function, agent, runner)}
            print(json.dumps(result), file=out)
    runner.close()


def _expired(*_: object) -> None:
    raise TimeoutError(f"no end within {WITHIN} s")


def _outcome(function: Callable[[str], Any], agent: str, runner: asyncio.Runner) -> dict[str, Any]:
    signal.alarm(WITHIN)
    try:
        awaited = function(agent)
        if inspect.iscoroutine(awaited):
            runner.run(awaited)
    except Skipped as skipped:
        return {"ok": None, "why": str(skipped)}
    except BaseException as error:
        traceback.print_exc()
        return {"ok": False, "why": _reason(error)}
    finally:
        signal.alarm(0)
    return {"ok": True, "why": ""}


def _reason(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in place if "/tests/clients/" in frame.filename]
    said = " ".join(str(error).split()) or (lines[-1].line if lines else "")
    return f"{type(error).__name__}: {said}"[:LONGEST]


# -- assertions --------------------------------------------------------------------------------------------------------


def same(found: object, wanted: object) -> None:
    assert found == wanted, f"{found!r} instead of {wanted!r}"


@contextlib.contextmanager
def fails(*kinds: type[BaseException], says: str = "") -> Iterator[None]:
    """The block raises one of `kinds`, whose message matches the pattern `says`."""
    try:
        yield
    except kinds as error:
        assert re.search(says, _everything(error)), f"{type(error).__name__} without {says!r}: {error}"
    else:
        raise AssertionError(f"no {' or '.join(kind.__name__ for kind in kinds)} was raised")


def _everything(error: BaseException | None) -> str:
    said = ""
    while error is not None:
        said += f"{error} {vars(error)}\n"
        error = error.__cause__ or error.__context__
    return said


def sent() -> list[dict[str, Any]]:
    """The requests that the model has been sent since `forget`, oldest first."""
    with urllib.request.urlopen(f"{MODEL_URL}/requests") as answer:
        return [json.loads(one["body"]) for one in json.load(answer)]


def forget() -> None:
    request = urllib.request.Request(f"{MODEL_URL}/reset", b"", method="POST")
    urllib.request.urlopen(request).close()


def assert_merged() -> None:
    """The model was last offered the agent's tool and the caller's `add`, and the agent's ran without an error."""
    request = sent()[-1]
    offered = [tool.get("name") or tool["function"]["name"] for tool in request.get("tools", ())]
    same(offered, ["clock", "add"])
    assert "not found" not in json.dumps(request), "the client was asked to run the agent's tool"


def run_examples(title: str, *replaced: tuple[str, str], prints: str = ANSWER) -> None:
    """Runs the blocks below a heading of docs/clients.md unchanged, except for the gateway's address and `replaced`
    texts. Each prints the scripted answer, or `prints`."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (found,) = [part for part in section if part.startswith(title + "\n")]
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", found, re.MULTILINE | re.DOTALL)
    assert blocks, f"docs/clients.md has no example below {title!r}"
    for language, block in blocks:
        code = block
        for old, new in (("http://127.0.0.1:8420", URL), *replaced):
            assert old in code, f"no {old!r} in an example"
            code = code.replace(old, new)
        done = command(*([sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]), code)
        assert prints in done, f"an example printed {done!r}"


def with_client_path() -> dict[str, str]:
    """The environment, with the programs of the client's packages first."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def command(*words: str, stdin: str = "", succeeds: bool = True, **environment: str) -> str:
    """The output of a program of the client's environment, both streams together."""
    done = subprocess.run(
        words,
        env={**with_client_path(), **environment},
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    assert (done.returncode == 0) == succeeds, f"{words[0]} ended with {done.returncode}: {done.stdout[-LONGEST:]}"
    return done.stdout


def picture() -> bytes:
    """A red PNG of 16 by 16."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * 16) * 16
    header = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def picture_url() -> str:
    return "data:image/png;base64," + b64encode(picture()).decode()


def has_picture(request: dict[str, Any]) -> bool:
    """Whether a request to the model shows a picture, in any wire format."""
    return any(mark in json.dumps(request) for mark in ('"image_url"', '"input_image"', '"type": "image"'))


def has_schema(request: dict[str, Any]) -> bool:
    """Whether a request to the model asks for JSON of a schema, in any wire format."""
    return any(mark in json.dumps(request) for mark in ('"json_schema"', '"output_config"', '"output_format"'))
