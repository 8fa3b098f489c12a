"""The trash: folders of ended sessions, kept for a while.

Guarantee: after a look, what is in it takes no more than its quota, the oldest going first, however young it is. A
folder is measured once, since nobody writes there any more; what it takes stands in its session's row. Nothing is held
here. (How long a folder stays at most is `Workspaces.tidy`'s to see to.)
"""

from anyio import to_thread

from tidegate.log import Log
from tidegate.store import Store, workspaces
from tidegate.workspaces.folders import Folders, used_bytes

log = Log(__name__)

BATCH = 100
"""Rows that are taken from the store at once."""

BATCHES = 100
"""Batches in one run: more than there is, and an end to it."""


async def keep_within(store: Store, folders: Folders, most: int) -> None:
    """Measure what is new in the trash, and remove what is too much."""
    for _ in range(BATCHES):
        new: list[str] = await store.read(workspaces.unmeasured_trash, BATCH)
        for session in new:
            # On its way there it may still lie where it was.
            places = (folders.of(session), folders.trash / session)
            bytes = await to_thread.run_sync(used_bytes, places, most)
            await store.write(workspaces.set_trash_size, session, bytes)
        if len(new) < BATCH:
            break
    for _ in range(BATCHES):
        old: list[str] = await store.read(workspaces.over_quota, most, BATCH)
        for session in old:
            try:
                await to_thread.run_sync(folders.remove, session)
            except OSError as error:
                log.warning("a folder in the trash cannot be removed", session=session, error=str(error))
                return  # the next look tries again
            await store.write(workspaces.remove, session)
            log.info("a folder left the trash early, which holds no more than workspaces.trash_bytes", session=session)
        if len(old) < BATCH:
            break
