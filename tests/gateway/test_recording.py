"""`tidegate up --record FILE` and `--replay FILE`: a conversation that somebody else can have again."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args
from urllib.error import HTTPError

import pytest

from bench.subjects import ScriptedModel
from tests.gateway.process import WAIT, GatewayProcess, environment, gateway, tidegate
from tidegate.models.recording.recording_file import (
    BODY_BYTES,
    FILE_BYTES,
    End,
    Event,
    MiB,
    RecordedAnswer,
    RecordedRequest,
    RecordingStopped,
    events,
)
from tidegate.security import Redactor, Secret

KEY = "canary-of-the-key-8d1f"
HEADER = "canary-of-a-header-77c2"
APIS = ("openai-chat", "openai-responses", "anthropic")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recording.md").read_text()

TALK = (
    ("hello [think of the tide]", False),
    ("and now [words 30] [slow ms=1]", True),
    ('[tool read_file {"path": "notes.txt"}] [say read]', False),
    ("[status 429 times=1 retry-after=0] [say patient]", False),
    ("[words 12] [cut after=5 times=1]", True),
    ("[status 400 echo]", False),
    (f"my key is {KEY} [say it is {KEY} and {HEADER}]", True),
    ("[say it looks like sk-4f9d1c77a0b1 or Bearer abcdef]", False),
    ("and again", False),
)
"""What is said in one conversation, and whether it is streamed."""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptedModel]:
    with ScriptedModel(tmp_path / "model") as model:
        yield model


def settings(url: str, project: Path, api: str = "openai-chat") -> str:
    thinking = {"openai-chat": "none", "openai-responses": "effort", "anthropic": "budget"}[api]
    return f"""
