"""What the maintenance timer does for sessions.

Guarantee: each chore is level-triggered: it looks at what is and mends it, remembers nothing between runs, and may be
run at any time and any number of times. A run goes on until nothing is left to do, within a generous bound, in batches
each of which is a short write of its own, so that turns get in between.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidegate.sessions.recovery import recover
from tidegate.store import approvals, audit, maintenance, notes, receipts, search, usage
from tidegate.values import Frozen
from tidegate.workspaces import RECONCILE_SECONDS, TIDY_SECONDS, enforce_trash_quota

if TYPE_CHECKING:
    from tidegate.sessions.service import Sessions

INDEX_BATCHES = 20
"""Writes of the search index in one run, each some milliseconds; a search catches up by itself."""

STRANDED_SECONDS = 30.0
"""After which an accepted turn that no engine knows is stranded: the way there takes milliseconds."""

BATCHES = 200
"""Batches of one kind in one run: far more than a run of every few minutes ever has to do, and an end to it."""

VACUUM_PAGES = 256
"""Free pages given back to the disk in one batch."""


SPOOL_SECONDS = 600.0
"""Between two looks for files that no session owns."""


class MaintenanceTask(Frozen, frozen=True):
    """What is run every `interval` seconds. A run that takes longer than `within` hangs: chores work in small
    batches."""

    name: str
    interval: float
    run: Callable[[], Awaitable[Any]]
    within: float = 300.0


async def drain(batch: Callable[[], Awaitable[int]], full: int, most: int = BATCHES) -> int:
    """Run `batch` until it comes back with less than `full`; the sum of what it said."""
    total = 0
    for _ in range(most):
        done = await batch()
        total += done
        if done < full:
            break
    return total


def maintenance_tasks(service: "Sessions") -> list[MaintenanceTask]:
    store, expiry, limits = service.store, service.config.expiry, service.config.limits

    async def sweep() -> int:
        return service.presence.sweep()

    async def expire() -> int:
        return (
            await service.endings.expire("named", expiry.named_idle)
            + await service.endings.expire("ephemeral", expiry.ephemeral_idle)
            + await service.endings.purge(expiry.retention)
            + await service.endings.finish()
        )

    async def take_up() -> int:
        resumed = await recover(service, older=STRANDED_SECONDS)
        await service.workspaces.processes.report_ends()
        return resumed

    async def tidy() -> None:
        await drain(lambda: store.write(receipts.prune, service.clock(), limits.receipts), receipts.BATCH)
        await maintenance.tidy(store, service.clock())
        if service.memory is not None:
            await drain(lambda: store.write(notes.prune, service.clock(), maintenance.BATCH), maintenance.BATCH)
        await drain(
            lambda: store.write(audit.prune, service.clock() - expiry.audit, maintenance.BATCH), maintenance.BATCH
        )
        await store.write(audit.append_further_failures, service.clock())
        service.audit_rows = await store.read(audit.count)
        await drain(lambda: store.write(usage.fold, usage.FOLDED_AT_ONCE), usage.FOLDED_AT_ONCE)
        await drain(lambda: store.write(maintenance.vacuum, VACUUM_PAGES), 1)
        await store.write(maintenance.checkpoint)

    async def folders() -> None:
        await service.workspaces.tidy()
        await enforce_trash_quota(store, service.workspaces.folders, service.config.workspaces.trash_bytes)

    async def close_late_questions() -> int:
        return await drain(service.questions.expire, approvals.EXPIRED_AT_ONCE)

    async def index() -> int:
        indexed = await drain(lambda: store.write(search.index), 1, INDEX_BATCHES)
        if service.recall is not None and service.recall.index is not None:
            await service.recall.index.feed()
        return indexed

    maintenance_tasks = [
        MaintenanceTask(name="sweep", interval=min(30.0, max(0.2, limits.idle_ttl / 4)), run=sweep),
        MaintenanceTask(name="expire", interval=60.0, run=expire),
        MaintenanceTask(name="recover", interval=60.0, run=take_up),
        MaintenanceTask(name="index", interval=5.0, run=index),
        MaintenanceTask(name="questions", interval=10.0, run=close_late_questions),
        MaintenanceTask(name="workspaces", interval=RECONCILE_SECONDS, run=service.workspaces.reconcile),
        MaintenanceTask(name="folders", interval=TIDY_SECONDS, run=folders),
        MaintenanceTask(name="spool", interval=SPOOL_SECONDS, run=service.spool.sweep),
        MaintenanceTask(name="tidy", interval=300.0, run=tidy),
    ]
    if service.extractor is not None:
        maintenance_tasks.append(MaintenanceTask(name="learn", interval=60.0, run=service.endings.finish_slow))
    return maintenance_tasks
