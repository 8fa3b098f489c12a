"""Checks which sandbox features this machine supports, and which package or setting provides a missing one.

The checks change nothing: they read settings and try once to create a user namespace. The results are valid for the
calling process; a gateway started differently may have more or fewer features.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidegate.workspaces.backends import sandbox_network
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroup_hierarchy import trees
from tidegate.workspaces.kernel.users import as_user, user_of
from tidegate.workspaces.processes.children import find_program

_PACKAGES = {"bwrap": "bubblewrap", "nsenter": "util-linux", "setpriv": "util-linux", "prlimit": "util-linux"}
_TRY_SECONDS = 10
_NOT_BECOME = 127  # setpriv's exit code if it cannot change the user
_SYSTEM = Path("/proc/sys")
_FORBIDDING = (
    ("user/max_user_namespaces", "0", "set user.max_user_namespaces to a number above 0 with sysctl"),
    ("kernel/unprivileged_userns_clone", "0", "set kernel.unprivileged_userns_clone to 1 with sysctl"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1",
     "install an AppArmor profile that lets bwrap create them (on Ubuntu the package apparmor-profiles)"),
)  # fmt: skip
"""Kernel settings that forbid user namespaces, and how to change them."""


class SandboxFeature(NamedTuple):
    """A sandbox feature. `missing` is a sentence that says what is missing and what provides it; it is empty if the
    feature is available."""

    name: str
    text: str
    missing: str


def sandbox_features() -> Iterator[SandboxFeature]:
    yield SandboxFeature("bubblewrap", "bwrap and what it needs are installed.", _bubblewrap())
    yield SandboxFeature("user namespaces", "they can be created.", _user_namespaces())
    yield SandboxFeature(
        "control groups", "this user may create them to limit memory and processes.", _control_groups()
    )
    yield SandboxFeature("seccomp", "system calls that commands do not need are blocked.", seccomp.problem())
    yield SandboxFeature("pasta", "commands can have their own network.", sandbox_network.missing())


def _bubblewrap() -> str:
    absent = [program for program in _PACKAGES if find_program(program) is None]
    if not absent:
        return ""
    packages = " and ".join(dict.fromkeys(_PACKAGES[program] for program in absent))
    return f"{absent[0]} is not installed: install {packages}, otherwise commands run without a sandbox or not at all."


def _user_namespaces() -> str:
    unshare = find_program("unshare")
    if unshare is None:
        return "they cannot be tested: install util-linux."
    try:
        # Try as the user that runs commands, since root may be allowed more. If there is no other user to become, try
        # as this one.
        for before in (as_user(user_of("", None, ""), find_program("setpriv") or "setpriv"), []):
            attempt = [*before, unshare, "--user", "true"]
            done = subprocess.run(attempt, capture_output=True, timeout=_TRY_SECONDS, check=False)
            if done.returncode != _NOT_BECOME:
                break
        if done.returncode == 0:
            return ""
    except (OSError, subprocess.TimeoutExpired):
        pass
    for name, forbidding, remedy in _FORBIDDING:
        path = _SYSTEM / name
        if path.exists() and path.read_text().strip() == forbidding:
            return f"this user may not create them: {remedy}."
    return "this user may not create them, perhaps because of the surrounding container or service."


def _control_groups() -> str:
    found = trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if any(os.access(tree.folder, os.W_OK) for tree in found):
        return ""
    return (
        "this user may not create any, so memory and processes are polled instead of limited by the kernel: start the "
        "gateway with systemd (package systemd) and Delegate=pids memory."
    )
