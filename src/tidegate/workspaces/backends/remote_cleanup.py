"""Clean-up of ended sessions' folders on another machine.

When a session ends, its folders on the other machine are discarded immediately or, if the machine is unreachable,
later. The task is stored in a row, even if the session is deleted. It is retried at growing intervals until it succeeds
or `GIVE_UP_SECONDS` have passed; in the latter case, the log says that the folders remain. Only the machine with the
folders is contacted. This module owns nothing but these rows.
"""

from collections.abc import Callable

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.store import Db, Store, outbox
from tidegate.workspaces.backends.interface import RemoteBackend

log = Log(__name__)

GIVE_UP_SECONDS = 30 * 86400.0
"""Seconds after which the gateway gives up on the task. A machine that has been unreachable for this long is not
expected to return unchanged."""

FIRST_SECONDS, LONGEST_SECONDS = 300.0, 86400.0
"""The first and the longest interval between attempts. Each interval is twice as long as the one before."""

ATTEMPTS = 64
"""Maximum number of attempts: more than fit into `GIVE_UP_SECONDS`."""

AT_ONCE = 20
"""Number of sessions handled per run. Each needs a connection to the other machine."""


class RemoteCleanup:
    def __init__(self, store: Store, clock: Callable[[], float], age: float) -> None:
        """`age` is how long folders stay in the trash on the other machine."""
        self._store = store
        self._clock = clock
        self._age = age

    async def discard_folders(self, there: RemoteBackend, session: str, *, keep: bool) -> None:
        try:
            await there.discard_folders(session, keep=keep, age=self._age)
        except ToolFailed as error:
            log.warning(
                "folders on another machine could not be discarded; retrying later",
                session=session,
                reason=error.message,
            )
            await self._store.write(
                lambda db: outbox.prepare(
                    db,
                    id=f"remains {session}",
                    session=None,  # the session may be deleted before this is done
                    turn=None,
                    channel=_channel(there),
                    target=session,
                    body=b"keep" if keep else b"",
                    now=self._clock() + FIRST_SECONDS,
                    expires=self._clock() + GIVE_UP_SECONDS,
                )
            )

    async def recover(self, there: RemoteBackend) -> None:
        """Reschedules the tasks that were in progress when the previous process died. Called at startup."""
        await self._store.write(outbox.recover, self._clock(), AT_ONCE, (_channel(there),))

    async def retry(self, there: RemoteBackend) -> None:
        """Tries the tasks that are due. If one fails, the others are postponed, too."""
        now, reason = self._clock(), ""
        for row in await self._store.write(outbox.claim_due, now, AT_ONCE, (_channel(there),)):
            if not reason:
                try:
                    await there.discard_folders(row.target, keep=bool(row.body), age=self._age)
                    await self._store.write(outbox.mark_sent, row.id)
                    continue
                except ToolFailed as error:
                    reason = error.message
            due = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2**row.attempts)
            if await self._store.write(_failed, row.id, reason, due) == "dead":
                log.error(
                    "folders on another machine could not be discarded and remain there",
                    session=row.target,
                    reason=reason,
                )
        await self._store.write(outbox.purge, now - 2 * GIVE_UP_SECONDS, AT_ONCE)


def _channel(there: RemoteBackend) -> str:
    return f"workspaces at {there.host}"


def _failed(db: Db, id: str, error: str, due: float) -> str | None:
    return outbox.mark_failed(db, id, error=error, due=due, attempts=ATTEMPTS)
