"""Batches of messages that get vectors: the next texts, and the mark up to which a conversation is done.

Progress is kept by block of a conversation (`vector_blocks`): the position up to which its messages have vectors, and
since when more are due. This progress is saved in the transaction that stores the vectors, so a crash loses and repeats
at most one call to the model.
"""

from collections.abc import Mapping
from typing import Any

from tidegate.store import dialect
from tidegate.store.interface import Db
from tidegate.store.rows import Row, SessionRow, unpack
from tidegate.store.tables import sessions
from tidegate.store.tables.search import vectors
from tidegate.store.tables.search.search_index import BLOCK, PLACE_BITS, searchable

ROWS = 200
"""Maximum number of messages that are read for one batch. Many have no text of their own."""
BATCH_BYTES = 64 * 1024
"""Maximum size of the texts in one batch, not counting its last text."""


class VectorBatch(Row, frozen=True):
    """The next texts of one block, by position, and the positions before and at the end of the batch. `first` is the
    first position of the block. A batch without texts only moves the mark."""

    session: SessionRow
    block: int
    first: int
    after: int
    last: int
    texts: tuple[tuple[int, str], ...]


def next_batch(db: Db, now: float, limit: int, text_bytes: int) -> VectorBatch | None:
    """Returns the next batch of at most `limit` texts, each cut to `text_bytes` bytes. The conversation that was last
    active comes first."""
    row = db.execute(
        "SELECT block, upto, session, part FROM vector_blocks JOIN index_blocks ON number = block"
        " WHERE due IS NOT NULL AND due <= ? ORDER BY due DESC NULLS LAST LIMIT 1",
        (now,),
    ).get
    if row is None:
        return None
    block, upto, session, part = row
    first = part << PLACE_BITS
    of = sessions.get(db, session)
    if of is None:
        return None
    after = last = max(upto, first - 1)
    texts: list[tuple[int, str]] = []
    size = 0
    for place, undone, body, packed in db.execute(_FOLLOWING, (session, after, first + BLOCK, ROWS)).fetchall():
        if len(texts) == limit or size > BATCH_BYTES:
            break
        last = place
        text = "" if undone is not None else _cut(searchable(unpack(body, packed)), text_bytes)
        if text.strip():
            texts.append((place, text))
            size += len(text.encode())
    return VectorBatch(of, block, first, after, last, tuple(texts))


_FOLLOWING = (
    "SELECT seq, undone, body, packed FROM messages WHERE session = ? AND seq > ? AND seq < ?"
    " ORDER BY seq NULLS FIRST LIMIT ?"
)


def _cut(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "ignore")[:most].decode("utf-8", "ignore")


def save(db: Db, batch: VectorBatch, number: int, found: Mapping[int, bytes]) -> bool:
    """Stores the vectors of a batch, by position, and moves the mark. Returns False, and stores nothing, if the model
    or the mark has changed since the batch was read. Messages that were deleted in the meantime get no vector."""
    block, id = batch.block, batch.session.id
    upto = db.execute("SELECT upto FROM vector_blocks WHERE block = ?", (block,)).get
    if upto is None or max(upto, batch.first - 1) != batch.after or vectors.model(db).number != number:
        return False
    there: list[Any] = db.execute(
        f"SELECT seq FROM messages WHERE session = ? AND seq IN {dialect.NUMBER_LIST} AND undone IS NULL",
        (id, dialect.number_list(tuple(found))),
    ).fetchall()
    begin = block << PLACE_BITS
    vectors.add(db, number, [(begin + place - batch.first, found[place]) for (place,) in there])
    db.execute("UPDATE vector_blocks SET upto = ? WHERE block = ?", (batch.last, block))
    more = db.execute(
        "SELECT 1 FROM messages WHERE session = ? AND seq > ? AND seq < ? LIMIT 1",
        (id, batch.last, batch.first + BLOCK),
    ).get
    if more is None:
        db.execute("UPDATE vector_blocks SET due = NULL WHERE block = ?", (block,))
        vectors.remove_former(db, begin, begin + BLOCK, number)
    return True


def postpone(db: Db, block: int, until: float) -> None:
    """Lets a block wait, for example until its budget allows further calls."""
    db.execute("UPDATE vector_blocks SET due = ? WHERE block = ? AND due IS NOT NULL", (until, block))
