"""The gateway as a process: started, signalled, killed, replaced."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import psutil
import pytest

from tests.gateway.process import TIDEGATE, WAIT, GatewayProcess, environment, gateway, tidegate
from tidegate.gateway import ask, holder_of

SLOW_STOP = "[limits]\nshutdown_seconds = 60\n"
QUICK_STOP = "[limits]\nshutdown_seconds = 1\n"


def _long_turn(running: GatewayProcess, session: str) -> threading.Thread:
    """A turn of a named session that takes minutes; its reader goes away with the gateway."""

    def send() -> None:
        try:
            running.say("slow " + "tide " * 5000, session)
        except OSError:
            return

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def _until_running(running: GatewayProcess) -> None:
    """Until a turn runs. Each look is a round trip, so this does not spin."""
    for _ in range(2000):
        if ask(running.home, {"do": "status"})["turns"]["running"]:
            return
    raise AssertionError("no turn began")


def test_the_gateway_prints_its_address_and_answers_there(tmp_path: Path) -> None:
    """X01: bound before it says ready; the first key is the owner's alone; loopback only."""
    home = tmp_path / "home"
    with gateway(home) as running:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", running.address)
        assert re.fullmatch(re.escape(running.address) + r"/#code=\S+", running.link)
        assert any("demo model" in line for line in running.said)
        assert running.say("say hello") != ""
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "api-key").stat().st_mode) == 0o600
        for connection in psutil.Process(running.pid).net_connections():
            assert connection.status != "LISTEN" or connection.laddr.ip == "127.0.0.1"


def test_a_second_gateway_is_refused_and_says_who_holds_the_folder(tmp_path: Path) -> None:
    """F2: one sentence, exit code 1, and the first goes on."""
    home = tmp_path / "home"
    with gateway(home) as running:
        second = tidegate("up", "--port", "0", home=home)
        assert second.returncode == 1
        assert second.stderr.count("\n") == 1
        assert f"pid {running.pid}" in second.stderr
        assert running.address in second.stderr
        assert running.say("say still here") != ""


def test_after_kill_9_the_next_start_works_at_once_with_the_same_key(tmp_path: Path) -> None:
    """F4, L18: files left by a kill (lock file, socket, log of the store) do not disturb the next start."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        key = (home / "api-key").read_text()
        running.process.kill()
        running.wait()
        assert (home / "control.sock").exists()
    with gateway(home) as running:
        assert (home / "api-key").read_text() == key
        (session,) = running.call("GET", "/api/sessions")["sessions"]
        assert session["name"] == "talk"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_gateway_and_leaves_no_child_lock_or_socket(tmp_path: Path, number: signal.Signals) -> None:
    """F1, L28: an orderly stop closes everything."""
    home = tmp_path / "home"
    with gateway(home) as running:
        children = psutil.Process(running.pid).children(recursive=True)
        running.signal(number)
        assert running.wait() == 0
        assert not any(child.is_running() for child in children)
        assert holder_of(home) is None
        left = sorted(path.name for path in home.iterdir())
        assert "control.sock" not in left
        assert not [name for name in left if name.endswith(("-wal", "-shm"))]
        assert "Traceback" not in running.log.read_text()


def test_a_stop_parks_a_turn_that_cannot_finish_and_the_next_start_continues_it(tmp_path: Path) -> None:
    """F1, F4: the budget is kept, the turn is not lost."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(QUICK_STOP)
    with gateway(home) as running:
        talk = _long_turn(running, "talk")
        _until_running(running)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        talk.join(WAIT)
    with gateway(home) as running:
        _until_running(running)
        (session,) = running.call("GET", "/api/sessions")["sessions"]
        assert session["running"]
        running.call("POST", f"/api/sessions/{session['id']}/stop")


