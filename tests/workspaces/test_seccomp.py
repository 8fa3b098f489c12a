"""System calls of a sandbox: none that lead to keys, to other sandboxes or deep into the kernel."""

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.workspaces.harness import WorkspaceHarness, token
from tidegate.workspaces.kernel import seccomp

pytestmark = pytest.mark.anyio

MACHINE = os.uname().machine
RESERVED_UIDS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[MACHINE]
"""add_key, request_key, keyctl."""
SESSION, USER = -3, -4  # keyrings
UNLINK = 9

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(*given)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""

INT_80 = """
import ctypes, mmap
# push rbx; mov eax, 288 (keyctl); xor ebx, ebx (which key); mov ecx, -3 (the session's); xor edx, edx; int 0x80; …
code = bytes.fromhex("53 b820010000 31db b9fdffffff 31d2 cd80 5b c3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""


def keys(number: int, *arguments: Any) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


async def tried(harness: WorkspaceHarness, session: str, program: str) -> str:
    return await harness.output_of(session, f"python3 - <<'END'\n{CALL}{program}\nEND")


async def test_a_sandbox_sees_no_keys_of_the_gateway(harness: WorkspaceHarness, session: str) -> None:
    """X12: neither of its session nor of its user, and no key's name can be read from /proc."""
    add, request, keyctl = RESERVED_UIDS
    name = f"tidegate-{token()}".encode()
    for ring in (SESSION, USER):
        key = keys(add, b"user", name, b"secret", 6, ring)
        assert key > 0, os.strerror(ctypes.get_errno())
        try:
            assert name.decode() in Path("/proc/keys").read_text()
            found = await tried(
                harness,
                session,
                f"print(call({request}, b'user', {name!r}, None, {SESSION}))\n"
                f"print(call({keyctl}, 11, {key}, ctypes.create_string_buffer(99), 99))\n"
                "print(open('/proc/keys').read())",
            )
            assert found.split() == ["ENOSYS", "ENOSYS"]
        finally:
            keys(keyctl, UNLINK, key, ring)


async def test_a_sandbox_can_leave_no_key_for_another(harness: WorkspaceHarness, session: str) -> None:
    """X12: a user's keyrings are the same in all sandboxes."""
    add, *_ = RESERVED_UIDS
    name = f"tidegate-{token()}"
    for ring in (-1, -2, SESSION, USER, -5):
        assert (
            await tried(harness, session, f"print(call({add}, b'user', b'{name}', b'for you', 7, {ring}))") == "ENOSYS"
        )
    assert name not in Path("/proc/keys").read_text()


def test_a_confined_process_has_its_own_session_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """X12: for keys that the kernel itself looks up. Here without the filter, so that they can be queried."""
    *_, keyctl = RESERVED_UIDS
    monkeypatch.setattr(seccomp, "_table", lambda _: struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF_0000))  # all is allowed

    def ring() -> int:
        return keys(keyctl, 0, SESSION, 0)

    rings = {ring(), seccomp.confined(ring), seccomp.confined(ring)}
    assert len(rings) == 3 and min(rings) > 0


async def test_risky_system_calls_are_missing(harness: WorkspaceHarness, session: str) -> None:
    """X12: a program that is refused io_uring falls back, as on a kernel without it."""
    closed = {"x86_64": (298, 321, 323), "aarch64": (241, 280, 282)}[MACHINE]  # perf_event_open, bpf, userfaultfd
    calls = (*closed, 425, 426, 427)  # io_uring
    printed = await tried(harness, session, f"print(*(call(number, 0, 0, 0, 0, 0) for number in {calls}))")
    assert printed.split() == ["ENOSYS"] * len(calls)


