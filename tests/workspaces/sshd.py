"""A real sshd on loopback with its own keys, whose accounts have their home in a folder of the test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SSHD = shutil.which("sshd", path="/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin")
PRIVILEGE_SEPARATION = Path("/run/sshd")  # required by an sshd run as root; normally created by the system
PATIENCE = 20


@dataclass
class Sshd:
    """`home` is the home folder of the account."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def options(self) -> tuple[str, ...]:
        """The options with which `ssh` can log in."""
        return (
            f"Port={self.port}",
            f"IdentityFile={self.folder / 'key'}",
            f"UserKnownHostsFile={self.folder / 'known'}",
            "IdentitiesOnly=yes",
        )

    @property
    def sessions(self) -> Path:
        return self.home / ".tidegate" / "remote" / "workspaces"

    @property
    def trash(self) -> Path:
        return self.home / ".tidegate" / "remote" / "trash"

    def connections(self) -> list[int]:
        """The server's processes for current connections: one or two each, without their children."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    found.append(process.pid)
        return found


@contextlib.contextmanager
def sshd(folder: Path, *settings: str) -> Iterator[Sshd]:
    assert SSHD is not None
    (folder / "home").mkdir(parents=True)
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized")
    port = _free_port()
    host_key = (folder / "host.pub").read_text().strip()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    configuration = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder / 'host'}", "PidFile none", "StrictModes no",
        f"AuthorizedKeysFile {folder / 'authorized'}", "UsePAM no", "PasswordAuthentication no",
        "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", f"SetEnv HOME={folder / 'home'}",
    ]  # fmt: skip
    (folder / "config").write_text("\n".join((*settings, *configuration, "")))
    if os.geteuid() == 0:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)  # and stays: other tests may run an sshd at the same time
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "config")], stderr=log, start_new_session=True)
        try:
            _listening(port, process, folder / "log")
            yield Sshd(folder, port, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"sshd does not come up: {log.read_text()}")
