"""A database that is lost or damaged, before the gateway starts and under a running one.

It is reported, nothing is accepted that could not be kept, and nothing that was acknowledged is lost.
"""

import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import apsw
import pytest

from tests.gateway.process import WAIT, GatewayProcess, environment, gateway, tidegate
from tidegate.gateway import ask, holder_of

PAGE = 4096


def _parts(home: Path) -> list[Path]:
    return [home / f"tidegate.db{suffix}" for suffix in ("", "-wal", "-shm")]


def _refused(
    running: GatewayProcess, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    with pytest.raises(HTTPError) as caught:
        running.call(method, path, body, **headers)
    with caught.value as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return answer.code, found


def _refused_message(
    running: GatewayProcess, text: str = "say more", session: str = "talk"
) -> tuple[int, dict[str, Any]]:
    body = {"model": "main", "messages": [{"role": "user", "content": text}]}
    status, found = _refused(running, "POST", "/v1/chat/completions", body, **{"X-Session-Id": session})
    return status, found["error"]


def _problem_metrics(running: GatewayProcess) -> dict[str, float]:
    """Of each kind of problem, whether it stands."""
    lines = running.read("GET", "/metrics").decode().splitlines()
    found = (line.partition("tidegate_store_problem{kind=")[2] for line in lines)
    return {kind.strip('"'): float(value) for kind, _, value in (text.partition("} ") for text in found) if value}


def _until(running: GatewayProcess, done: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The first status of which `done` holds; each look is a round trip, so this does not spin."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        status = ask(running.home, {"do": "status"})
        if done(status):
            return status
    raise AssertionError(f"it did not come to that:\n{running.log.read_text()}")


def _stop(running: GatewayProcess) -> None:
    running.signal(signal.SIGTERM)
    assert running.wait() == 0, running.log.read_text()


def _delete(home: Path) -> None:
    for path in _parts(home):
        path.unlink()


def _delete_log(home: Path) -> None:
    (home / "tidegate.db-wal").unlink()


def _rename(home: Path) -> None:
    (home / "tidegate.db").rename(home / "elsewhere.db")


def _replace(home: Path) -> None:
    shutil.copy(home / "tidegate.db", home / "copy.db")
    (home / "copy.db").replace(home / "tidegate.db")


@pytest.mark.parametrize("lose", [_delete, _delete_log, _rename, _replace])
def test_nothing_is_acknowledged_after_the_database_is_lost_and_earlier_data_is_saved(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """L18, F4, S19: 503 with what to do, everywhere that health is asked for; the saved copy has every message."""
    home = tmp_path / "home"
    with gateway(home) as running:
        for number in range(3):
            running.say(f"say {number}", "talk")
        lose(home)
        status, error = _refused_message(running)
        assert status == 503 and error["code"] == "store_lost"
        (saved,) = home.glob("tidegate.db.rescued-*")
        assert str(home / "tidegate.db") in error["message"] and str(saved) in error["message"]
        assert saved.stat().st_mode & 0o777 == 0o600

        status, ready = _refused(running, "GET", "/readyz")
        assert status == 503 and str(saved) in ready["checks"]["database"]["detail"]
        assert _problem_metrics(running)["lost"] == 1
        told = tidegate("status", home=home).stdout
        assert "health: NOT READY" in told and str(saved) in told
        health = json.loads(tidegate("status", "--json", home=home).stdout)["health"]
        assert not health["ready"] and str(saved) in health["checks"]["store"]["detail"]
        doctor = tidegate("doctor", home=home)
        assert doctor.returncode == 1
        assert any(line.startswith("fail  database: ") and str(saved) in line for line in doctor.stdout.splitlines())
        for _ in range(20):
            assert _refused_message(running)[0] == 503
        assert running.log.read_text().count("no longer in its place") == 1
        assert len(list(home.glob("tidegate.db.rescued-*"))) == 1
        _stop(running)
    for path in _parts(home):
        path.unlink(missing_ok=True)
    saved.rename(home / "tidegate.db")
    with gateway(home) as running:
        (session,) = running.call("GET", "/api/sessions")["sessions"]
        rows = running.call("GET", f"/api/sessions/{session['id']}/messages")["messages"]
        assert [row["message"]["text"].strip() for row in rows] == ["say 0", "0", "say 1", "1", "say 2", "2"]


def test_a_database_that_is_emptied_while_the_gateway_runs_is_reported_and_not_saved_as_a_copy(tmp_path: Path) -> None:
    """L18: an overwritten database cannot be rescued, and no message claims that it was."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        os.truncate(home / "tidegate.db", 0)
        status, error = _refused_message(running)
        assert status == 503 and "restore a backup" in error["message"]
        assert not list(home.glob("tidegate.db.rescued-*"))
        assert tidegate("doctor", home=home).returncode == 1


def test_a_turn_that_runs_when_the_database_is_lost_does_not_pretend_to_succeed(tmp_path: Path) -> None:
    """L18, F4: its caller gets an error in place of an answer that nothing would remember."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        ends: list[tuple[int, dict[str, Any]]] = []
        caller = threading.Thread(target=lambda: ends.append(_refused_message(running, "slow " + "tide " * 40, "long")))
        caller.start()
        _until(running, lambda status: status["turns"]["running"])
        _delete(home)
        caller.join(WAIT)
        ((status, error),) = ends
        assert status == 503 and "tidegate.db" in error["message"]


def test_a_stop_saves_what_was_acknowledged_when_nothing_was_written_since_the_loss(tmp_path: Path) -> None:
    """L18, F4: and the next start is refused with the name of the copy instead of beginning anew."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        _delete(home)
        _stop(running)
        (saved,) = home.glob("tidegate.db.rescued-*")
        assert str(saved) in running.log.read_text()
    start = tidegate("up", "--port", "0", home=home)
    assert start.returncode == 1 and start.stderr.count("\n") == 1
    assert f"{home}/tidegate.db is missing" in start.stderr and str(saved) in start.stderr
    assert start.stderr.removeprefix("tidegate: ").strip() in tidegate("doctor", home=home).stdout


def test_a_home_folder_that_is_moved_away_stops_intake_until_it_is_moved_back(tmp_path: Path) -> None:
    """L18: nothing is copied, the place of the open file is named, and no restart is needed."""
    home, away = tmp_path / "home", tmp_path / "away"
    with gateway(home) as running:
        key = (home / "api-key").read_text().strip()
        running.say("say one", "talk")
        home.rename(away)
        body = {"model": "main", "messages": [{"role": "user", "content": "say lost"}]}
        with pytest.raises(HTTPError) as caught:
            running.call("POST", "/v1/chat/completions", body, Authorization=f"Bearer {key}")
        with caught.value as answer:
            assert answer.code == 503
            assert f"the open file is now {away}/tidegate.db" in json.loads(answer.read())["error"]["message"]
        away.rename(home)
        _until(running, lambda status: status["health"]["ready"])
        assert running.say("say two", "talk").strip() == "two"
        assert not list(home.glob("tidegate.db.rescued-*"))


def _used(tmp_path: Path, *sessions: str, text: str = "say {}") -> Path:
    """A home folder whose gateway has worked and stopped."""
    home = tmp_path / "home"
    with gateway(home) as running:
        for session in sessions or ("talk",):
            running.say(text.format(session), session)
        _stop(running)
    return home


def _make_empty(home: Path) -> str:
    (home / "tidegate.db").write_bytes(b"")
    return "is empty"


def _remove(home: Path) -> str:
    (home / "tidegate.db").unlink()
    return "is missing"


def _forget_owner(home: Path) -> str:
    with closing(apsw.Connection(str(home / "tidegate.db"))) as db:
        db.execute("DELETE FROM keys; DELETE FROM principals")
    return "has no owner"


@pytest.mark.parametrize("lose", [_make_empty, _remove, _forget_owner])
def test_a_database_without_an_owner_beside_a_key_is_damage_and_not_a_first_start(
    tmp_path: Path, lose: Callable[[Path], str]
) -> None:
    """L18, F3: every start is refused with what to do, until a backup is back or the key is removed."""
    home = _used(tmp_path)
    backup = (home / "tidegate.db").read_bytes()
    words = lose(home)
    for _ in range(2):
        start = tidegate("up", "--port", "0", home=home)
        assert start.returncode == 1 and start.stderr.splitlines()[-1].startswith("tidegate: The database ")
        assert words in start.stderr and f"remove {home}/api-key to start over" in start.stderr
    doctor = tidegate("doctor", home=home)
    assert doctor.returncode == 1 and words in doctor.stdout
    lost = (home / "tidegate.db").read_bytes() if (home / "tidegate.db").exists() else None
    (home / "tidegate.db").write_bytes(backup)
    with gateway(home) as running:
        assert [view["name"] for view in running.call("GET", "/api/sessions")["sessions"]] == ["talk"]
        _stop(running)
    (home / "tidegate.db").unlink()
    if lost is not None:
        (home / "tidegate.db").write_bytes(lost)
    (home / "api-key").unlink()
    with gateway(home) as running:
        assert running.call("GET", "/api/sessions")["sessions"] == []


def test_a_missing_key_file_beside_a_database_is_created_again_and_reported(tmp_path: Path) -> None:
    """X01: the conversations are still there, and the operator knows that the earlier key still opens them."""
    home = _used(tmp_path)
    (home / "api-key").unlink()
    with gateway(home) as running:
        assert any(line.startswith("WARNING") and "earlier keys" in line for line in running.said)
        assert [view["name"] for view in running.call("GET", "/api/sessions")["sessions"]] == ["talk"]


@pytest.mark.parametrize("written", ["", "tg_" + "k" * 40])
def test_a_first_start_that_was_killed_before_its_key_file_was_renamed_is_continued(
    tmp_path: Path, written: str
) -> None:
    """X01, F3: it is no damage, and the key that was prepared is used if it is there."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "api-key.new").write_text(written)
    with gateway(home) as running:
        assert running.say("say hello") != ""
        assert ((home / "api-key").read_text().strip() == written) == bool(written)
        assert not (home / "api-key.new").exists()


def test_a_lock_that_is_removed_is_reported_and_no_second_gateway_opens_the_database(tmp_path: Path) -> None:
    """F2, L18: the kernel's lock went with the file's name, but two never write to one database."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        (home / "lock").unlink()
        status, ready = _refused(running, "GET", "/readyz")
        assert status == 503 and "second gateway" in ready["checks"]["lock"]["detail"]
        assert holder_of(home) is None
        second = tidegate("up", "--port", "0", home=home)
        assert second.returncode == 1 and f"(pid {running.pid}) has {home}/tidegate.db open" in second.stderr
        assert running.say("say two", "talk").strip() == "two"


def test_a_gateway_without_its_control_socket_is_still_found(tmp_path: Path) -> None:
    """F2: the command line says that it runs, and how to replace it."""
    home = tmp_path / "home"
    with gateway(home) as running:
        (home / "control.sock").unlink()
        run = tidegate("status", home=home)
        assert run.returncode == 1
        assert f"pid {running.pid}" in run.stderr and "up --replace" in run.stderr


# -- damaged pages --


def _long_texts(tmp_path: Path) -> tuple[Path, int]:
    """A home with conversations that lie in several pages, and the page in which that of "bad" is."""
    words = random.Random(3)
    home = tmp_path / "home"
    with gateway(home) as running:
        for session in ("good", *(f"other{number}" for number in range(6)), "bad"):
            running.say(f"say {session}-mark " + "".join(words.choices("abcdefgh", k=880)), session)
        running.say("say last", "good")
        _stop(running)
    raw = (home / "tidegate.db").read_bytes()
    page = raw.index(b"bad-mark") // PAGE
    assert page != raw.index(b"good-mark") // PAGE
    return home, page


def _damage(home: Path, page: int) -> bytes:
    """Overwrite a page; returns its previous content."""
    with (home / "tidegate.db").open("r+b") as file:
        file.seek(page * PAGE)
        before = file.read(PAGE)
        file.seek(page * PAGE)
        file.write(b"\x5a" * PAGE)
    return before


def _repair(home: Path, page: int, before: bytes) -> None:
    with (home / "tidegate.db").open("r+b") as file:
        file.seek(page * PAGE)
        file.write(before)


def _id(running: GatewayProcess, name: str) -> str:
    return next(str(view["id"]) for view in running.call("GET", "/api/sessions")["sessions"] if view["name"] == name)


@pytest.mark.parametrize("running_already", [False, True])
def test_one_damaged_page_is_reported_until_a_full_check_passes(tmp_path: Path, running_already: bool) -> None:
    """L18, S19: found before the start by the check in the background, under a running gateway by the first who reads
    it; conversations elsewhere go on, and who is hit gets a sentence without a word of SQL."""
    home, page = _long_texts(tmp_path)
    before = b"" if running_already else _damage(home, page)
    with gateway(home) as running:
        _until(running, lambda status: status["store"]["checked"] is not None)
        if running_already:
            assert running.call("GET", "/readyz")["ready"]
            before = _damage(home, page)
        running.say("say still here", "good")
        status, error = _refused_message(running, session="bad")
        assert (status, error["code"]) == (500, "store_damaged")
        assert "`tidegate doctor`" in error["message"] and "start a new one" in error["message"]
        assert "malformed" not in error["message"]

        status, ready = _refused(running, "GET", "/readyz")
        assert status == 503 and "damaged: " in ready["checks"]["database"]["detail"]
        assert ready["checks"]["store"]["ok"]
        assert _problem_metrics(running)["damaged"] == 1
        assert "warning: database: damaged: " in tidegate("status", home=home).stdout
        doctor = tidegate("doctor", home=home)
        assert doctor.returncode == 1 and "fail  database: is damaged (messages: " in doctor.stdout
        running.say("say still here", "good")
        assert not ask(home, {"do": "status"})["health"]["ready"]

        _repair(home, page, before)
        running.say("say once more", "good")
        assert "ok    database: " in tidegate("doctor", home=home).stdout
        _until(running, lambda status: status["health"]["ready"])
        assert _problem_metrics(running)["damaged"] == 0
        assert "bad-mark" in json.dumps(running.call("GET", f"/api/sessions/{_id(running, 'bad')}/messages"))


def test_a_start_with_a_damaged_database_tells_the_operator(tmp_path: Path) -> None:
    """L18, F3: one sentence about the file, not the one for the user of a conversation; the file stays as it is."""
    home = _used(tmp_path)
    with closing(apsw.Connection(str(home / "tidegate.db"))) as db:
        page = int(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'principals'").get) - 1
    before = _damage(home, page)
    start = tidegate("up", "--port", "0", home=home)
    assert start.returncode == 1
    assert f"{home}/tidegate.db is damaged" in start.stderr and "put a backup in its place" in start.stderr
    assert "start a new one" not in start.stderr
    _repair(home, page, before)
    with gateway(home) as running:
        assert [view["name"] for view in running.call("GET", "/api/sessions")["sessions"]] == ["talk"]


def test_the_doctor_finds_a_damaged_page_when_no_gateway_runs(tmp_path: Path) -> None:
    """L18: with the same full check."""
    home, page = _long_texts(tmp_path)
    _damage(home, page)
    run = tidegate("doctor", home=home)
    assert run.returncode == 1 and "fail  database: is damaged (messages: " in run.stdout


def test_an_export_of_damaged_data_fails_visibly_and_leaves_no_partial_file(tmp_path: Path) -> None:
    """L18: over HTTP the body breaks off; the command ends with an error and a sentence."""
    home = tmp_path / "home"
    words = random.Random(5)
    with gateway(home) as running:
        for number in range(40):
            running.say(f"say mark-{number} " + "".join(words.choices("abcdefgh", k=4000)), "talk")
        session = _id(running, "talk")
        _stop(running)
    _damage_packed(home)
    with gateway(home) as running:
        target = tmp_path / "talk.jsonl"
        for arguments in ((), ("-o", str(target))):
            run = tidegate("sessions", "export", session, *arguments, home=home)
            assert run.returncode == 1
            assert "tidegate doctor" in run.stderr and run.stderr.count("\n") == 1
        assert not target.exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "home.log"]
        _until(running, lambda status: not status["health"]["ready"])
        detail = ask(home, {"do": "status"})["health"]["checks"]["database"]["detail"]
        assert "damaged: " in detail


def test_a_row_that_cannot_be_unpacked_is_found_by_the_full_check(tmp_path: Path) -> None:
    """L18: with and without a gateway; SQLite's own check passes such a file."""
    home = _used(tmp_path, text="say {} " + " ".join(map(str, range(2000))))
    _damage_packed(home)
    assert "cannot be unpacked" in tidegate("doctor", home=home).stdout
    with gateway(home) as running:
        _until(running, lambda status: not status["health"]["ready"])
        assert "cannot be unpacked" in tidegate("doctor", home=home).stdout


def _damage_packed(home: Path) -> None:
    """Changes bytes in the middle of what a row has packed: SQLite itself sees nothing wrong with that."""
    with closing(apsw.Connection(str(home / "tidegate.db"))) as db:
        row = db.execute("SELECT max(id) FROM messages WHERE packed").get
        with db.blob_open("main", "messages", "body", row, True) as blob:
            blob.seek(blob.length() // 2)
            blob.write(b"xxxxxxxx")


# -- a disk that refuses --


def test_an_input_output_error_is_named_and_logged_once_and_makes_the_status_red_while_it_lasts(tmp_path: Path) -> None:
    """L18, L21, S19: it is no full disk; when the disk takes writes again, so does the gateway."""
    home, broken = tmp_path / "home", tmp_path / "broken"
    with gateway(home, program=(sys.executable, "-m", "tests.gateway.failing_disk", str(broken))) as running:
        running.say("say one", "talk")
        broken.touch()
        for _ in range(10):
            status, error = _refused_message(running)
            assert (status, error["code"]) == (503, "disk_failed")
            assert "Input/output error" in error["message"] and "room" not in error["message"]
        status, ready = _refused(running, "GET", "/readyz")
        assert status == 503 and "Input/output error" in ready["checks"]["database"]["detail"]
        assert not ask(home, {"do": "status"})["store"]["full"]
        assert _problem_metrics(running)["unwritable"] == 1
        assert "Input/output error" in tidegate("status", home=home).stdout
        assert tidegate("doctor", home=home).returncode == 1
        assert running.log.read_text().count("the database cannot be written to the disk") == 1
        assert "Traceback" not in running.log.read_text()
        broken.unlink()
        assert running.say("say two", "talk").strip() == "two"
        _until(running, lambda status: status["health"]["ready"])
        assert "a problem with the store is resolved" in running.log.read_text()


def test_an_immutable_write_ahead_log_counts_as_a_disk_error(tmp_path: Path) -> None:
    """L18, L21: the kernel's own refusal, where the file system knows such files."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        wal = home / "tidegate.db-wal"
        if subprocess.run(["chattr", "+i", str(wal)], capture_output=True, check=False).returncode:
            pytest.skip("chattr +i needs root and a file system that knows it")
        try:
            status, error = _refused_message(running)
        finally:
            subprocess.run(["chattr", "-i", str(wal)], check=True)
        assert (status, error["code"]) == (503, "disk_failed")
        assert "Operation not permitted" in error["message"]
        assert running.say("say two", "talk").strip() == "two"


def test_a_home_folder_on_a_read_only_file_system_is_refused_with_the_reason(tmp_path: Path) -> None:
    """F3, L18: before anything is tried there; the doctor says the same."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    program = shlex.join([sys.executable, "-m", "tidegate"])
    script = (
        f"mount -t tmpfs -o ro,mode=0700 none {home} || exit 77; "
        f"{program} doctor --home {home}; {program} up --port 0 --home {home}"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True, text=True, timeout=WAIT, check=False, env=environment(),
    )  # fmt: skip
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("this machine allows no mounts of one's own")
    assert done.returncode == 1
    assert f"fail  home folder: {home} is not writable" in done.stdout
    assert done.stderr.startswith(f"tidegate: {home} is not writable") and done.stderr.count("\n") == 1


def test_only_a_full_disk_is_reported_as_full(tmp_path: Path) -> None:
    """L18, L21: the kernel's refusal to let a file grow, under a running gateway."""
    home = tmp_path / "home"
    with gateway(home) as running:
        running.say("say one", "talk")
        size = (home / "tidegate.db-wal").stat().st_size
        _limit_files(running.pid, size)
        status, error = _refused_message(running, "say " + "x" * 100_000)
        assert (status, error["code"]) == (507, "store_full")
        assert "disk is full" in error["message"]
        assert ask(home, {"do": "status"})["store"]["full"]
        _limit_files(running.pid, None)
        assert running.say("say two", "talk").strip() == "two"
        _until(running, lambda status: status["health"]["ready"])


def _limit_files(pid: int, size: int | None) -> None:
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited if size is None else size, unlimited))