def test_a_second_signal_does_not_wait_for_turns(tmp_path: Path) -> None:
    """F1: a hurried stop loses nothing either."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(SLOW_STOP)
    with gateway(home) as running:
        talk = _long_turn(running, "talk")
        _until_running(running)
        running.signal(signal.SIGTERM)
        running.until("^waiting for 1 turn; press Ctrl-C again to resume them after a restart$")
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        talk.join(WAIT)


def test_replace_takes_over_from_a_running_gateway_with_its_turn(tmp_path: Path) -> None:
    """F2: never "database is locked"; the turn goes on in the new process."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(QUICK_STOP)
    with gateway(home) as old:
        old.say("say before", "earlier")
        talk = _long_turn(old, "talk")
        _until_running(old)
        with gateway(home, "--replace") as new:
            assert old.wait() == 0
            talk.join(WAIT)
            assert new.pid != old.pid
            assert any(f"pid {old.pid}" in line for line in new.said)
            _until_running(new)
            assert new.say("say after", "earlier") != ""
            assert "locked" not in old.log.read_text()


def test_replace_without_a_running_gateway_is_a_plain_start(tmp_path: Path) -> None:
    """F2: the flag does no harm."""
    with gateway(tmp_path / "home", "--replace") as running:
        assert running.say("say hello") != ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nresidnts = 3\n", ("tidegate.toml", "residnts", "residents")),
        ("[server\n", ("tidegate.toml",)),
        ('[server]\nhost = "0.0.0.0"\n', ("tidegate.toml", "insecure")),
    ],
)
def test_an_invalid_configuration_is_reported_in_one_sentence_with_file_and_key(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    """F3, X01: exit code 1, and nothing was made but the folder."""
    (tmp_path / "tidegate.toml").write_text(text)
    run = tidegate("up", "--port", "0", home=tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith("tidegate: ")
    assert run.stderr.count("\n") == 1
    for word in words:
        assert word in run.stderr
    assert run.stdout == ""
    assert holder_of(tmp_path) is None


def test_the_key_file_is_never_overwritten_and_is_created_again_if_it_is_missing(tmp_path: Path) -> None:
    """X01: a key of one's own choice is adopted, a lost one replaced, a revoked one told."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "api-key").write_text("tg_" + "k" * 40 + "\n")
    with gateway(home) as running:
        assert (home / "api-key").read_text() == "tg_" + "k" * 40 + "\n"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert running.say("say hello") != ""
    (home / "api-key").unlink()
    with gateway(home) as running:
        made = (home / "api-key").read_text()
        assert made.strip() != "tg_" + "k" * 40
        key = max(running.call("GET", "/api/keys")["keys"], key=lambda found: found["created"])
        running.call("DELETE", f"/api/keys/{key['id']}")
    with gateway(home) as running:
        assert (home / "api-key").read_text() == made
        assert any("revoked" in line for line in running.said if line.startswith("WARNING"))


def test_exposure_by_explicit_setting_is_reported_at_every_start(tmp_path: Path) -> None:
    """X03: the start-up check looks at what was bound."""
    (tmp_path / "tidegate.toml").write_text('[server]\nhost = "0.0.0.0"\ninsecure = true\n')
    with gateway(tmp_path) as running:
        assert any(line.startswith("WARNING EXPOSED") for line in running.said)


def test_a_signal_during_the_start_ends_it_cleanly(tmp_path: Path) -> None:
    """F3: also before it is ready."""
    starting = GatewayProcess(tmp_path / "home")
    try:
        while holder_of(tmp_path / "home") is None and starting.process.poll() is None:
            os.sched_yield()
        starting.signal(signal.SIGTERM)
        assert starting.wait() in (0, -signal.SIGTERM)
        assert holder_of(tmp_path / "home") is None
    finally:
        starting.end()


def test_the_daemon_imports_nothing_that_it_does_not_use() -> None:
    """L22: modules for the command line, tests or extras are not in the gateway's memory."""
    program = "import sys, tidegate.gateway.process; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, env=environment(), check=True
    )
    loaded = set(run.stdout.split())
    unwanted = {"prompt_toolkit", "pydantic", "openai", "requests", "httpx", "httpx2", "rich", "tomlkit", "sqlite3"}
    assert not loaded & (
        unwanted | {"aiohttp", "starlette", "pytest", "hypothesis", "greenlet", "concurrent.futures.process"}
    )


def _damage(path: Path) -> None:
    """A fault that only a full check can see: a row that its table does not allow."""
    declared, laxer = "created REAL NOT NULL", "created REAL         "
    for before, after in ((declared, laxer), (laxer, declared)):
        connection = apsw.Connection(str(path))
        try:
            if before == laxer:
                connection.execute("INSERT INTO principals(id, name, role, created) VALUES('p_x', 'x', 'user', NULL)")
            connection.execute("PRAGMA writable_schema = 1")
            change = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'principals'"
            connection.execute(change, (before, after))
        finally:
            connection.close()


def test_the_full_check_of_the_database_runs_in_the_background(tmp_path: Path) -> None:
    """P21, L18: the start does not wait for it; its findings are logged and shown by health."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    _damage(home / "tidegate.db")
    with gateway(home) as running:
        assert running.say("say hello") != ""
        for _ in range(2000):
            if "principals.created" in running.log.read_text():
                break
            ask(home, {"do": "status"})
        assert "the database is damaged" in running.log.read_text()
        for _ in range(2):
            check = ask(home, {"do": "status"})["health"]["checks"]["database"]
            assert not check["ok"] and "principals.created" in check["detail"]
            assert ask(home, {"do": "check"}, within=WAIT)["problems"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_with_tls_the_command_line_trusts_the_configured_certificate(tmp_path: Path) -> None:
    """X03: beyond loopback with TLS it starts, says that it can be reached, and is spoken to over TLS."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tidegate.example", "-days", "2"]
    subprocess.run(
        [*made, "-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem")],
        check=True, capture_output=True, timeout=WAIT,
    )  # fmt: skip
    (home / "tidegate.toml").write_text('[server]\nhost = "0.0.0.0"\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n')
    with gateway(home) as running:
        assert running.address.startswith("https://0.0.0.0:")
        assert running.link.startswith("https://127.0.0.1:")
        assert any(line.startswith("WARNING Other machines") for line in running.said)
        chat = tidegate("chat", home=home, input="say over tls\n")
        assert chat.stdout == "over tls\n", chat.stderr


