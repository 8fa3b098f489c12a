"""Files of a project that other programs execute: attacks from a sandbox and with the file tools."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.logs import capture_logs
from tests.workspaces.harness import open_workspaces, until
from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files.edit import edit
from tidegate.tools.builtin.files.write import write
from tidegate.workspaces import protected_mounts
from tidegate.workspaces.backends import bubblewrap_sandbox
from tidegate.workspaces.files.file_user import acting_as, gateway_user
from tidegate.workspaces.protected_mounts import find_mounts

pytestmark = pytest.mark.anyio

SOMEBODY = 12345

PLANT = "printf '#!/bin/sh\\ntouch {proof}\\n' > {path}; chmod +x {path}"


def git(folder: Path, *arguments: str) -> str:
    """Git as the owner of the project runs it, outside."""
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder, env={**os.environ, **who, "HOME": str(folder.parent)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if "project" in folder.parts:
        give(folder)
    return done.stdout


def give(folder: Path) -> None:
    """A gateway run by root works in a project as its owner; in a project of root's it could write nothing."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


@pytest.fixture
def project(home: Path) -> Path:
    project = home / "project"
    project.mkdir(parents=True)
    git(project, "init", "-q", "-b", "main")
    (project / "a").write_text("a\n")
    (project / ".vscode").mkdir()
    (project / ".vscode" / "tasks.json").write_text("{}")
    (project / ".envrc").write_text("true\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    return project


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of_git(project: Path) -> dict[str, bytes]:
    """Everything that configures git, wherever git looks for it."""
    common = Path(git(project, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
    return {"config": (common / "config").read_bytes(), **contents(common / "hooks")}


ATTACKS = (
    "git config core.fsmonitor /workspace/evil",
    "git config --worktree core.fsmonitor /workspace/evil",
    "echo evil > .git/hooks/post-commit",
    "mv .git .git2; cp -r .git2 .git; echo evil >> .git/config; echo evil > .git/hooks/post-commit",
    "mv .git/hooks .git/old; mkdir .git/hooks; echo evil > .git/hooks/post-commit",
    "rm -f .git/config; echo evil > .git/config",
    "ln .git/config c; echo evil >> c",
    "ln -s .git g; echo evil >> g/config; echo evil > g/hooks/post-commit",
    "cp .git/config n; echo evil >> n; mv -f n .git/config",
    "mkdir evil; cp .git/config evil; echo evil >> evil/config; rm -f .git/commondir; echo ../evil > .git/commondir",
    "mount --bind a .git/config; umount .git/config; umount -l .git; echo evil >> .git/config",
    "(sleep 0.2; echo evil >> .git/config) & wait",
    'python3 -c \'import os; os.rename(".git", "x")\'',
)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_command_can_change_the_owners_git_configuration(home: Path, project: Path, attack: str) -> None:
    """X12: nor put another repository in the place of the project's."""
    before = of_git(project)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.run(session, attack, agent="project")
        await harness.run(session, attack, agent="project")
        assert of_git(project) == before
        assert "evil" not in git(project, "config", "--list") and git(project, "rev-parse", "HEAD")


async def test_no_background_process_can_change_it_later(home: Path, project: Path) -> None:
    before = of_git(project)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        command = "while :; do echo evil >> .git/config; echo evil > .git/hooks/post-commit; touch tried; done"
        await harness.of(session, "project").start("late", command)
        await until(lambda: (project / "tried").exists())
        assert of_git(project) == before


async def test_the_owners_git_runs_nothing_left_by_a_command(home: Path, project: Path, tmp_path: Path) -> None:
    """The complete attack: hooks, a monitor, another common folder; then the owner commits and inspects."""
    proof = tmp_path / "proof"
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        for path in (".git/hooks/post-commit", ".git/hooks/pre-commit", "evil"):
            await harness.run(session, PLANT.format(proof=proof, path=path), agent="project")
        await harness.run(session, f"git config core.fsmonitor {project}/evil", agent="project")
        await harness.run(session, "git config core.hooksPath .", agent="project")
    (project / "a").write_text("changed\n")
    git(project, "status")
    git(project, "commit", "-qam", "two")
    assert not proof.exists()


@pytest.mark.parametrize("damage", ["rm .git/HEAD", "echo x > .git/HEAD", "chmod 000 .git", "mv .git/refs .git/r"])
async def test_a_bare_repository_beside_a_damaged_one_is_disarmed(
    home: Path, project: Path, tmp_path: Path, damage: str
) -> None:
    """Git treats a folder as a repository if its `.git` is not one."""
    proof = tmp_path / "proof"
    bare = (
        "mkdir objects refs; echo 'ref: refs/heads/main' > HEAD;"
        "cp .git/index index; printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n' > config;"
        f"printf '\\tworktree = {project}\\n\\tfsmonitor = {project}/evil\\n' >> config"
    )
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        plant = PLANT.format(proof=proof, path="evil")
        await harness.run(session, f"{plant}; {bare}; {damage}", agent="project")
        await harness.workspaces.reconcile()
        with contextlib.suppress(subprocess.CalledProcessError):  # it is damaged
            git(project, "status")
        assert not proof.exists() and (project / "HEAD.refused").exists() and not (project / "HEAD").exists()
        assert "was put next to .git" in await harness.take_notices(session)


async def test_git_works_in_a_sandbox(home: Path, project: Path) -> None:
    """Commits, branches, merges, stashes and a clean-up, all visible to the owner outside."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(
            session,
            "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; set -e;"
            "git switch -qc topic; echo b > b; git add -A; git commit -qm topic; git switch -q main; echo c > c;"
            "git add c; git commit -qm main; git merge -qm merged topic; echo d >> a; git stash -q; git stash pop -q;"
            "git commit -qam d; git gc -q; git reset -q --hard; git tag v1; git status --porcelain",
            agent="project",
        )
    assert git(project, "log", "--format=%s", "-2").split() == ["d", "merged"]
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", [".vscode", ".zed", ".helix", ".devcontainer", ".config/fish"])
async def test_settings_of_editors_and_shells_are_read_only(home: Path, project: Path, name: str) -> None:
    """X12: nor can a folder on the way to them be replaced."""
    (project / name).mkdir(parents=True, exist_ok=True)
    (project / name / "settings.json").write_text("{}")
    give(project)
    before = contents(project / name), (project / ".envrc").read_bytes()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        for attack in (
            "echo evil > .envrc", f"echo evil > {name}/settings.json", f"mv {name} v; mkdir {name}; touch {name}/x",
            f"rm -rf {name} .envrc", "echo evil > n; mv -f n .envrc", f"p={name}; mv ${{p%%/*}} q; cp -r q ${{p%%/*}}",
        ):  # fmt: skip
            await harness.run(session, attack, agent="project")
            assert (contents(project / name), (project / ".envrc").read_bytes()) == before, attack


@pytest.mark.parametrize("backend", ["bubblewrap", "local", "none"])
async def test_file_tools_do_not_write_protected_files_by_any_path(home: Path, project: Path, backend: str) -> None:
    """Whether they exist or not, through links and in folders that would be created on the way."""
    (project / "linked").symlink_to(".git")
    (project / "to-hooks").symlink_to(".git/hooks")
    before = of_git(project)
    async with open_workspaces(home, backend=backend) as harness:
        files = await harness.of(await harness.new_session(), "project").files()
        for path in (
            ".git/hooks/post-commit", ".git/config", ".git/commondir", "linked/config", "to-hooks/pre-commit",
            "sub/.git/config", "sub/.git", ".envrc", ".vscode/settings.json", ".idea/workspace.xml", ".bashrc",
            ".nvim.lua", ".claude/settings.json", "a/../.GIT/config", "./.git/modules/x/config",
            ".zed/settings.json", ".helix/config.toml", ".cursor/mcp.json", ".devcontainer/devcontainer.json",
            ".devcontainer.json", ".cshrc", ".tcshrc", ".login", ".kshrc", ".config/fish/config.fish",
            "sub/.envrc", "a/b/c/d/e/.vscode/tasks.json", "src/.exrc", "x/.cursor/mcp.json", "x/.Claude/settings.json",
        ):  # fmt: skip
            with pytest.raises(ToolFailed):
                await write(files, path, "evil")
        with pytest.raises(ToolFailed, match="is read-only: other programs"):
            await edit(files, ".envrc", "true", "evil")
        await write(files, ".gitignore", "x\n")
        await write(files, "src/new.py", "x\n")
    assert of_git(project) == before and not (project / ".idea").exists() and not (project / "sub" / ".git").exists()


async def test_hooks_named_in_the_configuration_are_protected(home: Path, project: Path) -> None:
    """`core.hooksPath` and `include.path` may name files of the project itself."""
    (project / ".husky").mkdir()
    (project / ".githooks").mkdir()
    (project / "shared").mkdir()
    (project / "shared" / "git").write_text("[core]\n\thooksPath = .githooks\n")
    (project / "more.gitconfig").write_text("[include]\n\tpath = shared/git\n")
    with (project / ".git" / "config").open("a") as config:
        config.write("[core] hooksPath = .husky\n")  # git accepts a key on the line of its section
    git(project, "config", "include.path", "../more.gitconfig")
    assert git(project, "config", "--get-all", "core.hooksPath").split() == [".husky", ".githooks"]
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        for path in (".husky/pre-commit", "more.gitconfig", "shared/git", ".githooks/pre-commit"):
            done, _ = await harness.run(session, f"echo evil >> {path}", agent="project")
            assert done.code != 0
            with pytest.raises(ToolFailed):
                await write(await harness.of(session, "project").files(), path, "evil")


async def test_submodules_worktrees_and_nested_repositories_are_protected(
    home: Path, project: Path, tmp_path: Path
) -> None:
    """And commits in them work."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    git(other, "commit", "-q", "--allow-empty", "-m", "one")
    git(project, "submodule", "--quiet", "add", str(other), "deps/other")
    git(project, "worktree", "add", "-q", str(project / "trees" / "topic"))
    git(project, "clone", "-q", str(other), "apps/web/nested")
    places = [project / "deps" / "other", project / "trees" / "topic", project / "apps" / "web" / "nested"]
    before = [of_git(place) for place in places]
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        for place in places:
            inside = f"cd /workspace/{place.relative_to(project)}"
            for attack in (
                "git config core.fsmonitor evil", "mv .git x; git init", "echo 'gitdir: ../x' > .git",
                'cd "$(git rev-parse --git-dir)"; echo /workspace/x > commondir; echo evil > hooks/post-commit',
                "cd ..; mv * x; mkdir -p $OLDPWD",
            ):  # fmt: skip
                await harness.run(session, f"{inside} && {{ {attack}; }}", agent="project")
        assert [of_git(place) for place in places] == before
        for place in places[::2]:
            who = "git -c user.name=a -c user.email=a@b"
            inside = f"cd /workspace/{place.relative_to(project)}"
            await harness.output_of(session, f"{inside}; {who} commit -q --allow-empty -m two", agent="project")
            assert git(place, "log", "-1", "--format=%s") == "two\n"


async def test_no_link_leads_a_mount_out_of_the_project(home: Path, project: Path, tmp_path: Path) -> None:
    """X12: a link that a session left under a protected name shows nothing of the machine to the next sandbox."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("sk-secret")
    for name in (".idea", ".profile", "sub"):
        (project / name).symlink_to(os.path.relpath(secret, project))
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        done, printed = await harness.run(session, "cat .idea/key sub/key; cat .profile/key", agent="project")
        assert done.code != 0 and "sk-secret" not in printed


@pytest.mark.parametrize("other", ["a link", "a folder"])
async def test_a_folder_exchanged_while_the_sandbox_opens_is_never_shown(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """X12: between checking a folder and mounting it, another session's command may replace it."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("sk-secret")

    def then_exchange(folder: Path) -> tuple[protected_mounts.ProtectedMount, ...]:
        found = find_mounts(folder)
        (project / ".vscode").rename(project / "aside")
        if other == "a link":
            (project / ".vscode").symlink_to(os.path.relpath(secret, project))
        else:
            secret.rename(project / ".vscode")
        return found

    monkeypatch.setattr("tidegate.workspaces.backends.bubblewrap.find_mounts", then_exchange)
    async with open_workspaces(home) as harness:
        wanted = "cannot be started" if other == "a link" else "changed while the sandbox was being opened"
        with pytest.raises(ToolFailed, match=wanted):
            await harness.run(await harness.new_session(), "cat .vscode/key", agent="project")


async def test_a_file_replaced_by_the_owner_is_protected_again(home: Path, project: Path) -> None:
    """The mount goes with its file: the running processes are ended, and the next command gets a new sandbox."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.of(session, "project").start("late", "sleep 1000")
        git(project, "config", "user.name", "me")
        await harness.workspaces.reconcile()
        assert "was replaced from outside" in await harness.take_notices(session)
        before = of_git(project)
        done, _ = await harness.run(session, "git config core.fsmonitor evil", agent="project")
        assert done.code != 0 and of_git(project) == before


@pytest.mark.parametrize("attack", ["echo evil > .bashrc", "mkdir .idea; echo evil > .idea/x", "ln -s a .zshrc"])
@pytest.mark.parametrize("then", ["look", "end", "command"])
async def test_a_protected_file_created_by_a_command_is_renamed(
    home: Path, project: Path, attack: str, then: str
) -> None:
    """X12: a missing file cannot be covered by a mount, so it is found by name: before the next command, on the timer,
    and when the sandbox ends. The agent is told."""
    (name,) = re.findall(r"\.(?:bashrc|idea|zshrc)\b", attack)[:1]
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        done, _ = await harness.run(session, attack, agent="project")  # on a busy machine it may be found at once
        if then != "end":
            await (harness.workspaces.reconcile() if then == "look" else harness.run(session, "true", agent="project"))
            take_notices = f"{done.note} {await harness.take_notices(session)}"
            assert f"a command created {name}, which other programs execute" in take_notices
    assert not os.path.lexists(project / name) and os.path.lexists(project / f"{name}.refused")


@pytest.mark.parametrize(
    "attack",
    ["mkdir -p a1/b1; echo evil > a1/b1/.envrc", "mkdir -p a1/.vscode; mv a1 b; echo evil > b/.vscode/tasks.json",
     "mkdir -p s/.cursor; echo evil > s/.cursor/mcp.json", "ln -s ../a deep/er/.nvim.lua"],
)  # fmt: skip
@pytest.mark.parametrize("then", ["look", "end"])
async def test_a_protected_file_created_in_a_subfolder_is_renamed(
    home: Path, project: Path, attack: str, then: str
) -> None:
    """X12: direnv and editors read it when their user works in that folder."""
    (project / "deep" / "er").mkdir(parents=True)
    give(project)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        done, _ = await harness.run(session, attack, agent="project")
        if then == "look":
            await harness.workspaces.reconcile()
            assert "a command created " in f"{done.note} {await harness.take_notices(session)}"
    names = {path.name for path in project.rglob("*") if ".git" not in path.parts}
    assert any(name.endswith(".refused") for name in names)
    assert len(list(project.rglob(".envrc"))) == len(list(project.rglob(".vscode"))) == 1  # those of the owner


async def test_settings_in_subfolders_are_read_only(home: Path, project: Path) -> None:
    """X12: nor can a folder on the way to them be replaced."""
    for name in ("a1/.envrc", "a1/b1/c1/.vscode/tasks.json", "d1/.cursor/mcp.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("owner's")
    give(project)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        for attack in (
            "echo evil > a1/.envrc", "echo evil > a1/b1/c1/.vscode/tasks.json", "mv a1 a2; cp -r a2 a1",
            "rm -rf d1/.cursor a1; mkdir -p a1; echo evil > a1/.envrc", "touch a1/b1/c1/.vscode/settings.json",
        ):  # fmt: skip
            await harness.run(session, attack, agent="project")
            assert contents(project / "a1") == {".envrc": b"owner's", "b1/c1/.vscode/tasks.json": b"owner's"}, attack
            assert contents(project / "d1") == {".cursor/mcp.json": b"owner's"}, attack
        assert await harness.output_of(session, "echo fine > a1/new; cat a1/new", agent="project") == "fine"


@pytest.mark.parametrize(
    "attack",
    ["echo evil >> .envrc", "echo evil >> settings/envrc", "rm .envrc; echo evil > .envrc",
     "mv settings s; cp -r s settings", "ln -sfn a .envrc", "echo evil >> .git/config", "echo evil >> .bare/config",
     "mv .bare b; cp -r b .bare",
     "rm .git; cp -r .bare .git; echo evil >> .git/config", "cp -r .bare b; ln -sfn b .git"],
)  # fmt: skip
async def test_no_command_changes_or_replaces_what_a_link_leads_to(home: Path, project: Path, attack: str) -> None:
    """X12: a `.git` or `.envrc` of the owner that is a link into the project."""
    (project / "settings").mkdir()
    (project / ".envrc").rename(project / "settings" / "envrc")
    (project / ".git").rename(project / ".bare")
    (project / ".envrc").symlink_to("settings/envrc")
    (project / ".git").symlink_to(".bare")
    give(project)
    before = of_git(project), (project / ".envrc").read_bytes()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.run(session, attack, agent="project")
        await harness.workspaces.reconcile()
        for name, target in ((".envrc", "settings/envrc"), (".git", ".bare")):
            if not os.path.lexists(project / name):  # it was replaced, and is put back by hand
                assert os.path.lexists(project / f"{name}.refused")
                (project / name).symlink_to(target)
        assert (of_git(project), (project / ".envrc").read_bytes()) == before


async def test_a_protected_file_that_the_owner_creates_in_a_subfolder_is_kept(home: Path, project: Path) -> None:
    """An editor's settings that appear while no command runs are logged once and stay."""
    with capture_logs() as lines:
        async with open_workspaces(home) as harness:
            session = await harness.new_session()
            await harness.output_of(session, "mkdir a1", agent="project")
            await harness.workspaces.reconcile()
            (project / "a1" / ".idea").mkdir()
            give(project)
            for _ in range(3):
                await harness.workspaces.reconcile()
    assert [line["path"] for line in lines if line["event"] == bubblewrap_sandbox.NEW] == [f"{project}/a1/.idea"]
    assert (project / "a1" / ".idea").is_dir()


async def test_a_protected_file_that_appears_while_no_command_runs_is_kept(home: Path, project: Path) -> None:
    """Created outside, as an editor creates its settings: it is logged once, stays, and the next sandbox covers it."""
    with capture_logs() as lines:
        async with open_workspaces(home) as harness:
            session = await harness.new_session()
            await harness.output_of(session, "true", agent="project")
            await harness.workspaces.reconcile()
            (project / ".idea").mkdir()
            give(project)
            for _ in range(3):
                await harness.workspaces.reconcile()
        async with open_workspaces(home) as harness:
            done, _ = await harness.run(session, "echo more > .idea/startup.xml", agent="project")
            assert done.code != 0
    assert [line["path"] for line in lines if line["event"] == bubblewrap_sandbox.NEW] == [f"{project}/.idea"]


async def test_no_link_makes_the_gateway_rename_another_head(home: Path, project: Path, tmp_path: Path) -> None:
    """X12: a session whose sandbox is older than a repository can replace its folder with a link."""
    other = tmp_path / "other.git"
    other.mkdir()
    (other / "HEAD").write_text("ref: refs/heads/main\n")
    async with open_workspaces(home) as harness:
        first, second = await harness.new_session(), await harness.new_session()
        await harness.output_of(first, "mkdir sub; git init -q sub", agent="project")
        await harness.of(second, "project").start("late", "sleep 1000")
        await harness.output_of(first, f"mv sub aside; ln -s {other} sub", agent="project")
        await harness.workspaces.reconcile()
        assert "was replaced from outside" in await harness.take_notices(second)
        await harness.run(second, "true", agent="project")
    assert [path.name for path in other.iterdir()] == ["HEAD"]


@pytest.mark.parametrize("hiding", ["mkdir -p HEAD.refused/x", "chmod 555 .", "chmod 000 ."])
async def test_a_bare_repository_is_disarmed_whatever_is_around_it(home: Path, project: Path, hiding: str) -> None:
    """X12: neither another entry in its place nor the folder's permissions preserve its HEAD."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.run(session, f"echo 'ref: refs/heads/main' > HEAD; {hiding}", agent="project")
        await harness.workspaces.reconcile()
        assert not (project / "HEAD").exists() and list(project.glob("HEAD.refused*"))
        await harness.output_of(session, "git status", agent="project")


@pytest.mark.parametrize("mode", ["100", "300"])
@pytest.mark.parametrize("place", [".", "apps"])
async def test_an_unreadable_folder_hides_no_repository(home: Path, project: Path, place: str, mode: str) -> None:
    """X12: the gateway cannot read it, and the next command could open it again."""
    git(project, "init", "-q", "apps/web")
    repository = project if place == "." else project / "apps" / "web"
    before = of_git(repository)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.run(session, f"chmod {mode} {place}", agent="project")
    async with open_workspaces(home) as harness:
        attack = f"chmod 755 {place}; echo evil >> {place if place == '.' else 'apps/web'}/.git/config"
        await harness.run(session, attack, agent="project")
    (project / place).chmod(0o755)
    assert of_git(repository) == before


async def test_settings_in_an_unreadable_folder_stay_unchanged(home: Path, project: Path) -> None:
    """X12"""
    (project / ".claude").mkdir()
    (project / ".claude" / "settings.json").write_text("{}")
    give(project)
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.run(session, "chmod 000 .claude", agent="project")
    async with open_workspaces(home) as harness:
        await harness.run(session, "chmod 755 .claude; echo evil > .claude/settings.json", agent="project")
    (project / ".claude").chmod(0o755)
    assert (project / ".claude" / "settings.json").read_text() == "{}"


def test_the_survey_of_a_large_project_is_bounded(tmp_path: Path) -> None:
    """The project's own repository comes first, however many folders there are."""
    git(tmp_path, "init", "-q")
    for number in range(2 * protected_mounts.FOLDERS):
        (tmp_path / f"{number:02}").mkdir()
    assert ".git/config" in {each.path for each in find_mounts(tmp_path)}


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user can give nothing away")
def test_no_file_of_root_is_given_to_the_owner_of_a_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X12: root creates the missing parts of a repository, and a command may exchange them at that moment."""
    secret, make = project / "secret", Path.mkdir
    secret.mkdir(mode=0o700)
    for sample in (project / ".git" / "hooks").iterdir():
        sample.unlink()
    (project / ".git" / "hooks").rmdir()

    def then_exchange(path: Path) -> None:
        make(path)
        with acting_as(gateway_user()):
            path.rmdir()
            secret.rename(project / ".git" / "hooks")

    monkeypatch.setattr(Path, "mkdir", then_exchange)
    find_mounts(project)
    assert (project / ".git" / "hooks").stat().st_uid == 0
    assert (project / ".git" / "commondir").stat().st_uid == SOMEBODY
