"""What the maintenance timer does for sessions.

Guarantee: each chore is level-triggered: it looks at what is and mends it, remembers nothing between runs, does a
bounded amount of work, and may be run at any time and any number of times.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidegate.sessions.recovery import recover
from tidegate.store import maintenance, receipts, search
from tidegate.values import Frozen

if TYPE_CHECKING:
    from tidegate.sessions.door import Sessions

INDEX_BATCH = 500
"""Messages that one run puts into the search index; a search catches up by itself."""

VACUUM_PAGES = 256
"""Free pages given back to the disk in one run."""


class Chore(Frozen, frozen=True):
    name: str
    interval: float
    run: Callable[[], Awaitable[Any]]


def chores(door: "Sessions") -> list[Chore]:
    store, expiry, limits = door.store, door.config.expiry, door.config.limits

    async def sweep() -> int:
        return door.presence.sweep()

    async def expire() -> int:
        return (
            await door.endings.expire("named", expiry.named_idle)
            + await door.endings.expire("ephemeral", expiry.ephemeral_idle)
            + await door.endings.purge(expiry.retention)
            + await door.endings.finish()
        )

    async def tidy() -> None:
        await store.write(receipts.prune, door.clock(), limits.receipts)
        await store.write(maintenance.vacuum, VACUUM_PAGES)
        await store.write(maintenance.checkpoint)

    async def index() -> int:
        done: int = await store.write(search.index, INDEX_BATCH)
        return done

    return [
        Chore(name="sweep", interval=min(30.0, max(0.2, limits.idle_ttl / 4)), run=sweep),
        Chore(name="expire", interval=60.0, run=expire),
        Chore(name="recover", interval=60.0, run=lambda: recover(door)),
        Chore(name="index", interval=5.0, run=index),
        Chore(name="tidy", interval=300.0, run=tidy),
    ]
