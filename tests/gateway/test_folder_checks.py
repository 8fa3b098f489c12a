"""The folders that agents are given hold nothing of the gateway's: looked at before it starts."""

import json
import pwd
import socket
from pathlib import Path

import pytest

from tests.gateway.process import gateway, tidegate
from tidegate.gateway import PreflightFailed, examine
from tidegate.gateway.preflight import folders
from tidegate.gateway.preflight.folders import OWN, SYSTEM
from tidegate.workspaces.backends import bubblewrap

pytestmark = pytest.mark.sandbox


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "mine" / "home"
    home.mkdir(mode=0o700, parents=True)
    (home / "api-key").write_text("k")
    return home


def write(home: Path, *, workspace: str | None = None, read_only: str | None = None, more: str = "") -> None:
    agent = "" if workspace is None else f"workspace = {json.dumps(workspace)}\n"
    seen = "" if read_only is None else f"read_only = [{json.dumps(read_only)}]\n"
    (home / "tidegate.toml").write_text(f"[workspaces]\n{seen}[agents.coder]\n{agent}{more}")


def refusal(home: Path) -> str:
    with pytest.raises(PreflightFailed) as told:
        examine(home)
    (error,) = told.value.errors
    return error


def test_every_command_refuses_the_home_folder_as_an_agents_folder(home: Path) -> None:
    """X13, X18: `workspace = "."` is the home folder itself; the start, `config check` and `doctor` say so alike."""
    write(home, workspace=".")
    start, check = tidegate("up", "--port", "0", home=home), tidegate("config", "check", home=home)
    assert (start.returncode, check.returncode) == (1, 1)
    assert start.stderr == check.stderr
    assert f"{home}/tidegate.toml: [agents.coder] workspace: the folder {home} is the gateway's home" in check.stderr
    assert "choose a folder elsewhere" in check.stderr
    doctor = tidegate("doctor", home=home)
    assert doctor.returncode == 1
    assert "fail  configuration: " in doctor.stdout and "is the gateway's home folder" in doctor.stdout


@pytest.mark.parametrize("setting", ["workspace", "read_only"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".", "is the gateway's home folder"),
        ("..", "contains the gateway's home folder"),
        ("projects/../../home", "is the gateway's home folder"),
        ("{up}", "contains the gateway's home folder"),
        ("/", "contains the gateway's home folder"),
        ("~", "contains the gateway's home folder"),
        ("{up}/link", "is the gateway's home folder"),
        ("{up}/link/..", "contains the gateway's home folder"),
        ("api-key", "is private to the gateway"),
        ("plugins", "is private to the gateway"),
        ("plugins/deeper", "is private to the gateway"),
        ("spool", "is private to the gateway"),
        ("trash", "is private to the gateway"),
        ("workspaces", "is private to the gateway"),
        ("workspaces/s_00000000000000000000000000000000", "is private to the gateway"),
        ("{up}/link/spool", "is private to the gateway"),
        ("outside/back", "contains the gateway's home folder"),
        ("~nobody-of-that-name/x", "of an unknown user"),
    ],
)
def test_no_folder_that_exposes_the_gateways_files_is_accepted(
    home: Path, monkeypatch: pytest.MonkeyPatch, setting: str, text: str, why: str
) -> None:
    """X13, X18: however it is written, and whatever links lead there."""
    monkeypatch.setenv("HOME", str(home.parent))
    (home.parent / "link").symlink_to(home)
    (home / "outside").symlink_to(home.parent.parent)
    (home.parent.parent / "back").symlink_to(home.parent)
    write(home, **{setting: text.format(up=home.parent)})
    where = "[agents.coder] workspace" if setting == "workspace" else "[workspaces] read_only"
    told = refusal(home)
    assert told.startswith(f"{home}/tidegate.toml: {where}: ")
    assert why in told


def test_a_home_folder_that_is_a_link_is_recognised(home: Path, tmp_path: Path) -> None:
    """X18: the target of the link counts."""
    linked = tmp_path / "linked"
    linked.symlink_to(home)
    write(home, workspace=str(home.parent))
    assert "contains the gateway's home folder" in refusal(linked)


