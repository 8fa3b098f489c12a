"""A large store of generated conversations, indexed, for the search figures.

The same parameters give the same store, made through the store's own tables and index. All of it is in the folder that
it is made in. Some words are rare on purpose: each of them occurs in only a few messages.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bench.prose import Prose
from tidegate.store import Db, Store, search_index, sessions
from tidegate.store.rows import pack
from tidegate.values import Message, Prefix

SESSION_MESSAGES = 200
"""Average messages of a conversation: a million messages are five thousand conversations."""
LENGTHS = (4, 8, 8, 12, 12, 16, 20, 30, 60)
"""Lengths of messages in words: most are short."""
RARE = 200
RARE_IN = 3
"""Messages in which each rare word occurs."""
AT_ONCE = 20_000
"""Messages of one transaction."""
DAY = 86_400.0
BEGUN = 1_700_000_000.0
OWNERS = ("p_many", "p_some", "p_few")
_WEIGHTS = (80, 19, 1)
"""Percentages of the conversations: one user has most of them, another very few."""


@dataclass(frozen=True)
class Library:
    """Conversations by owner, and words by frequency (rare, middling, common)."""

    sessions: dict[str, tuple[str, ...]]
    words: dict[str, tuple[str, ...]]


class Builder:
    def __init__(self, messages: int, say: Callable[[str], None], seed: int = 0) -> None:
        self._messages = messages
        self._say = say
        self._random = random.Random(seed)
        self._prose = Prose(seed)
        self._rare = [f"qua{number:04d}x" for number in range(RARE)]
        self._seqs: dict[str, int] = {}

    async def build(self, store: Store) -> Library:
        count = max(len(OWNERS), self._messages // SESSION_MESSAGES)
        owned: dict[str, list[str]] = {owner: [] for owner in OWNERS}
        for place in range(count):
            owner = OWNERS[place] if place < len(OWNERS) else self._random.choices(OWNERS, _WEIGHTS)[0]
            owned[owner].append(f"s_{place:06d}")
        await store.write(self._begin, owned)
        ids = [id for owner in OWNERS for id in owned[owner]]
        every = max(1, self._messages // (RARE * RARE_IN))
        for first in range(0, self._messages, AT_ONCE):
            self._say(f"library: {first:,} of {self._messages:,} messages")
            await store.write(self._add, ids, range(first, min(first + AT_ONCE, self._messages)), every)
        words = self._prose.words
        middle = len(words) // 8
        return Library(
            sessions={owner: tuple(found) for owner, found in owned.items()},
            words={"rare": tuple(self._rare), "middling": words[middle : middle + 2_000], "common": words[:20]},
        )

    def _begin(self, db: Db, owned: dict[str, list[str]]) -> None:
        for owner, found in owned.items():
            for id in found:
                sessions.create(
                    db,
                    id=id,
                    principal=owner,
                    channel="http",
                    name=id,
                    kind="named",
                    agent="main",
                    extra="",
                    parent=None,
                    now=BEGUN,
                    prefix=Prefix(prompt="You are a library."),
                    encoder=0,
                    title=" ".join(self._prose.some(5)),
                )

    def _add(self, db: Db, ids: list[str], numbers: range, every: int) -> None:
        """Add messages to conversations in alternation, a few at a time, as in real use."""
        rows: list[tuple[Any, ...]] = []
        lengths = self._random.choices(LENGTHS, k=len(numbers))
        words = iter(self._prose.some(sum(lengths)))
        id = ""
        for number, length in zip(numbers, lengths, strict=True):
            if number % 4 == 0:
                id = self._random.choice(ids)
            said = [next(words) for _ in range(length)]
            if number % every == 0:
                said[length // 2] = self._rare[number // every % RARE]
            seq = self._seqs[id] = self._seqs.get(id, 0) + 1
            role: Literal["user", "assistant"] = "user" if seq % 2 else "assistant"
            body, packed = pack(Message(role=role, text=" ".join(said)))
            rows.append((id, seq, role, body, packed, BEGUN + number))
        db.executemany("INSERT INTO messages(session, seq, role, body, packed, at) VALUES(?, ?, ?, ?, ?, ?)", rows)
        while search_index.index(db, AT_ONCE):
            pass
