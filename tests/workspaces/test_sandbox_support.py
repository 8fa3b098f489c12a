"""`tidegate doctor` on machines that lack a feature, simulated in namespaces of the test."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.workspaces.network_machine import run_isolated
from tidegate.workspaces.kernel import sandbox_support, seccomp
from tidegate.workspaces.processes.children import find_program

HIDE = 'for program in {}; do mount --bind /dev/null "$(command -v $program)"; done'
LACKING = {
    "bubblewrap": (HIDE.format("bwrap"), "install bubblewrap"),
    "user namespaces": ("echo 0 >/proc/sys/user/max_user_namespaces", "user.max_user_namespaces"),
    "control groups": ("mount -t tmpfs none /sys/fs/cgroup", "package systemd"),
    "seccomp": ("mount -t tmpfs none /proc/sys/kernel", "CONFIG_SECCOMP_FILTER"),
    "pasta": (HIDE.format("pasta nft"), "install passt and nftables"),
}


def findings(home: Path, before: str, *command: str) -> str:
    program = shlex.join([sys.executable, "-m", "tidegate", *command, "--home", str(home), "--json"])
    # A further namespace below those of the test, so that its settings are not the machine's.
    script = f"export PATH=$PATH:/usr/sbin:/sbin; {before} && {{ {program} || [ $? = 1 ]; }}"
    return run_isolated(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script])


def doctor(home: Path, before: str = ":") -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(findings(home, before, "doctor"))}


@pytest.fixture
def connected(tmp_path: Path) -> Path:
    (tmp_path / "tidegate.toml").write_text("[workspaces]\nnetwork = true\n")
    return tmp_path


@pytest.mark.parametrize("name", LACKING)
def test_the_doctor_names_a_missing_sandbox_feature_and_its_remedy(connected: Path, name: str) -> None:
    """X12, X22: for the machine as it is, whether or not a gateway runs."""
    before, words = LACKING[name]
    usual, lacking = doctor(connected), doctor(connected, before)
    assert lacking[name]["state"] == "warn" and words in lacking[name]["text"], lacking[name]
    assert name == "control groups" or usual[name]["state"] == "ok"
    assert {other for other in LACKING if lacking[other] != usual[other]} <= {name}


def test_features_that_the_settings_do_not_need_cause_no_warning(tmp_path: Path) -> None:
    found = doctor(tmp_path, LACKING["pasta"][0])["pasta"]
    assert found["state"] == "ok" and found["text"].startswith("not needed with these settings.")


def test_config_check_finds_an_unavailable_network(connected: Path) -> None:
    """X22: with the sentence with which commands are refused."""
    check = json.loads(findings(connected, LACKING["pasta"][0], "config", "check"))
    [warning] = check["warnings"]
    assert check["ok"] and f"{connected}/tidegate.toml: [workspaces] network" in warning
    assert "pasta and nft are not installed here: install passt and nftables" in warning


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user tries it as who they are")
def test_user_namespaces_are_tested_as_the_user_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X12: a machine may allow only root to create them, and commands never run as root."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "unshare").write_text('#!/bin/sh\n[ "$(id -u)" = 0 ]\n')
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setattr(
        sandbox_support, "find_program", lambda name: str(tmp_path / name) if name == "unshare" else find_program(name)
    )
    found = {each.name: each.missing for each in sandbox_support.sandbox_features()}
    assert "this user may not create them" in found["user namespaces"]


def test_a_machine_without_a_system_call_filter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = os.uname_result(("Linux", "host", "6.0", "1", "vax"))
    monkeypatch.setattr(os, "uname", lambda: unknown)
    assert "no system call filter for" in seccomp.problem()