def test_a_home_below_the_project_is_refused_and_a_project_elsewhere_is_not(home: Path, tmp_path: Path) -> None:
    """X18, V10: a folder beside the home, one of the user's own in it, and one that is not there yet are all right."""
    beside, inside = tmp_path / "project", home / "papers"
    beside.mkdir()
    inside.mkdir()
    inside.chmod(0o777)  # else there is a warning when root runs this
    for folder in (beside, inside, home.parent / "homework", beside / "later"):
        write(home, workspace=str(folder), read_only=str(beside))
        assert examine(home).config.project("coder") == folder
    write(home, workspace="papers")
    assert examine(home).warnings == ()


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ('model = "m"\n[models.m]\napi = "demo"\nkey = "file:papers/key"\n', "[models.m] key"),
        ('model = "m"\n[models.m]\napi = "demo"\nheaders = { x-a = "file:papers/key" }\n', "[models.m] headers.x-a"),
        ('[web]\nsearch = "brave"\nsearch_key = "file:papers/key"\n', "[web] search_key"),
        ('[server]\ntls_cert = "cert"\ntls_key = "papers/key"\n', "[server] tls_key"),
    ],
)
def test_a_folder_that_contains_a_configured_secret_is_refused(home: Path, more: str, setting: str) -> None:
    """X18: wherever that lies."""
    (home / "papers").mkdir()
    (home / "papers" / "key").write_text("secret")
    write(home, workspace="papers", more=more)
    assert f"contains the secret of {setting}" in refusal(home)


KERNEL = ["/proc", "/proc/self", "/sys/kernel", "/dev", "/dev/../proc", "{up}/link", "/proc/1", "/proc/1/root"]
KERNEL += ["/proc/self/cwd", "{up}/link/self/cwd"]  # a different folder for each process


@pytest.mark.parametrize("setting", ["workspace", "read_only"])
@pytest.mark.parametrize("folder", KERNEL)
def test_no_folder_of_the_kernel_is_accepted(home: Path, setting: str, folder: str) -> None:
    """X18: the environment of the gateway is in /proc, and every device in /dev; with ssh as well."""
    (home.parent / "link").symlink_to("/proc")
    write(home, **{setting: folder.format(up=home.parent)})
    settings = (home / "tidegate.toml").read_text()
    for backend in ("auto", "ssh"):
        chosen = f'[workspaces]\nbackend = "{backend}"\nssh_host = "h"\n'
        (home / "tidegate.toml").write_text(settings.replace("[workspaces]\n", chosen))
        assert "which shows the machine's processes and devices; remove it" in refusal(home)


@pytest.mark.parametrize("setting", ["workspace", "read_only"])
@pytest.mark.parametrize("folder", ["/run", "/run/user", "/run/../run", "{up}/link"])
def test_no_folder_with_sockets_of_services_is_accepted(home: Path, setting: str, folder: str) -> None:
    """X13: a command could connect to them through a read-only mount."""
    (home.parent / "link").symlink_to("/run")
    write(home, **{setting: folder.format(up=home.parent)})
    assert "contains sockets of the machine's services" in refusal(home)


def test_a_disk_that_is_mounted_among_the_sockets_of_services_may_be_used(home: Path) -> None:
    run = home.parent / "run"
    for name in ("user/1000", "media/disk", "daemon"):
        (run / name).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run / "daemon" / "control"))
        for place in (home.parent, run, run / "user" / "1000", run / "daemon"):
            assert folders.shows_services(place, str(run)), place
        assert not folders.shows_services(run / "media" / "disk", str(run))


