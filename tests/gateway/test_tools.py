"""A session used as a person would use it: real gateway, demo model, real sandbox, real processes."""

import json
import os
import random
import resource
import time
import uuid
from pathlib import Path
from typing import get_args

import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway
from tests.workspaces.sshd import SSHD, sshd
from tidegate.workspaces.backends.interface import Enforcement

pytestmark = pytest.mark.sandbox

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

    def __init__(self, running: GatewayProcess, name: str) -> None:
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


def until_none(word: str) -> None:
    """Until no process is left whose command line holds the word: the kernel takes its time to end one."""
    deadline = time.monotonic() + WAIT
    while found := processes_with(word):
        assert time.monotonic() < deadline, found
        time.sleep(0.005)


def own_number() -> str:
    """Seconds that nobody else on this machine sleeps: by it a process is found again, whatever it has become."""
    return str(int.from_bytes(os.urandom(5), "big") + 10**12)


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
    """B1, B2, B3, P11: clone a repository, run its tests, mend it, start a server, be unloaded, come back, find all as
    it was left, end, and find it gone."""
    mark, port = uuid.uuid4().hex, random.randrange(1024, 65536)  # of a network of its own
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

        served = f"http.server {port} --bind 127.0.0.1 --directory ../clone"
        person.call("process", action="start", name="server", command=f"exec python3 -u -m {served}")
        assert "Serving HTTP" in person.call("process", action="wait", name="server", pattern="Serving HTTP")

        # Another conversation takes the one place in memory: this one is unloaded.
        Person(running, "other").run("echo hello")
        assert running.call("GET", "/api/status")["sessions"]["unloads"]

        assert f"/workspace/clone\n{mark}" in person.run("pwd; echo $MARK")
        assert "server: has been running" in person.call("process", action="list")
        fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/tide.py').read().decode())"
        assert 'return "high"' in person.run(f'python3 -c "{fetch}"')
        assert processes_with(served)

        session = person.session
        folder = home / "workspaces" / session
        assert (folder / "clone" / "tide.py").exists()
        running.call("POST", f"/api/sessions/{session}/end")
        assert not processes_with(served)
        assert not folder.exists()
        assert 'return "high"' in (home / "trash" / session / "clone" / "tide.py").read_text()


def test_processes_of_a_session_end_with_a_killed_gateway_and_the_agent_is_told(home: Path) -> None:
    """B2, F4, S08, P11: the shell is where it was; the process is gone, and the agent hears of it with the next
    message."""
    kept, again = own_number(), own_number()
    with gateway(home) as running:
        person = Person(running, "work")
        person.run("mkdir deep && cd deep && export TIDE=high && f() { echo f says $1; }")
        person.call("process", action="start", name="keeper", command=f"exec sleep {kept}")
        person.call("process", action="start", name="again", command=f"exec sleep {again}", restart=True)
        assert processes_with(kept) and processes_with(again)
        running.process.kill()
        running.wait()
        until_none(kept)
        until_none(again)
    with gateway(home) as running:
        person = Person(running, "work")
        assert "/workspace/deep\nhigh\nf says hello" in person.run("pwd; echo $TIDE; f hello")
        session = person.session
        rows = running.call("GET", f"/api/sessions/{session}/messages?limit=500")["messages"]
        told = [row["message"]["aside"] for row in rows if row["message"].get("aside")]
        assert any("keeper" in text for text in told)
        listed = person.call("process", action="list")
        assert "keeper: ended with the gateway" in listed
        assert "again: has been running" in listed