async def test_sockets_that_belong_to_no_network_namespace_are_missing(harness: WorkspaceHarness, session: str) -> None:
    """X12: virtual machines (vsock), the kernel's ciphers, Bluetooth."""
    number = {"x86_64": 41, "aarch64": 198}[MACHINE]
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "vsock": 40, "alg": 38, "bluetooth": 31}
    program = f"for name, one in {families}.items(): print(name, call({number}, one, 3 if one == 16 else 1, 0))"
    opened = dict(line.split() for line in (await tried(harness, session, program)).splitlines())
    assert [name for name, result in opened.items() if result.isdecimal()] == ["unix", "inet", "inet6", "netlink"]
    assert {opened[name] for name in ("vsock", "alg", "bluetooth")} == {"EAFNOSUPPORT"}
    high = f"print(call({number}, 40 + (1 << 32), 1, 0))"  # the kernel uses only the lower half, and so does the filter
    assert await tried(harness, session, high) == "EAFNOSUPPORT"
    # it creates two sockets before checking whether they can be connected
    pair = {"x86_64": 53, "aarch64": 199}[MACHINE]
    program = f"for one in {tuple(families.values())}: print(call({pair}, one, 1, 0, (ctypes.c_int * 2)()))"
    unix, *others = (await tried(harness, session, program)).split()
    assert unix == "0" and set(others[-3:]) == {"EAFNOSUPPORT"}


SET_USER_ID = """
import stat
path = b"/workspace/shell"
open(path, "wb").write(b"#!/bin/sh")
fd = os.open(path, os.O_RDONLY)
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
tries = (
    lambda: os.chmod(path, 0o4755),
    lambda: os.fchmod(fd, 0o6755),
    lambda: os.close(os.open("/workspace/made", os.O_CREAT | os.O_WRONLY, 0o4755)),
    lambda: os.link(f"/proc/self/fd/{os.open('/workspace', os.O_TMPFILE | os.O_RDWR, 0o4755)}", "/workspace/linked",
                    follow_symlinks=True),
    lambda: os.mknod("/workspace/node", stat.S_IFREG | 0o4755),
    lambda: call(437, -100, b"/workspace/opened", how, 24),
    lambda: call(452, -100, path, 0o4755, 0),
)
os.umask(0)
for number, attempt in enumerate(tries):
    try:
        print(number, attempt() or "done")
    except OSError as error:
        print(number, errno.errorcode[error.errno])
"""


async def test_a_command_leaves_no_set_user_id_program(harness: WorkspaceHarness, session: str) -> None:
    """X12: another user of the machine could start it in a project folder, and would become the commands' user."""
    printed = await tried(harness, session, SET_USER_ID)
    folder = harness.home / "workspaces" / session
    assert (folder / "shell").is_file()
    assert not [path for path in folder.rglob("*") if path.lstat().st_mode & stat.S_ISUID], printed
    refused = dict(line.split() for line in printed.splitlines())
    assert [refused[each] for each in "0123456"] == [*["EPERM"] * 5, "ENOSYS", "EPERM"]
    assert (
        await harness.output_of(session, "umask 022; chmod 755 shell; touch x; mkdir y; chmod g+s y; stat -c %a *")
        == "755\n644\n2755"
    )


@pytest.mark.skipif(MACHINE != "x86_64", reason="there is one interface to the kernel only")
async def test_other_system_call_interfaces_do_not_bypass_the_filter(harness: WorkspaceHarness, session: str) -> None:
    """X12: neither the calls of 32-bit programs nor those of x32."""
    done, printed = await harness.run(session, f"python3 - <<'END'\n{INT_80}\nEND")
    assert (done.code, printed.strip()) == (0, str(-errno.ENOSYS))
    assert await tried(harness, session, "print(call(250 + 0x40000000, 0, -3, 0))") == "ENOSYS"


async def test_every_process_in_a_sandbox_has_the_filter(harness: WorkspaceHarness, session: str) -> None:
    """X12: its first process, commands, and the processes they leave behind."""
    await harness.of(session).start("server", "setsid sleep 1000")
    seen = await harness.output_of(
        session, "cat /proc/[0-9]*/status 2>/dev/null | grep -E '^(NoNewPrivs|Seccomp):' | sort | uniq"
    )
    assert seen.split() == ["NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_the_gateway_itself_is_not_filtered(harness: WorkspaceHarness, session: str) -> None:
    def confinement() -> list[str]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [line for line in lines if line.startswith(("NoNewPrivs:", "Seccomp"))]

    before = confinement()
    await harness.output_of(session, "true")
    assert confinement() == before
