"""The skill library: rare discovery, one parse, fresh reads."""

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.logs import capture_logs
from tests.skills.skill_folders import Clock, configured, skill
from tidegate.skills import InvalidSkill, SkillLibrary, SkillSet
from tidegate.skills.discovery_cache import DISCOVERY_SECONDS, DiscoveryCache, DiscoveryKey

pytestmark = pytest.mark.anyio


async def test_a_thousand_sessions_parse_an_unchanged_skill_once(home: Path) -> None:
    """And look at its folder once in a while, not once each."""
    skill(home / "skills", "one")
    clock = Clock()
    library = SkillLibrary(configured(home), clock=clock)
    texts = set()
    for _ in range(1000):
        texts.add(await library.part("main", "p"))
        clock.now += DISCOVERY_SECONDS / 8
    files, parsed, looks, _ = library.caches()
    assert len(texts) == 1 and "- one: What one is for." in texts.pop()
    assert (parsed.misses, looks.misses) == (1, 125)
    assert files.size + parsed.size + looks.size <= 3


async def test_an_edit_is_seen_by_the_next_discovery_and_read(home: Path) -> None:
    clock = Clock()
    folder = skill(home / "skills", "one", "Old.", body="Old words.")
    library = SkillLibrary(configured(home), clock=clock)
    (entry,) = (await library.skill_set("main")).entries
    skill(home / "skills", "one", "New.", body="New words.")
    skill(home / "skills", "two")
    assert (await library.open(entry)).text == "New words."
    assert "Old." in await library.part("main", "p")
    clock.now += DISCOVERY_SECONDS
    assert "New." in await library.part("main", "p") and "- two: " in await library.part("main", "p")
    (folder / "SKILL.md").write_text("---\nname: other\ndescription: x\n---\n")
    with pytest.raises(InvalidSkill, match="make them equal"):
        await library.open(entry)
    (folder / "SKILL.md").unlink()
    with pytest.raises(InvalidSkill, match="no longer exists"):
        await library.open(entry)
    assert await library.file(entry, "SKILL.md") is None


async def test_problems_are_logged_once_and_hidden_skills_are_not_warnings(home: Path, tmp_path: Path) -> None:
    """A broken skill costs no session anything."""
    project = tmp_path / "project"
    for folder in (home / "skills", project / ".agents" / "skills"):
        skill(folder, "one")
    skill(home / "skills", "broken")
    (home / "skills" / "broken" / "SKILL.md").write_bytes(b"\xff\xfe")
    (home / "skills" / "one" / "SKILL.md").open("a").close()
    skill(home / "skills", "one", "Another.")
    clock = Clock()
    library = SkillLibrary(configured(home, project=project), clock=clock)
    with capture_logs() as lines:
        for _ in range(3):
            assert (await library.part("main", "p")).count("\n- ") == 1
            clock.now += DISCOVERY_SECONDS
    assert sorted((line["level"], line["event"], Path(line["path"]).parent.name) for line in lines) == [
        ("info", "a skill is hidden by another", "one"),
        ("warning", "a skill is left out", "broken"),
    ]


async def test_an_agent_without_the_toolset_has_no_skills(home: Path) -> None:
    skill(home / "skills", "one")
    library = SkillLibrary(configured(home, more='[agents.other]\nmodel = "main"\n'))
    assert library.serves("main") and not library.serves("other") and not library.serves("nobody")
    assert await library.skill_set("other") == SkillSet()


async def test_sessions_that_begin_together_share_one_discovery() -> None:
    looked: list[str] = []

    def look(whom: DiscoveryKey) -> str:
        looked.append(whom.agent)
        return f"found for {whom.agent}"

    looks = DiscoveryCache("test", look, "", len)
    found: list[str] = []

    async def begin(agent: str) -> None:
        found.append(await looks.of(DiscoveryKey(agent)))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(begin, f"agent {number % 2}")
    assert sorted(looked) == ["agent 0", "agent 1"] and len(found) == 50


async def test_a_folder_that_does_not_answer_holds_up_no_session() -> None:
    """The previous result is used, and no second thread is lost to it."""
    clock, answers, hangs = Clock(), threading.Event(), threading.Event()
    looked: list[str] = []

    def look(whom: DiscoveryKey) -> str:
        looked.append(whom.agent)
        if hangs.is_set():
            answers.wait(20)
        return f"look {len(looked)}"

    looks = DiscoveryCache("test", look, "nothing", len, clock=clock, patience=0.05)
    with capture_logs() as lines, anyio.fail_after(20):
        assert await looks.of(DiscoveryKey("main")) == "look 1"
        hangs.set()
        for _ in range(3):
            clock.now += DISCOVERY_SECONDS
            assert await looks.of(DiscoveryKey("main")) == "look 1"
        assert (len(looked), len(lines)) == (2, 1) and "does not respond" in lines[0]["event"]
        hangs.clear()
        answers.set()
        while await looks.of(DiscoveryKey("main")) != "look 3":
            clock.now += DISCOVERY_SECONDS
            await anyio.lowlevel.checkpoint()


async def test_a_cancelled_caller_does_not_cancel_the_discovery() -> None:
    started, goes_on = threading.Event(), threading.Event()

    def look(whom: DiscoveryKey) -> str:
        started.set()
        goes_on.wait(20)
        return "found"

    looks = DiscoveryCache("test", look, "nothing", len)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(looks.of, DiscoveryKey("main"))
                await anyio.to_thread.run_sync(started.wait)
                leaving.cancel_scope.cancel()
                group.start_soon(anyio.to_thread.run_sync, goes_on.set)
            assert await looks.of(DiscoveryKey("main")) == "found"


async def test_files_of_a_skill_are_listed_and_read_within_its_folder(home: Path) -> None:
    """X07, X08: whatever path is given."""
    folder = skill(home / "skills", "one", references__rates_md="# Rates\n", scripts__run_py="print(1)\n")
    (folder / "logo.png").write_bytes(b"\x89PNG\0\0")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / "out").symlink_to(home)
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "again.md").symlink_to("references/rates.md")
    (home / "secret").write_text("secret")
    library = SkillLibrary(configured(home))
    (entry,) = (await library.skill_set("main")).entries
    contents = await library.open(entry)
    assert contents.text == "Do it." and not contents.more and contents.seen == ""
    assert contents.files == ("again.md", "logo.png", "out", "passwd", "references/rates.md", "scripts/run.py")
    for path in ("references/rates.md", "./references//rates.md", "again.md", "scripts/../references/rates.md"):
        page = await library.file(entry, path)
        assert page is not None and page.text == "# Rates\n" and page.complete
    page = await library.file(entry, "logo.png")
    assert page is not None and page.text is None and page.size == 6
    for path in ("passwd", "out/secret", "../../secret", "/etc/passwd", "..", "SKILL.md/x", "\0", "references"):
        with pytest.raises(InvalidSkill):
            await library.file(entry, path)
    for path in ("none.md", "none/none.md"):
        assert await library.file(entry, path) is None
