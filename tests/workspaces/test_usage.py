"""Usage besides process memory and named files, where no control group counts it."""

import os
from pathlib import Path

import anyio
import pytest

from tests.workspaces.harness import WAIT, WorkspaceHarness, open_workspaces, until
from tidegate.cli.commands.status import commands
from tidegate.errors import ToolFailed
from tidegate.workspaces.bounds import WorkspaceBounds

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

MIB = 1 << 20

MEMFD = """
import os, time
fd = os.memfd_create("hidden")
for _ in range({0}):
    os.write(fd, bytes(1 << 20))
open("ready", "w").close()
time.sleep(1000)
"""
CLOSED = f"""
import ctypes
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no other process of this user may look at it
{MEMFD}"""
MAPPED = """
import mmap, os, time
memory = mmap.mmap(-1, {0} << 20)
for at in range(0, {0} << 20, 4096):
    memory[at] = 1
open("ready", "w").close()
time.sleep(1000)
"""
SEGMENT = """
import ctypes, time
library = ctypes.CDLL(None)
library.shmat.restype = ctypes.c_void_p
id = library.shmget(0, {0} << 20, 0o1600)
at = library.shmat(id, None, 0)
ctypes.memset(at, 1, {0} << 20)
library.shmdt(ctypes.c_void_p(at))
open("ready", "w").close()
time.sleep(1000)
"""
SHM = """
import os, time
fd = os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR)
os.unlink("/dev/shm/x")
for _ in range({0}):
    os.write(fd, bytes(1 << 20))
open("ready", "w").close()
time.sleep(1000)
"""
PAGE_TABLES = """
import ctypes, time
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
step, amount = 2 << 20, {0} << 8
at = library.mmap(None, ctypes.c_size_t(step * amount), 1, 0x4022, -1, ctypes.c_long(0))
library.madvise(ctypes.c_void_p(at), ctypes.c_size_t(step * amount), 15)  # no huge pages
for page in range(amount):
    ctypes.c_char.from_address(at + page * step).value
open("ready", "w").close()
time.sleep(1000)
"""
MAPPINGS = """
import ctypes, os, time
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
for _ in range({0} // 10):
    for number in range(60_000):
        if library.mmap(None, ctypes.c_size_t(4096), number % 2, 0x22, -1, ctypes.c_long(0)) == 2**64 - 1:
            break
    if os.fork() == 0:
        time.sleep(1000)
open("ready", "w").close()
time.sleep(1000)
"""
QUEUES = """
import ctypes, time
library = ctypes.CDLL(None)
message = ctypes.create_string_buffer(b"\\1" * 8016)
for _ in range({0} << 6):
    queue = library.msgget(0, 0o1600)
    library.msgsnd(queue, message, 8000, 0o4000)
    library.msgsnd(queue, message, 8000, 0o4000)
open("ready", "w").close()
time.sleep(1000)
"""
EMPTY_MESSAGES = """
import ctypes, time
library = ctypes.CDLL(None)
message = ctypes.create_string_buffer(b"\\1" * 8)
for _ in range({0}):
    queue = library.msgget(0, 0o1600)
    for _ in range(16384):
        library.msgsnd(queue, message, 0, 0o4000)
open("ready", "w").close()
time.sleep(1000)
"""
SEMAPHORES = """
import ctypes, time
library = ctypes.CDLL(None)
for _ in range({0} // 2 + 1):
    library.semget(0, 32000, 0o1600)
open("ready", "w").close()
time.sleep(1000)
"""
EMPTY_FILES = """
import os, time
for number in range({0} << 10):
    os.close(os.open(f"/dev/shm/{{number}}", os.O_CREAT | os.O_RDWR))
open("ready", "w").close()
time.sleep(1000)
"""
BOTH = """
import mmap, os, time
fd = os.memfd_create("seen twice")
os.truncate(fd, {0} << 20)
memory = mmap.mmap(fd, {0} << 20)
for at in range(0, {0} << 20, 4096):
    memory[at] = 1
open("ready", "w").close()
time.sleep(1000)
"""
DELETED = """
import os, time
fd = os.open("gone", os.O_CREAT | os.O_RDWR)
os.unlink("gone")
for _ in range({0}):
    os.write(fd, os.urandom(1 << 20))
os.fsync(fd)
open("ready", "w").close()
time.sleep(1000)
"""
DELETED_AND_MAPPED = """
import mmap, os, time
fd = os.open("gone", os.O_CREAT | os.O_RDWR)
for _ in range({0}):
    os.write(fd, os.urandom(1 << 20))
os.fsync(fd)
import ctypes
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
library.mmap(None, ctypes.c_size_t({0} << 20), 1, 1, fd, ctypes.c_long(0))
os.close(fd)
os.unlink("gone")
open("ready", "w").close()
time.sleep(1000)
"""


