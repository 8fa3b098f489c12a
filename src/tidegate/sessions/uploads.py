"""Uploads: pictures, audio clips and documents that are stored together with their message.

A message is accepted with all of its media or not at all. If it is refused, the error names the part of the request
that caused it. Small media are stored in the message. Larger media are written to the session's spool before the
message is durable; their rows are written in the same transaction as the message. A message that is not accepted leaves
nothing behind.
"""

from collections.abc import Awaitable, Callable

import msgspec

from tidegate.errors import TidegateError
from tidegate.spool import Spool, UploadFolder
from tidegate.spool.session_folder import SessionChanged
from tidegate.store import Db, Store, sessions
from tidegate.values import Acceptance, Inbound, Media, new_id

TRIES = 3
"""Number of attempts. A named conversation may begin or end between the lookup and the acceptance, but this is unlikely
to happen twice."""

Accept = Callable[[Inbound, UploadFolder], Awaitable[Acceptance]]

_REPEATED = ("replayed", "attached")


async def accept_media(inbound: Inbound, store: Store, spool: Spool, accept: Accept) -> Acceptance:
    for _ in range(TRIES - 1):
        try:
            return await _accept(inbound, store, spool, accept)
        except SessionChanged:
            continue
    return await _accept(inbound, store, spool, accept)


async def _accept(inbound: Inbound, store: Store, spool: Spool, accept: Accept) -> Acceptance:
    known = await store.read(_session, inbound)
    uploads = spool.upload_folder(known or new_id("s"), is_new=known is None)
    is_new: bool | None = None
    try:
        accepted = await accept(await _with_media(inbound, uploads), uploads)
        is_new = accepted.how not in _REPEATED
        return accepted
    except TidegateError:
        is_new = False
        raise
    finally:
        await uploads.close(committed=is_new)


async def _with_media(inbound: Inbound, uploads: UploadFolder) -> Inbound:
    media: dict[int, list[Media]] = {}
    for attachment in inbound.attachments:
        made = await uploads.media(attachment.name, attachment.data, attachment.filename)
        if attachment.detail:
            made = msgspec.structs.replace(made, detail=attachment.detail)
        media.setdefault(attachment.message, []).append(made)
    messages = tuple(
        msgspec.structs.replace(message, media=tuple(media[place])) if place in media else message
        for place, message in enumerate(inbound.messages)
    )
    return msgspec.structs.replace(inbound, messages=messages, attachments=())


def _session(db: Db, inbound: Inbound) -> str | None:
    """Returns the session to which the message would go now, or None if it would create a session."""
    row = None
    if inbound.session is not None:
        row = sessions.owned(db, inbound.session, inbound.principal)
    elif inbound.name is not None:
        row = sessions.live_by_name(db, inbound.principal, inbound.name)
    return None if row is None else row.id