[models.main]
api = "{api}"
base_url = "{url}/v1"
model = "scripted"
thinking = "{thinking}"
efforts = ["low", "medium"]
key = "env:MODEL_KEY"
headers = {{ X-House-Token = "env:HOUSE_TOKEN", X-Team = "harbour" }}
retries = 1
[agents.main]
model = "main"
prompt = "You are a test."
reasoning = "low"
tools = ["files", "clock"]
workspace = "{project}"
"""


def home_of(tmp_path: Path, name: str, text: str) -> Path:
    home = tmp_path / name
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(text)
    return home


def stable_answer(running: GatewayProcess, text: str, stream: bool = False, session: str = "talk") -> str:
    """Everything of the answer that does not change from one call to the next, or the failure."""
    body = {"model": "main", "messages": [{"role": "user", "content": text}], "stream": stream}
    try:
        answer = running.call("POST", "/v1/chat/completions", body, **{"X-Session-Id": session})
    except HTTPError as failed:
        with closing(failed):
            return failed.read().decode()
    except json.JSONDecodeError as streamed:
        parts = [json.loads(part[6:]) for part in streamed.doc.split("\n\n") if part.startswith("data: {")]
        return "".join(str(part["choices"][0]["delta"].get("content") or "") for part in parts if part.get("choices"))
    return json.dumps([answer["choices"], answer["usage"]])


def stripped(text: str) -> str:
    """The text as recorded, with secrets replaced: a replay does not know the secrets."""
    return Redactor(map(Secret, SECRETS.values())).text(text)


def lines_of(file: Path) -> list[Event]:
    return [placed.event for placed in events(file)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("High water at ten.\n")
    return folder


SECRETS = {"MODEL_KEY": KEY, "HOUSE_TOKEN": HEADER}


@pytest.mark.parametrize("api", APIS)
def test_a_recorded_conversation_can_be_replayed_elsewhere_without_keys_or_a_server(
    tmp_path: Path, model: ScriptedModel, project: Path, api: str
) -> None:
    """X15: streamed or whole, with a tool, a refusal that is tried again, a stream that breaks off; and no key of the
    one who recorded it is in the file, whoever said it."""
    file = tmp_path / "talk.jsonl"
    text = settings(model.url, project, api)
    with gateway(home_of(tmp_path, "first", text), "--record", str(file), **SECRETS) as running:
        then = [stable_answer(running, *one) for one in TALK]
        shown = running.call("GET", "/api/status")["tape"]
        told = tidegate("status", home=running.home).stdout
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    assert f"records: {file}, {shown['exchanges']} exchanges" in told
    assert any(line.endswith(f"to {file}.") and "no keys" in line for line in running.said)
    model.__exit__(None, None, None)

    content = file.read_text()
    for secret in SECRETS.values():
        assert secret not in content
    assert "You are a test." in content and "High water at ten." in content
    carried = {"openai-chat": "", "openai-responses": "encrypted_content", "anthropic": "signature"}[api]
    recorded = lines_of(file)
    last = [event for event in recorded if isinstance(event, RecordedRequest)][-1]
    assert carried in json.dumps(last.body)
    assert shown["does"] == "records" and shown["stopped"] is None
    assert shown["exchanges"] == len([event for event in recorded if isinstance(event, RecordedRequest)]) == 12
    assert {event.status for event in recorded if isinstance(event, RecordedAnswer)} == {200, 400, 429}
    assert any(event.end == "broken" for event in recorded if isinstance(event, RecordedAnswer))

    with gateway(home_of(tmp_path, "second", text), "--replay", str(file)) as running:
        now = [stable_answer(running, stripped(text), stream) for text, stream in TALK]
        shown = running.call("GET", "/api/status")
        told = tidegate("status", home=running.home).stdout
    assert any(f"Replaying {file}" in line for line in running.said)
    for one, before, after in zip(TALK, then, now, strict=True):
        assert after == stripped(before), one
    assert shown["tape"] == {
        "does": "replays", "file": str(file), "exchanges": 12, "replayed": 12, "again": 0, "unknown": 0,
    }  # fmt: skip
    assert not shown["clients"].get("open")
    assert f"replays: {file}, 12 exchanges; 12 replayed, 0 requests not in the recording" in told


def test_a_recording_that_was_killed_is_readable_up_to_its_last_line(
    tmp_path: Path, model: ScriptedModel, project: Path
) -> None:
    """With the request in progress; earlier answers are replayed."""
    file = tmp_path / "talk.jsonl"
    text = settings(model.url, project)
    with gateway(home_of(tmp_path, "first", text), "--record", str(file), **SECRETS) as running:
        then = stable_answer(running, "[say before]")
        running.call("POST", "/api/messages", {"text": "[hold it after=2] [words 9]"})
        until(lambda: "it" in model.call("GET", "/stats")["holding"] and len(lines_of(file)) == 3)
        running.signal(signal.SIGKILL)
        running.wait()
    recorded = lines_of(file)
    assert [type(event) for event in recorded] == [RecordedRequest, RecordedAnswer, RecordedRequest]
    with gateway(home_of(tmp_path, "second", text), "--replay", str(file)) as running:
        assert stable_answer(running, "[say before]") == then
        failed = stable_answer(running, "[hold it after=2] [words 9]", session="other")
    assert "(number 2): the gateway that was recording exited before the answer ended" in failed


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline


def test_a_request_that_differs_by_itself_is_not_matched_silently(
    tmp_path: Path, model: ScriptedModel, project: Path
) -> None:
    """X16: the clock tool returns another time; the caller learns where it differs, and the log has no content."""
    file = tmp_path / "talk.jsonl"
    text = settings(model.url, project)
    with gateway(home_of(tmp_path, "first", text), "--record", str(file), **SECRETS) as running:
        stable_answer(running, "[tool clock {}] [say lighthouse]")
    content = file.read_text()
    earlier = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(UTC\)", "2001-01-01T00:00:00Z (UTC)", content)
    assert earlier != content
    file.write_text(earlier)
    with gateway(home_of(tmp_path, "second", text), "--replay", str(file)) as running:
        told = stable_answer(running, "[tool clock {}] [say lighthouse]")
        assert running.call("GET", "/api/status")["tape"]["unknown"] == 1
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    assert "difference from the nearest one (number 2) is in messages[3].content." in told
    assert "2001-01-01" in told and "; now: " in told
    log = running.log.read_text()
    assert "(number 2) is in messages[3].content" in log and "2001-01-01" not in log


def test_a_file_that_cannot_be_used_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    """In one sentence, before a home folder is taken over."""
    (tmp_path / "there").write_text("mine")
    (tmp_path / "empty").touch()
    (tmp_path / "newer").write_text('{"tidegate":"recording","version":99}\n')
    (tmp_path / "project").mkdir()
    refused = {
        ("--record", "project/file"): "is in the folder of agent 'main'",
        ("--record", "there"): "already exists, and a recording never overwrites a file",
        ("--record", "no/file"): "does not exist: create it, or record elsewhere",
        ("--record", "."): "already exists",
        ("--replay", "there"): "is not a recording",
        ("--replay", "empty"): "is empty",
        ("--replay", "newer"): "was recorded by a newer Tidegate",
        ("--replay", "."): "is not a file",
        ("--replay", "none"): "cannot be read",
    }
    home = home_of(
        tmp_path,
        "home",
        f'[models.main]\napi = "demo"\n[agents.main]\nmodel = "main"\nworkspace = "{tmp_path}/project"\n',
    )
    with gateway(home) as running:
        for (option, name), why in refused.items():
            done = tidegate("up", "--port", "0", "--replace", option, str(tmp_path / name), home=home)
            assert done.returncode == 1
            assert done.stderr.startswith("tidegate: ") and done.stderr.count("\n") == 1
            assert why in done.stderr, (option, name)
        done = tidegate("up", "--record", str(tmp_path / "a"), "--replay", str(tmp_path / "b"), home=home)
        assert done.returncode == 1
        assert done.stderr == "tidegate: A gateway either records or replays: use --record or --replay, not both.\n"
        assert running.process.poll() is None
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "a").exists()


def test_the_demo_model_has_no_traffic_and_a_message_says_so(tmp_path: Path) -> None:
    """Where nothing else is configured."""
    file = tmp_path / "talk.jsonl"
    with gateway(home_of(tmp_path, "home", ""), "--record", str(file)) as running:
        assert stable_answer(running, "hello")
        assert running.call("GET", "/api/status")["tape"]["exchanges"] == 0
    assert any("demo model is configured, which has no traffic" in line for line in running.said)
    assert lines_of(file) == []


def test_a_gateway_that_does_not_record_has_no_cost_for_it() -> None:
    """Not even an import."""
    loaded = "[name for name in sys.modules if name.startswith('tidegate.models.recording')]"
    code = f"import sys, tidegate.gateway.gateway; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.strip() == "[]"


def test_the_documented_recording_is_valid(tmp_path: Path) -> None:
    """The page's configuration, file and commands work as the page says."""
    (toml,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (content,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^tidegate up (--\w+) (\S+)$", PAGE, re.MULTILINE)
    assert [option for option, _ in commands] == ["--record", "--replay"]
    file = tmp_path / commands[1][1]
    with gateway(home_of(tmp_path, "first", toml), "--record", str(file), TIDE_KEY=KEY):
        assert file.read_text().count("\n") == 1
    first = json.loads(content.splitlines()[0])
    assert first.keys() == json.loads(file.read_text()).keys()
    assert first["holds"] == json.loads(file.read_text())["holds"]
    file.write_text(content)
    with gateway(home_of(tmp_path, "second", toml), "--replay", str(file)) as running:
        assert "It turns at ten." in stable_answer(running, "When does the tide turn?")
        assert "is in messages[1].content" in stable_answer(running, "When does the tide come?", session="other")


def test_the_page_names_every_field_every_end_and_both_limits() -> None:
    """And the limits as they are."""
    fields = {
        name for kind in (RecordedRequest, RecordedAnswer, RecordingStopped) for name in kind.__struct_fields__
    } - {"id"}
    ends = {name for part in get_args(End) for name in get_args(part) or (part,)}
    assert {name for name in fields | ends if f"`{name}`" not in PAGE} == set()
    assert f"more than {BODY_BYTES // MiB} MiB are left out" in PAGE and f"stops at {FILE_BYTES // MiB} MiB" in PAGE