async def begin(harness: WorkspaceHarness, session: str, program: str, amount: int) -> None:
    """Start it as a process and wait until it holds its resources, or was ended before it had all of them."""
    folder = harness.home / "workspaces" / session
    files = await harness.of(session).files()
    await files.write("attack.py", program.format(amount).encode())
    await harness.of(session).start("attack", "python3 attack.py")
    await until(lambda: (folder / "ready").exists() or not harness.live_sandbox(session).running)  # type: ignore[union-attr]


async def check_ended(harness: WorkspaceHarness, session: str, setting: str) -> None:
    with anyio.fail_after(WAIT):
        while harness.live_sandbox(session).running:  # type: ignore[union-attr]
            await harness.workspaces.reconcile()
    assert setting in await harness.take_notices(session)
    assert await harness.output_of(session, "echo fine") == "fine"


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
@pytest.mark.parametrize("program", [MEMFD, CLOSED, MAPPED], ids=["memfd", "memfd of a closed process", "mapping"])
async def test_shared_memory_counts(home: Path, backend: str, program: str) -> None:
    """L24: it belongs to no single process and used to be counted for none. An ordinary user cannot inspect a
    non-dumpable process, which the status says."""
    if program is CLOSED and os.geteuid() != 0:
        async with open_workspaces(home, backend=backend, polled=True) as harness:
            await harness.output_of(await harness.new_session(), "true")
            assert "PR_SET_DUMPABLE" in commands(harness.workspaces.status())
        return
    async with open_workspaces(home, backend=backend, polled=True, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await begin(harness, session, program, 100)
        await check_ended(harness, session, "workspaces.memory_bytes")


@pytest.mark.parametrize("program", [SEGMENT, SHM], ids=["System V", "POSIX, without a name"])
async def test_unmapped_shared_memory_counts(home: Path, program: str) -> None:
    """L24: of System V and of POSIX."""
    async with open_workspaces(home, polled=True, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        amount = 100 if program is SEGMENT else 30
        await begin(harness, session, program, amount)
        if program is SHM:  # which never exceeds half of the memory
            load = await harness.live_sandbox(session).sandbox.load()  # type: ignore[union-attr]
            assert 30 * MIB <= load.memory_bytes < 64 * MIB
        else:
            await check_ended(harness, session, "workspaces.memory_bytes")


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
@pytest.mark.parametrize("program", [PAGE_TABLES, MAPPINGS], ids=["page tables", "mappings"])
async def test_the_kernels_memory_for_address_spaces_counts(home: Path, backend: str, program: str) -> None:
    """L24: a command that only reserves addresses has almost no memory of its own."""
    async with open_workspaces(home, backend=backend, polled=True, memory_bytes=32 * MIB) as harness:
        session = await harness.new_session()
        await begin(harness, session, program, 30)
        await check_ended(harness, session, "workspaces.memory_bytes")


@pytest.mark.parametrize(
    "program",
    [QUEUES, EMPTY_MESSAGES, SEMAPHORES, EMPTY_FILES],
    ids=["message queues", "empty messages", "semaphores", "empty files in memory"],
)
async def test_the_kernels_memory_for_other_objects_counts(home: Path, program: str) -> None:
    """L24: it belongs to no process, and the defaults of the kernel permit gigabytes."""
    async with open_workspaces(home, polled=True, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await begin(harness, session, program, 100)
        await check_ended(harness, session, "workspaces.memory_bytes")


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_memory_seen_twice_counts_once(home: Path, backend: str) -> None:
    """L03: a memfd that is both open and mapped."""
    async with open_workspaces(home, backend=backend, polled=True, memory_bytes=64 * MIB) as harness:
        session = await harness.new_session()
        await begin(harness, session, BOTH, 40)
        load = await harness.live_sandbox(session).sandbox.load()  # type: ignore[union-attr]
        assert 40 * MIB <= load.memory_bytes < 64 * MIB
        await harness.workspaces.reconcile()
        assert set(harness.live_sandbox(session).running) == {"attack"}  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
@pytest.mark.parametrize("program", [DELETED, DELETED_AND_MAPPED], ids=["open", "mapped"])
async def test_a_deleted_file_counts_until_it_is_closed(home: Path, backend: str, program: str) -> None:
    """L19: with control groups too, since they do not count disk space."""
    async with open_workspaces(home, backend=backend, disk_bytes=4 * MIB) as harness:
        session = await harness.new_session()
        await begin(harness, session, program, 8)
        await check_ended(harness, session, "workspaces.disk_bytes")


async def test_a_folder_unreadable_to_its_own_user_is_measured(home: Path) -> None:
    """L19: its contents still occupy the disk."""
    async with open_workspaces(home, disk_bytes=4 * MIB) as harness:
        session = await harness.new_session()
        done, _ = await harness.run(
            session, f"mkdir -p a/b; exec 3> a/b/c; chmod 000 a/b a; head -c {8 * MIB} /dev/urandom >&3; sleep 1000"
        )
        assert done.code != 0 and "workspaces.disk_bytes" in done.note
        assert (home / "workspaces" / session / "a").stat().st_mode & 0o777 == 0
        await harness.output_of(session, "chmod 700 a; chmod 700 a/b; rm -r a")
        assert await harness.output_of(session, "echo x > new; cat new") == "x"


async def test_a_small_unreadable_folder_is_within_the_quota(home: Path) -> None:
    async with open_workspaces(home, disk_bytes=4 * MIB) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir a; echo x > a/b; chmod 000 a")
        assert await harness.output_of(session, "echo y > new; cat new") == "y"


async def test_the_number_of_files_is_limited(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: empty files take no space, but the file system has a limited number."""
    bounds = WorkspaceBounds(measure_again=0)
    async with open_workspaces(home, files=300, bounds=bounds) as harness:
        session = await harness.new_session()
        done, _ = await harness.run(session, "for i in $(seq 400); do : > f$i; done; sleep 1000")
        assert done.code != 0 and "300 files and folders together (workspaces.files)" in done.note
        files = await harness.of(session).files()
        with pytest.raises(ToolFailed, match=r"workspaces\.files"):
            await files.write("one more", b"x")
        assert await harness.output_of(session, "rm f*; echo removed") == "removed"
        await files.write("one more", b"x")


@pytest.mark.parametrize("polled", [True, False])
async def test_the_status_names_uncounted_resources(home: Path, polled: bool) -> None:
    """L24: no file below /proc shows socket buffers; a control group counts them."""
    async with open_workspaces(home, polled=polled) as harness:
        await harness.output_of(await harness.new_session(), "true")
        status = harness.workspaces.status()
        counted = status.enforced["memory_bytes"] == "cgroup"
        assert ("buffers of sockets and pipes" in commands(status)) == (not counted)
        assert "not counted: " in commands(status)
