"""The vectors of messages: storing them, finding the nearest ones, and removing them.

A vector has the number of its message in the search index, without the length class (`search_index`). The vectors of
one conversation are therefore one short range, all of a person's vectors are a few ranges, and a search never reads or
compares other people's vectors. Vectors of an earlier model are never compared; they are replaced conversation by
conversation (`vector_batches`). Without a model, nothing is recorded, and vectors that are left are removed in batches.
"""

from collections.abc import Sequence
from typing import Any

from tidegate.store import dialect
from tidegate.store.interface import Db
from tidegate.store.rows import Row

COMPARED_BYTES = 32 * 1024 * 1024
"""Maximum size of the vectors that one search compares, which takes some forty milliseconds: those of the messages with
the highest numbers, which belong to the conversations that began last."""
COMPARED = 50_000
"""Maximum number of vectors that one search compares."""
REMOVED = 500
"""Maximum number of vectors that one write removes."""


class VectorModel(Row, frozen=True):
    """The model whose vectors are stored. `number` increases with each change of the model, `identity` is empty if
    there is no model, `dimensions` is 0 before the first vector, and `bytes` is the size of all stored vectors."""

    number: int
    identity: str
    dimensions: int
    bytes: int


def model(db: Db) -> VectorModel:
    return VectorModel(*db.execute("SELECT number, identity, dimensions, bytes FROM vector_models").get)


def set_model(db: Db, identity: str) -> None:
    """Sets the model, or none if `identity` is empty. If the model changes, all messages wait for new vectors, and the
    most recently active conversations come first."""
    if model(db).identity == identity:
        return
    db.execute("UPDATE vector_models SET number = number + 1, identity = ?, dimensions = 0", (identity,))
    db.execute("DELETE FROM vector_blocks")
    if identity:
        db.execute(
            "INSERT INTO vector_blocks(block, upto, due) SELECT number, 0, active FROM index_blocks"
            " JOIN sessions ON sessions.id = session WHERE kind = 'named'"
        )


def mark_due(db: Db, blocks: Sequence[int]) -> None:
    """Records that these blocks of the index have further messages. Does nothing without a model, and for one-shot
    conversations."""
    if model(db).identity:
        db.execute(
            "INSERT INTO vector_blocks(block, upto, due) SELECT number, 0, active FROM index_blocks"
            f" JOIN sessions ON sessions.id = session WHERE number IN {dialect.NUMBER_LIST} AND kind = 'named'"
            " ON CONFLICT(block) DO UPDATE SET due = coalesce(vector_blocks.due, excluded.due)",
            (dialect.number_list(blocks),),
        )


def count_due(db: Db) -> int:
    """Returns the number of blocks with messages that wait for a vector."""
    return int(db.execute("SELECT count(*) FROM vector_blocks WHERE due IS NOT NULL").get)


def add(db: Db, number: int, vectors: Sequence[tuple[int, bytes]]) -> None:
    """Stores the vectors of messages, by their numbers, or replaces them."""
    keys = dialect.number_list([key for key, _ in vectors])
    former = db.execute(
        f"SELECT coalesce(sum(length(vector)), 0) FROM message_vectors WHERE entry IN {dialect.NUMBER_LIST}", (keys,)
    ).get
    db.executemany(
        "INSERT INTO message_vectors(entry, model, vector) VALUES(?, ?, ?)"
        " ON CONFLICT(entry) DO UPDATE SET model = excluded.model, vector = excluded.vector",
        [(key, number, vector) for key, vector in vectors],
    )
    db.execute(
        "UPDATE vector_models SET bytes = bytes + ?, dimensions = CASE WHEN dimensions = 0 THEN ? ELSE dimensions END",
        (sum(len(vector) for _, vector in vectors) - int(former), len(vectors[0][1]) if vectors else 0),
    )


def remove(db: Db, first: int, end: int) -> None:
    """Removes the vectors of the messages with these numbers, which are being deleted."""
    _remove(db, "entry >= ? AND entry < ?", (first, end))


def remove_former(db: Db, first: int, end: int, number: int) -> None:
    """Removes the vectors with these numbers that another model made."""
    _remove(db, "entry >= ? AND entry < ? AND model <> ?", (first, end, number))


def remove_unused(db: Db) -> int:
    """Removes some of the vectors that are left without a model. Returns the number removed."""
    found = model(db)
    if found.identity or not found.bytes:
        return 0
    rows: list[Any] = db.execute("SELECT entry FROM message_vectors ORDER BY entry LIMIT ?", (REMOVED,)).fetchall()
    if rows:
        _remove(db, "entry <= ?", (rows[-1][0],))
    else:
        db.execute("UPDATE vector_models SET bytes = 0")
    return len(rows)


def _remove(db: Db, where: str, values: tuple[int, ...]) -> None:
    size = db.execute(f"SELECT coalesce(sum(length(vector)), 0) FROM message_vectors WHERE {where}", values).get
    if size:
        db.execute(f"DELETE FROM message_vectors WHERE {where}", values)
        db.execute("UPDATE vector_models SET bytes = bytes - ?", (int(size),))


def nearest(
    db: Db,
    vector: bytes,
    identity: str,
    scope: Sequence[tuple[int, int]],
    limit: int,
    *,
    compared: int = COMPARED,
) -> list[tuple[int, float]]:
    """Returns the numbers of the messages in the scope whose vectors are the nearest, with their similarity (the cosine
    of the angle), the nearest first. The scope consists of ranges of numbers, the latest first. If the stored vectors
    come from another model or have another length, none are returned. At most `compared` vectors are compared."""
    found = model(db)
    if found.identity != identity or found.dimensions != len(vector):
        return []
    dialect.load_vectors(db)
    left = min(compared, COMPARED_BYTES // len(vector))
    near: list[tuple[float, int]] = []
    for first, end in scope:
        values = (vector, first, end, found.number, len(vector), left, limit)
        near += [(distance, -entry) for entry, distance in db.execute(dialect.NEAREST, values).fetchall()]
        left -= int(db.execute(_COUNT, (first, end, left)).get)
        if left <= 0:
            break
    return [(-entry, 1.0 - distance) for distance, entry in sorted(near)[:limit]]


_COUNT = "SELECT count(*) FROM (SELECT 1 FROM message_vectors WHERE entry >= ? AND entry < ? LIMIT ?) AS compared"
