"""The examples on the page about memory work, run one after the other with one gateway."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core import open_test_plugins
from tests.gateway.process import WAIT, environment, gateway
from tidegate.config import MemorySettings, read
from tidegate.lifetimes import Scope
from tidegate.memory.extraction import LEAST_SAID, MOST_EXTRACTED, TRIES
from tidegate.memory.provider_notes import REST_SECONDS, WAIT_SECONDS
from tidegate.plugins import Draft, MemoryProvider
from tidegate.store import notes

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "memory.md").read_text()
WORDS = " ".join(PAGE.split())
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RUN = [
    (language, code)
    for language, code in BLOCKS
    if language == "python" or (language == "sh" and (shutil.which("curl") or "curl" not in code))
]

PROVIDER_SETTINGS = '[agents.main]\ntools = ["memory"]\n[memory]\nprovider = "mine"\n'


def test_every_example_works(tmp_path: Path) -> None:
    """H10, F3: as a reader would run them."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text("".join(code for language, code in BLOCKS if language == "toml"))
    assert [language for language, _ in BLOCKS] == ["toml", "sh", "sh", "sh", "toml", "python", "python"]
    with gateway(home) as running:
        key = (home / "api-key").read_text().strip()
        more = {"TIDEGATE": running.address, "TIDEGATE_KEY": key, "TIDEGATE_HOME": str(home)}
        for language, code in RUN:
            shell = f'tidegate() {{ {sys.executable} -m tidegate "$@"; }}\n' + code.replace("curl -sS", "curl -sSf")
            command = (
                [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", shell]
            )
            done = subprocess.run(
                command,
                env=environment(**more),
                capture_output=True,
                text=True,
                timeout=WAIT,
                check=False,
            )
            assert done.returncode == 0 and done.stdout.strip(), (code, done.stdout, done.stderr)
        kept = {note["text"] for note in running.call("GET", "/api/memory")["notes"]}
        assert kept == {"I like green tea", "I live in Ghent", "I speak Dutch", "I work at night"}
        assert [note["text"] for note in running.call("GET", "/api/memory?agent=main")["notes"]] == [
            "The release is on Tuesdays"
        ]


@pytest.mark.anyio
async def test_the_provider_of_the_page_is_one(tmp_path: Path) -> None:
    """As a file in the home folder."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(BLOCKS[-1][1])
    async with Scope("process") as scope:
        plugins, _ = await open_test_plugins(read(PROVIDER_SETTINGS, tmp_path), scope)
        (plugin,) = plugins.of_kind("memory")
        await check_provider(plugin.object)


async def check_provider(provider: MemoryProvider) -> None:
    draft = Draft(about="person", whose="p_anna", text="likes tea", author="p_anna", by="anna", source="person")
    note = await provider.remember(draft)
    assert await provider.part("main", "p_anna") == "- 1 (anna): likes tea"
    with pytest.raises(LookupError):
        await provider.forget("person", "p_bert", note.id)
    await provider.forget("person", "p_anna", note.id)
    assert list(await provider.listing("person", "p_anna")) == []


@pytest.mark.parametrize(
    ("says", "number"),
    [
        (r"at most ([\d,]+) bytes, with a number", notes.NOTE_BYTES),
        (r"Up to (\d+) notes, with", notes.NOTES_KEPT),
    ],
)
def test_its_numbers_are_right(says: str, number: int) -> None:
    found = re.search(says, PAGE)
    assert found and int(found[1].replace(",", "")) == number


def test_its_words_for_numbers_are_right_too(tmp_path: Path) -> None:
    assert (LEAST_SAID, MOST_EXTRACTED, TRIES) == (3, 8, 3)
    assert (
        "least three of your messages" in WORDS
        and "at most eight notes" in WORDS
        and "up to three attempts in total" in WORDS
    )
    assert (WAIT_SECONDS, REST_SECONDS) == (5.0, 30.0)
    assert "longer than five seconds" in WORDS and "not used for half a minute" in WORDS
    for name in re.findall(r"`memory\.(\w+)`", PAGE):
        assert name in MemorySettings.__struct_fields__
    assert read(BLOCKS[4][1], tmp_path).memory.at_end is False
