"""`tidegate memory`: lists notes, and edits them as text."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import at_terminal
from tests.cli.test_conversations import one_sentence
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate

CONFIG = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["memory"]
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("memory") / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(CONFIG)
    with gateway(home) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_yet(here: GatewayProcess) -> None:
    for query in ("", "?agent=main"):
        for note in here.call("GET", f"/api/memory{query}")["notes"]:
            here.call("DELETE", f"/api/memory/{note['id']}{query}")


def memory(here: GatewayProcess, *arguments: str, input: str = "") -> str:
    run = tidegate("memory", *arguments, home=here.home, input=input)
    assert run.returncode == 0, run.stderr
    return str(run.stdout)


def number_of(said: str) -> str:
    found = re.search(r"\d+", said)
    assert found
    return found[0]


def test_notes_are_added_listed_and_forgotten(here: GatewayProcess) -> None:
    """F3, X20: with the author of each note, and as JSON."""
    assert memory(here, "list") == "There are no notes.\n"
    number = number_of(memory(here, "add", "I", "like", "tea"))
    here.say("remember that I live in Ghent")
    lines = memory(here, "list").splitlines()
    assert lines[0] == f"[{number}] I like tea" and lines[1].strip().startswith("owner, edited, ")
    assert lines[2].endswith("I live in Ghent") and "owner, in a conversation, " in lines[3]
    assert lines[-1].startswith("25 of 65536 bytes")
    found = json.loads(memory(here, "list", "--json"))
    assert [note["text"] for note in found["notes"]] == ["I like tea", "I live in Ghent"]
    assert memory(here, "forget", number) == f"Deleted note {number}.\n"
    said = one_sentence(tidegate("memory", "forget", number, home=here.home))
    assert f"no note {number}" in said and "memory list" in said


def test_the_owner_sees_and_edits_everybodys_notes(here: GatewayProcess) -> None:
    """X20: by user name, and the notes about agents' work."""
    tidegate("keys", "add", "anna", home=here.home)
    memory(here, "add", "likes cake", "--principal", "anna")
    memory(here, "add", "deploy on Tuesdays", "--agent", "main")
    assert "likes cake" in memory(here, "list", "--principal", "anna")
    assert "deploy on Tuesdays" in memory(here, "list", "--agent", "main")
    assert memory(here, "list") == "There are no notes.\n"
    assert "no principal 'nobody'" in one_sentence(tidegate("memory", "list", "--principal", "nobody", home=here.home))
    assert "no agent 'other'" in one_sentence(tidegate("memory", "list", "--agent", "other", home=here.home))


def test_notes_are_edited_in_a_file_or_from_standard_input(here: GatewayProcess, tmp_path: Path) -> None:
    """F3: one note per line; refused text changes nothing."""
    number = number_of(memory(here, "add", "one"))
    text = json.loads(memory(here, "list", "--json"))["text"]
    file = tmp_path / "notes.txt"
    file.write_text(text.replace("one", "eins") + "zwei\n")
    assert memory(here, "edit", "--file", str(file)) == "1 added, 1 changed, 0 deleted; 2 notes now.\n"
    assert memory(here, "edit", "--file", "-", input=f"[{number}] eins\n") == (
        "0 added, 0 changed, 1 deleted; 1 note now.\n"
    )
    said = one_sentence(tidegate("memory", "edit", "--file", "-", home=here.home, input="[999] x\n"))
    kept = re.search(r"your text is in (\S+\.txt)", said)
    assert "no note 999" in said and kept and Path(kept[1]).read_text() == "[999] x\n"
    Path(kept[1]).unlink()
    assert "cannot be read" in one_sentence(tidegate("memory", "edit", "--file", "/nowhere", home=here.home))
    assert "--file" in one_sentence(tidegate("memory", "edit", home=here.home, input=""))
    assert "[" + number + "] eins" in memory(here, "list")


EDITOR = """
import json, os, sys, urllib.request
path = sys.argv[-1]
text = open(path).read()
if os.environ.get("MEANWHILE"):
    key = open(os.environ["HOME_OF_IT"] + "/api-key").read().strip()
    body = json.dumps({"text": "meanwhile"}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(os.environ["MEANWHILE"] + "/api/memory", body, headers))
open(path, "w").write(text.replace("an old text", "from my editor"))
sys.exit(int(os.environ.get("CODE", "0")))
"""


def test_notes_are_edited_in_the_users_editor_and_a_conflict_loses_nothing(
    here: GatewayProcess, tmp_path: Path
) -> None:
    """F3: the user who saves last is told, and their text is kept."""
    editor = tmp_path / "my editor.py"
    editor.write_text(EDITOR)
    command = {"command": ("memory", "edit")}
    env = {
        "EDITOR": f"{sys.executable} '{editor}'",
        "VISUAL": "",
        "TMPDIR": str(tmp_path),
        "HOME_OF_IT": str(here.home),
    }
    memory(here, "add", "an old text")
    with at_terminal(here.home, **command, CODE="3", **env) as (terminal, process):  # type: ignore[arg-type]
        terminal.until("code 3, so nothing was changed")
        assert process.wait(WAIT) == 1
    with at_terminal(here.home, **command, MEANWHILE=here.address, **env) as (terminal, process):  # type: ignore[arg-type]
        terminal.until(r"changed in the meantime.*your text is in (\S+\.txt)")
        assert process.wait(WAIT) == 1
    (kept,) = tmp_path.glob("tidegate-notes-*.txt")
    assert "from my editor" in kept.read_text()
    assert "an old text" in memory(here, "list") and "meanwhile" in memory(here, "list")
    with at_terminal(here.home, **command, **env) as (terminal, process):  # type: ignore[arg-type]
        terminal.until("2 notes now")
        assert process.wait(WAIT) == 0
    assert "from my editor" in memory(here, "list")
    with at_terminal(here.home, **command, **env) as (terminal, process):  # type: ignore[arg-type]
        terminal.until("Nothing was changed")
        assert process.wait(WAIT) == 0


def test_without_memory_the_command_says_so_in_one_sentence(tmp_path: Path, nobody: Path) -> None:
    """F3: as is a gateway that is not running."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text('[server]\nport = 0\n[agents.main]\ntools = ["clock"]\n')
    with gateway(home):
        assert "'memory' toolset" in one_sentence(tidegate("memory", "list", home=home))
    assert "No gateway is running" in one_sentence(tidegate("memory", "list", home=nobody))