def test_a_variable_that_contains_a_secret_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X18: by the name that the settings refer to, by another name, from a file, and within a longer text."""
    model = '[agents.main]\nmodel = "m"\n[models.m]\napi = "demo"\nkey = "{}"\n[workspaces]\nenvironment = ["{}"]\n'
    (home / "key").write_text("a-secret-of-mine\n")
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    monkeypatch.setenv("SAME_KEY", "a-secret-of-mine")
    monkeypatch.setenv("HEADER", "Bearer a-secret-of-mine")
    monkeypatch.setenv("ADDRESS", "https://me:a-secret-of-mine@example.org/")
    monkeypatch.setenv("PLAIN", "something else")
    for reference, name in (
        ("env:MY_KEY", "MY_KEY"),
        ("env:MY_KEY", "SAME_KEY"),
        ("file:key", "MY_KEY"),
        ("env:MY_KEY", "HEADER"),
        ("file:key", "ADDRESS"),
    ):
        (home / "tidegate.toml").write_text(model.format(reference, name))
        assert refusal(home) == (
            f"{home}/tidegate.toml: [workspaces] environment: {name} contains the secret of [models.m] key, and "
            "every command could read it; remove it from the list"
        )
    for name in ("PLAIN", "NOT_SET"):
        (home / "tidegate.toml").write_text(model.format("env:MY_KEY", name))
        assert examine(home).config.workspaces.environment == (name,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ('[workspaces]\nread_only = ["/proc"]\n', "is in /proc"),
        (
            '[models.main]\napi = "demo"\nkey = "env:HOME"\n[workspaces]\nenvironment = ["HOME"]\n',
            "HOME contains the secret of [models.main] key",
        ),
        (
            '[models.main]\napi = "anthropic"\nbase_url = "http://10.0.0.1"\nmodel = "m"\nkey = "env:HOME"\n',
            "base_url would send its key to another machine over plain http",
        ),
    ],
)
def test_the_start_and_config_check_refuse_alike(home: Path, settings: str, sentence: str) -> None:
    """X18: nothing runs before it is mended, and the sentence says how."""
    (home / "tidegate.toml").write_text(settings)
    start, check = tidegate("up", "--port", "0", home=home), tidegate("config", "check", home=home)
    assert (start.returncode, check.returncode) == (1, 1)
    assert start.stderr == check.stderr
    assert sentence in check.stderr


@pytest.mark.parametrize("text", ["/", "/root", "/home", "/home/../root", "~", "link", "{daemon}"])
def test_no_users_home_folder_is_accepted_as_a_workspace(home: Path, text: str) -> None:
    """X13: `.bashrc` and `.ssh` there take effect when the user logs in."""
    (home / "link").symlink_to(Path.home())
    daemon = next(user.pw_dir for user in pwd.getpwall() if user.pw_shell.endswith("nologin"))
    write(home, workspace=text.format(daemon=daemon))
    assert " the home folder of " in refusal(home) or "contains the gateway's home folder" in refusal(home)
    start, check = tidegate("up", "--port", "0", home=home), tidegate("config", "check", home=home)
    assert (start.returncode, check.returncode) == (1, 1) and start.stderr == check.stderr


def test_a_folder_of_another_machine_is_not_compared_with_folders_of_this_one(home: Path) -> None:
    """X18: with ssh the same path leads somewhere else."""
    (home / "tidegate.toml").write_text(
        f'[workspaces]\nbackend = "ssh"\nssh_host = "h"\n[agents.coder]\nworkspace = "{home.parent}"\n'
    )
    assert examine(home).config.workspaces.backend == "ssh"


def test_a_home_folder_that_every_sandbox_shows_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X18: below the system's own folders every command would see it."""
    assert {f"/{name}" for name in bubblewrap.SYSTEM} == set(SYSTEM)
    (home / "tidegate.toml").write_text("")
    examine(home)
    monkeypatch.setattr(folders, "SYSTEM", ("/usr", str(home.parent)))
    assert refusal(home) == (
        f"the home folder {home} is in {home.parent}, which every sandbox shows: choose another with --home or "
        "TIDEGATE_HOME"
    )


def test_everything_that_a_gateway_creates_in_its_home_is_recognised_as_private(home: Path) -> None:
    """X18: a folder that it begins to make must be named where agents' folders are looked at."""
    (home / "api-key").unlink()
    with gateway(home) as running:
        running.say("run echo hello; seq 100000", "work")
        session = running.call("GET", "/api/sessions")["sessions"][0]["id"]
        running.call("POST", f"/api/sessions/{session}/end")
        assert (home / "trash").is_dir() and (home / "spool").is_dir()
        assert {path.name for path in home.iterdir() if path.is_dir()} <= OWN