def test_processes_on_another_machine_end_with_a_killed_gateway_and_the_agent_is_told(
    home: Path, tmp_path: Path
) -> None:
    """P13, F4: the other side watches, and the next start reconciles; the shell is where it was."""
    if SSHD is None:
        pytest.fail("This test needs an sshd: apt install openssh-server")
    mark = own_number()
    with sshd(tmp_path / "s") as server:
        over_there = f'backend = "ssh"\nssh_host = "127.0.0.1"\nssh_options = {json.dumps(list(server.options))}'
        (home / "tidegate.toml").write_text(
            SETTINGS.replace('backend = "bubblewrap"', over_there).replace(
                "tools =", 'approvals = "autonomous"\ntools ='
            )
        )
        with gateway(home) as running:
            person = Person(running, "work")
            person.run("mkdir deep && cd deep && export TIDE=high")
            command = f"(setsid sleep {mark} &) && exec sleep {mark}"
            said = person.call("process", action="start", name="keeper", command=command)
            assert len(processes_with(f"sleep {mark}")) == 2, said
            running.process.kill()
            running.wait()
            until_none(mark)
        with gateway(home) as running:
            person = Person(running, "work")
            assert person.run("basename $PWD && echo $TIDE").rstrip().endswith("deep\nhigh")
            assert "keeper: ended with the gateway" in person.call("process", action="list")


DIES_BEFORE_IT_TELLS = """
import os
from tidegate.workspaces.processes.background import BackgroundProcesses

async def die(self, row, text):
    os.kill(os.getpid(), 9)

BackgroundProcesses._begin_turn = die
"""


def test_a_requested_notification_of_an_end_arrives_once_even_if_the_gateway_is_killed(
    home: Path, tmp_path: Path
) -> None:
    """F4, S08: killed when the end was recorded and its turn not begun; the next start begins it, and no later one."""
    faulty = tmp_path / "faulty"
    faulty.mkdir()
    (faulty / "sitecustomize.py").write_text(DIES_BEFORE_IT_TELLS)
    command = "until test -e go; do sleep 0.02; done; echo all is well"
    path = os.pathsep.join(filter(None, (str(faulty), os.environ.get("PYTHONPATH"))))
    with gateway(home, PYTHONPATH=path) as running:
        person = Person(running, "work")
        person.call("process", action="start", name="job", command=command.replace("; ", "\n"), notify=True)
        session = person.session
        (home / "workspaces" / session / "go").touch()
        assert running.wait() == -9
    for _ in range(2):
        with gateway(home) as running:
            deadline = time.monotonic() + WAIT
            while True:
                rows = running.call("GET", f"/api/sessions/{session}/messages?limit=500")["messages"]
                told = [row for row in rows if "'job'" in row["message"].get("aside", "")]
                if told and rows[-1]["message"]["role"] == "assistant":
                    break
                assert time.monotonic() < deadline, rows
            assert len(told) == 1 and "all is well" in told[0]["message"]["aside"]
            assert len({row["turn"] for row in rows}) == 2


def test_status_says_how_each_limit_of_a_workspace_is_enforced(home: Path) -> None:
    """P14: by the kernel where that can be, else by looking; a limit that is kept is told by its name."""
    settings = SETTINGS.replace('backend = "bubblewrap"', 'backend = "bubblewrap"\nfile_bytes = "1 MiB"')
    (home / "tidegate.toml").write_text(settings)
    with gateway(home) as running:
        person = Person(running, "work")
        assert "code" in person.run("head -c 2000000 /dev/zero > big; exit 3")
        session = person.session
        assert (home / "workspaces" / session / "big").stat().st_size == 1 << 20
        kept = running.call("GET", "/api/status")["workspaces"]["enforced"]
        assert set(kept) == {"processes", "memory_bytes", "disk_bytes", "files", "file_bytes", "cpu_seconds"}
        assert set(kept.values()) <= set(get_args(Enforcement))
        assert (kept["file_bytes"], kept["disk_bytes"]) == ("rlimit", "polled")


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


def test_the_gateway_may_open_as_many_descriptors_as_the_system_allows(home: Path) -> None:
    """L06: a thousand, which most systems give at first, would be used up by a hundred sessions with a process each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        running = GatewayProcess(home)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        running.wait_ready()
        limits = Path(f"/proc/{running.pid}/limits").read_text()
        allowed = int(next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3])
        assert allowed > 256
    finally:
        running.end()
