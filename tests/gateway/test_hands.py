"""A session used as a person would use it: real gateway, demo model, real sandbox, real processes."""

import json
import os
import resource
import uuid
from pathlib import Path

import pytest

from tests.gateway.running import Gateway, gateway

SETTINGS = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["files", "terminal"]
[workspaces]
backend = "bubblewrap"
[limits]
residents = 1
"""


class Person:
    """Somebody who works in one session."""

    def __init__(self, running: Gateway, name: str) -> None:
        self.running = running
        self.name = name

    def call(self, tool: str, **arguments: object) -> str:
        return self.running.say(f"call {tool} {json.dumps(arguments)}", self.name)

    def run(self, command: str) -> str:
        return self.running.say(f"run {command}", self.name)

    @property
    def session(self) -> str:
        views = self.running.call("GET", "/api/sessions?limit=200")["sessions"]
        return str(next(view["id"] for view in views if view["name"] == self.name))


def processes_with(word: str) -> list[int]:
    """Every process of this machine whose command line holds the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "tidegate.toml").write_text(SETTINGS)
    return folder


def test_a_session_does_real_work_and_leaves_nothing(home: Path) -> None:
    """B1, B2, B3: clone a repository, run its tests, mend it, start a server, be unloaded, come back, find all as it
    was left, end, and find it gone."""
    mark = uuid.uuid4().hex
    with gateway(home) as running:
        person = Person(running, "work")
        person.run(
            "git init -q origin && cd origin && git config user.email a@example.org && git config user.name A && "
            "printf 'def tide():\\n    return \"low\"\\n' > tide.py && "
            "printf 'import tide, unittest\\n\\n\\nclass T(unittest.TestCase):\\n    def test_it(self):\\n"
            '        self.assertEqual(tide.tide(), "high")\\n\' > test_tide.py && git add . && git commit -qm first'
        )
        assert "cloned" in person.run("cd .. && git clone -q origin clone && cd clone && echo cloned")
        assert "FAILED (failures=1)" in person.run("python3 -m unittest 2>&1")
        assert '+    return "high"' in person.call("edit_file", path="clone/tide.py", old='"low"', new='"high"')
        assert "OK" in person.run("python3 -m unittest 2>&1 && git commit -qam mended && git log --oneline")
        person.run(f"export MARK={mark}")

        serve = "exec python3 -u -m http.server 8123 --bind 127.0.0.1"
        person.call("process", action="start", name="server", command=f"{serve} # {mark}")
        assert "Serving HTTP" in person.call("process", action="wait", name="server", pattern="Serving HTTP")

        # Another conversation takes the one place in memory: this one is unloaded.
        Person(running, "other").run("echo hello")
        assert running.call("GET", "/api/status")["sessions"]["unloads"]

        assert f"/workspace/clone\n{mark}" in person.run("pwd; echo $MARK")
        assert "server: runs" in person.call("process", action="list")
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/tide.py').read().decode())"
        assert 'return "high"' in person.run(f'python3 -c "{fetch}"')
        assert processes_with("http.server 8123")

        session = person.session
        folder = home / "workspaces" / session
        assert (folder / "clone" / "tide.py").exists()
        running.call("POST", f"/api/sessions/{session}/end")
        assert not processes_with("http.server 8123")
        assert not folder.exists()
        assert 'return "high"' in (home / "trash" / session / "clone" / "tide.py").read_text()


def test_what_runs_for_a_session_dies_with_a_killed_gateway_and_the_agent_is_told(home: Path) -> None:
    """B2, F4, S08: the shell is where it was; the process is gone, and the agent hears of it with the next message."""
    mark = uuid.uuid4().hex
    with gateway(home) as running:
        person = Person(running, "work")
        person.run("mkdir deep && cd deep && export TIDE=high && f() { echo f says $1; }")
        person.call("process", action="start", name="keeper", command=f"exec sleep 1000 # {mark}")
        person.call("process", action="start", name="again", command=f"exec sleep 2000 # {mark}", restart=True)
        running.process.kill()
        running.wait()
        assert not processes_with("sleep 1000")
    with gateway(home) as running:
        person = Person(running, "work")
        assert "/workspace/deep\nhigh\nf says hello" in person.run("pwd; echo $TIDE; f hello")
        session = person.session
        rows = running.call("GET", f"/api/sessions/{session}/messages?limit=500")["messages"]
        told = [row["message"]["aside"] for row in rows if row["message"].get("aside")]
        assert any("keeper" in text for text in told)
        listed = person.call("process", action="list")
        assert "keeper: went with the gateway" in listed
        assert "again: runs" in listed


def test_a_long_result_is_shown_in_part_and_read_whole(home: Path) -> None:
    """D1: the model sees the beginning and the end; the rest is read by name."""
    with gateway(home) as running:
        person = Person(running, "work")
        answer = person.run("seq 1 20000")
        assert "\n1\n2\n" in answer and "20000" in answer and "bytes left out" in answer
        name = next(word.strip(",.;:") for word in answer.split() if word.startswith("sp_"))
        assert "12345" in person.call("output", id=name, search="^12345$", regex=True)


def test_without_a_sandbox_the_terminal_says_what_to_do(home: Path) -> None:
    """X11: nothing is run outside a sandbox unless the operator has chosen it."""
    (home / "tidegate.toml").write_text(SETTINGS.replace('"bubblewrap"', '"none"'))
    with gateway(home) as running:
        answer = Person(running, "work").run("echo hello")
        assert "hello" not in answer.replace("echo hello", "")
        assert "workspaces.backend" in answer or "approval" in answer


def test_it_may_hold_as_many_descriptors_as_the_system_allows(home: Path) -> None:
    """L06: a thousand, which most systems give at first, would be used up by a hundred sessions with a process each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        running = Gateway(home)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        running.wait_ready()
        limits = Path(f"/proc/{running.pid}/limits").read_text()
        allowed = int(next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3])
        assert allowed > 256
    finally:
        running.end()