def test_a_stop_lets_a_turn_finish_and_its_caller_gets_the_answer(tmp_path: Path) -> None:
    """F1: intake ends first, then turns finish, then the store is closed; nobody who was accepted is cut off."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(SLOW_STOP)
    answers: list[str] = []
    words = "ebb and flow " * 4
    with gateway(home) as running:
        caller = threading.Thread(target=lambda: answers.append(running.say(f"slow {words}", "talk")))
        caller.start()
        _until_running(running)
        running.signal(signal.SIGTERM)
        while "stopping" not in running.log.read_text():
            os.sched_yield()
        with pytest.raises(OSError, match=r"refused|reset|503|closed"):
            running.say("say too late")
        caller.join(WAIT)
        assert [answer.strip() for answer in answers] == [words.strip()]
        assert running.wait() == 0
        assert not (home / "tidegate.db-wal").exists()


def test_the_stop_command_says_what_it_waits_for_and_can_be_hurried(tmp_path: Path) -> None:
    """F1: Ctrl-C in it leaves the turns for the next start, and it still waits until the folder is free."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(SLOW_STOP)
    with gateway(home) as running:
        talk = _long_turn(running, "talk")
        _until_running(running)
        command = subprocess.Popen(
            [*TIDEGATE, "stop", "--home", str(home)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        assert command.stderr is not None
        assert command.stderr.readline() == b"waiting for 1 turn; press Ctrl-C to resume them after a restart\n"
        running.until("^waiting for 1 turn;")
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=WAIT)
        assert command.returncode == 0
        assert out.startswith(b"Stopped (")
        assert running.wait() == 0
        talk.join(WAIT)


def test_the_demo_model_finds_notes_in_a_workspace_of_its_own(tmp_path: Path) -> None:
    """F3: a conversation's folder is created at first use, private; its content is left alone."""
    home = tmp_path / "home"
    with gateway(home) as running:
        assert not (home / "workspaces").exists()
        assert "demo model" in running.say("read file notes.txt", "work")
        (folder,) = (path for path in (home / "workspaces").iterdir() if path.suffix != ".private")
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        (folder / "notes.txt").unlink()
    with gateway(home) as running:
        assert "no file" in running.say("read file notes.txt", "work")
        assert list(folder.iterdir()) == []
