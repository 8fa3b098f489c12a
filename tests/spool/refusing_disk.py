"""A process in which the disk refuses writes, or much is spooled: `python -m tests.spool.refusing_disk HOW FOLDER`.

It prints what the model would have been shown, and what was left behind, as JSON.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import anyio

from tests.spool.sounds import wav
from tests.spool.spools import ID, SESSION, files, recorded, spool_of
from tests.store.rows import new_session
from tidegate.errors import MediaLeftOut
from tidegate.spool.entry import UNSPOOLED_BYTES
from tidegate.store import Store

SMALL = 192 * 1024


def mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", str(folder)], check=True)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def peak() -> int:
    """The peak resident memory since the last `forget`, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def refused(how: str, folder: Path) -> dict[str, str]:
    root = folder / "spool"
    root.mkdir()
    if how == "full":
        mount(root, "-o", f"size={SMALL}")
    elif how == "read-only":
        mount(root, "-o", "ro")
    async with Store.open(folder / "db") as store:
        await store.write(new_session, SESSION)
        spool = spool_of(root, store)
        mine = spool.of(SESSION, None)
        await recorded(mine.record("warm"), [b""])
        before = descriptors()
        if how == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, resource.RLIM_INFINITY))
        text = await mine.text("tool", "x" * (2 * SMALL))
        streamed = await recorded(mine.record("tool"), [b"line\n" * 1000] * 100)
        left = len(files(spool))
        after = await mine.text("tool", "y" * (SMALL // 2))
        return {
            "text": text,
            "streamed": streamed,
            "files": str(left),
            "descriptors": str(descriptors() - before),
            "after": "kept" if ID.search(after) else "lost",
        }


async def media(how: str, folder: Path, *, pillow: bool) -> dict[str, str]:
    """Pictures and sounds that the spool refuses."""
    from tests.spool.pictures import noise, saved

    root = folder / "spool"
    root.mkdir()
    if how == "full":
        mount(root, "-o", f"size={SMALL}")
    elif how == "read-only":
        mount(root, "-o", "ro")
    picture, large, sound = saved(noise(500, 500), "PNG"), saved(noise(1000, 1000), "PNG"), wav(30)
    if not pillow:
        sys.modules["PIL"] = None  # type: ignore[assignment]  # it cannot be imported any more
    async with Store.open(folder / "db") as store:
        await store.write(new_session, SESSION)
        spool = spool_of(root, store, **({"quota": 100_000} if how == "quota" else {}))
        mine = spool.of(SESSION, None)
        await recorded(mine.record("warm"), [b""])
        before, inline = descriptors(), 0
        found: dict[str, str] = {}
        given = {"sound": sound, "picture": picture, "large picture": large, "second sound": wav(60)}
        for name, data in given.items():
            try:
                made = await mine.media(name, data)
            except MediaLeftOut as error:
                found[name] = error.message
                continue
            inline += len(made.data)
            found[name] = "the same bytes" if made.data == data else made.note
            found[f"{name} note"] = made.note
        found["inline"] = "within the limit" if inline <= UNSPOOLED_BYTES else f"{inline} bytes"
        return {**found, "files": str(len(files(spool))), "descriptors": str(descriptors() - before)}


async def much(folder: Path, megabytes: int) -> dict[str, str]:
    piece = b"a line of output that a command prints\n" * 1681
    piece = piece[: 64 * 1024]
    async with Store.open(folder / "db") as store:
        await store.write(new_session, SESSION)
        mine = spool_of(folder / "spool", store, quota=2**40, excerpt_bytes=16384, excerpt_lines=400).of(SESSION, None)
        await recorded(mine.record("warm"), [piece] * 32)
        forget()
        before = peak()
        async with mine.record("much") as recorder:
            for _ in range(megabytes * 16):
                await recorder.write(piece)
            await recorder.finish()
        return {"bytes": str(recorder.bytes), "grown": str(peak() - before)}


MAKE = """
import pathlib, sys
from tests.spool.pictures import noise, saved
pathlib.Path(sys.argv[1]).write_bytes(saved(noise(1200, 1200), "PNG"))
"""


def make_picture(path: Path) -> None:
    """A file of 100 MB that has to be scaled down. Another process creates it, so that it is not part of this process's
    peak."""
    subprocess.run([sys.executable, "-c", MAKE, str(path)], check=True)
    os.truncate(path, 100_000_000)


async def picture(folder: Path) -> dict[str, str]:
    path = folder / "picture.png"
    make_picture(path)
    async with Store.open(folder / "db") as store:
        await store.write(new_session, SESSION)
        mine = spool_of(folder / "spool", store, quota=2**40).of(SESSION, None)
        fd = os.open(path, os.O_RDONLY)
        forget()
        before = peak()
        media = await mine.media("picture.png", fd)
        os.close(fd)
        return {"spooled": media.spooled, "grown": str(peak() - before)}


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    if how == "much":
        found = anyio.run(much, folder, int(sys.argv[3]))
    elif how == "picture":
        found = anyio.run(picture, folder)
    elif how.startswith("media-"):
        pillow = sys.argv[3] == "pillow"
        found = anyio.run(lambda: media(how.removeprefix("media-"), folder, pillow=pillow))
    else:
        found = anyio.run(refused, how, folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
