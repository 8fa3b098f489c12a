"""Periodic maintenance of sessions.

Each task is level-triggered: it examines the current state and repairs it, remembers nothing about earlier runs, and
may run at any time and any number of times. A run continues until nothing is left to do, up to a generous limit. It
works in batches, each with one short write, so that turns can run in between.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from tidegate.mcp import CHECK_SECONDS
from tidegate.sessions.components import Components
from tidegate.sessions.recovery import recover
from tidegate.store import approvals, audit, maintenance, notes, receipts, search_index, usage, vectors
from tidegate.values import Frozen
from tidegate.workspaces import RECONCILE_SECONDS, TIDY_SECONDS, enforce_trash_quota

SWEEP_BATCHES = 100
"""The number of writes of one run that remove unused terms from the search index. Each takes a few milliseconds."""
INDEX_BATCHES = 20
"""Number of writes to the search index in one run. Each takes a few milliseconds. Searches index the remaining rows
themselves."""

STRANDED_SECONDS = 30.0
"""Age at which an accepted turn that has not reached the engine counts as stranded. Normally, this takes only
milliseconds."""

BATCHES = 200
"""Maximum number of batches of one kind in one run: far more than a run every few minutes needs."""

VACUUM_PAGES = 256
"""Number of free database pages returned to the disk in one batch."""


SPOOL_SECONDS = 600.0
"""Interval between two searches for files that belong to no session."""


class MaintenanceTask(Frozen, frozen=True):
    """A task that runs every `interval` seconds. Since tasks work in small batches, a run that takes longer than
    `within` seconds is assumed to be hanging."""

    name: str
    interval: float
    run: Callable[[], Awaitable[Any]]
    within: float = 300.0


async def drain(batch: Callable[[], Awaitable[int]], full: int, most: int = BATCHES) -> int:
    """Runs `batch` until it returns less than `full`. Returns the sum of its results."""
    total = 0
    for _ in range(most):
        done = await batch()
        total += done
        if done < full:
            break
    return total


def maintenance_tasks(
    components: Components,
    count_audit_rows: Callable[[], Awaitable[None]],
    count_unindexed: Callable[[], Awaitable[None]],
) -> list[MaintenanceTask]:
    """Returns the maintenance tasks. `count_audit_rows` is called after the audit log has been pruned, and
    `count_unindexed` after messages have been indexed."""
    store, config, clock = components.store, components.config, components.clock
    expiry, limits, endings, workspaces = config.expiry, config.limits, components.endings, components.workspaces

    async def sweep() -> int:
        return components.presence.sweep()

    async def expire() -> int:
        return (
            await endings.expire("named", expiry.named_idle)
            + await endings.expire("ephemeral", expiry.ephemeral_idle)
            + await endings.purge(expiry.retention)
            + await endings.finish()
        )

    async def resume_turns() -> int:
        resumed = await recover(components, older=STRANDED_SECONDS)
        await workspaces.processes.report_ends()
        return resumed

    async def tidy() -> None:
        await drain(lambda: store.write(receipts.prune, clock(), limits.receipts), receipts.BATCH)
        await maintenance.tidy(store, clock())
        if components.memory is not None:
            await drain(lambda: store.write(notes.prune, clock(), maintenance.BATCH), maintenance.BATCH)
        await drain(lambda: store.write(audit.prune, clock() - expiry.audit, maintenance.BATCH), maintenance.BATCH)
        await store.write(audit.append_further_failures, clock())
        await count_audit_rows()
        await drain(lambda: store.write(usage.fold, usage.FOLDED_AT_ONCE), usage.FOLDED_AT_ONCE)
        await drain(lambda: store.write(search_index.sweep), 1, SWEEP_BATCHES)
        await drain(lambda: store.write(maintenance.vacuum, VACUUM_PAGES), 1)
        await store.write(maintenance.checkpoint)

    async def folders() -> None:
        await workspaces.tidy()
        await enforce_trash_quota(store, workspaces.folders, config.workspaces.trash_bytes)

    async def close_late_questions() -> int:
        return await drain(components.approvals.expire, approvals.EXPIRED_AT_ONCE)

    async def index() -> int:
        indexed = await drain(lambda: store.write(search_index.index), 1, INDEX_BATCHES)
        indexed += await drain(lambda: store.write(search_index.index_former), 1, INDEX_BATCHES)
        if components.recall is not None and components.recall.index is not None:
            await components.recall.index.feed()
        indexed += await drain(lambda: store.write(vectors.remove_unused), vectors.REMOVED, INDEX_BATCHES)
        if indexed:
            await count_unindexed()
        return indexed

    maintenance_tasks = [
        MaintenanceTask(name="sweep", interval=min(30.0, max(0.2, limits.idle_ttl / 4)), run=sweep),
        MaintenanceTask(name="expire", interval=60.0, run=expire),
        MaintenanceTask(name="recover", interval=60.0, run=resume_turns),
        MaintenanceTask(name="index", interval=5.0, run=index),
        MaintenanceTask(name="questions", interval=10.0, run=close_late_questions),
        MaintenanceTask(name="workspaces", interval=RECONCILE_SECONDS, run=workspaces.reconcile),
        MaintenanceTask(name="servers", interval=CHECK_SECONDS, run=components.servers.check),
        MaintenanceTask(name="folders", interval=TIDY_SECONDS, run=folders),
        MaintenanceTask(name="spool", interval=SPOOL_SECONDS, run=components.spool.sweep),
        MaintenanceTask(name="tidy", interval=300.0, run=tidy),
    ]
    if components.recall is not None and (message_vectors := components.recall.vectors) is not None:

        async def embed() -> None:
            await message_vectors.fill()
            await count_unindexed()

        maintenance_tasks.append(MaintenanceTask(name="embed", interval=5.0, run=embed))
    if components.extractor is not None:
        maintenance_tasks.append(MaintenanceTask(name="learn", interval=60.0, run=endings.finish_slow))
    return maintenance_tasks
