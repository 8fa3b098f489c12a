"""A gateway-like program to be killed: `python -m tests.workspaces.killed_gateway HOME TOKEN [UID]`.

It opens workspaces, starts a background process and a command, both sleeping TOKEN seconds in their own process trees,
prints `ready` and waits. With a UID it first does all of this as the user that started it, so that everything is in the
page cache, then becomes that user and repeats it.
"""

import asyncio
import ctypes
import os
import sys
import tempfile
from pathlib import Path

from tests.workspaces.harness import FORKS, alive, open_workspaces

_PR_SET_DUMPABLE = 4


async def live(home: Path, token: str, *, ready: bool) -> None:
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "cd /tmp; export KEPT=yes; echo text > /workspace/file")
        tree = (
            f"(setsid env -i sleep {token} &); (setsid bash -c 'trap \"\" TERM; sleep {token}; :' &); sleep {token}; :"
        )
        await harness.of(session).start("server", tree)
        command = asyncio.ensure_future(harness.run(session, tree))
        while len(alive(f"sleep\0{token}")) < 6:
            await asyncio.sleep(0.01)
        if ready:
            print(f"ready {os.geteuid()} {session}", flush=True)
            await asyncio.Event().wait()
        if os.geteuid() != 0:
            await count(home)
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        assert await harness.output_of(session, "cd /tmp; id -un; pwd") == "agent\n/tmp"
        await harness.output_of(
            session, "cd; mkdir -p /workspace/a/b; touch /workspace/a/b/c; chmod 000 /workspace/a/b /workspace/a"
        )
        await harness.output_of(session, "chmod 555 /workspace /tmp")
        await harness.end(session)
        assert alive(token) == []
        assert [entry.name for entry in (home / "trash").iterdir()].count(session) == 1
        await harness.workspaces.discard(session)
        assert list((home / "trash").iterdir()) == list((home / "workspaces").iterdir()) == []


async def count(home: Path) -> None:
    """Without control groups, the kernel counts the processes of an ordinary user and refuses further ones."""
    async with open_workspaces(home.with_name("counted"), polled=True, processes=60) as harness:
        session = await harness.new_session()
        await harness.output_of(session, f"cat > forks.py <<'END'\n{FORKS}\nEND")
        _, printed = await harness.run(session, "ulimit -u; python3 forks.py")
        limit, made, refused = map(int, printed.split()[:3])
        assert limit == 60 and made < 60 and made + refused == 300, printed


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    # As in a process that belonged to this user from its start.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def main(home: Path, token: str, user: str = "") -> None:
    if user:
        with tempfile.TemporaryDirectory(dir="/tmp") as own:
            asyncio.run(live(Path(own) / "home", f"{token}0", ready=False))
        become(int(user))
        asyncio.run(live(home / "second", f"{token}1", ready=False))
    asyncio.run(live(home / "home", token, ready=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
