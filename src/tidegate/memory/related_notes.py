"""Notes offered with a message because they match it but do not fit into the prompt.

Only notes about the person who wrote the message and about the answering agent's work are considered. The notes are
ranked like messages in a search (`store/tables/search/ranking.py`): by the words that they share with the message,
weighted by their rarity among the notes. The number and the total size of the offered notes are bounded. The notes are
stored as a separate message after the user's message, in the same transaction, so a turn that is resumed or retried has
the same notes. The message is marked as data, shown as a remark by the gateway, and never found by a search.
"""

import time
from collections.abc import Sequence

from tidegate.plugins import Note
from tidegate.store import About, Db, notes, ranking, search_index
from tidegate.values import Frozen, Message

OFFERED = 5
"""Maximum number of notes offered with one message."""
COMMON_SHARE = 0.1
COMMON_NOTES = 2
"""A note must share with the message a word that occurs in at most this share of the notes, or in at most this many
notes."""


class IndexedNote(Frozen, frozen=True):
    """A note that is not in the prompt, with the terms of its text."""

    about: About
    note: Note
    terms: frozenset[str]


def indexed(db: Db, about: About, left_out: Sequence[Note]) -> tuple[IndexedNote, ...]:
    analyzer = search_index.analyzer(db)
    return tuple(IndexedNote(about, note, frozenset(analyzer.terms(note.text))) for note in left_out)


def best(db: Db, text: str, found: Sequence[IndexedNote], seen: frozenset[int]) -> list[IndexedNote]:
    """Returns the notes that best match a text, the best first, without those that were `seen`."""
    terms = ranking.Question(text, search_index.analyzer(db), time.time()).terms
    counts = {term: sum(term in each.terms for each in found) for term in terms}
    weights = {term: ranking.rarity(count, len(found)) for term, count in counts.items() if count}
    rare = {term for term in weights if counts[term] <= max(COMMON_NOTES, COMMON_SHARE * len(found))}
    scored = [
        (sum(weight for term, weight in weights.items() if term in each.terms), each.note.at, each.note.id, each)
        for each in found
        if each.note.id not in seen and not rare.isdisjoint(each.terms)
    ]
    return [each for *_, each in sorted(scored, key=lambda each: each[:3], reverse=True)[:OFFERED]]


def message_of(offered: Sequence[IndexedNote], room: int) -> tuple[Message | None, list[int]]:
    """Returns the message with as many of these notes as fit, and their numbers."""
    lines, numbers = [notes.RELATED], []
    for each in offered:
        note = each.note
        line = notes.related_line(each.about, notes.format_note(note.id, note.source, note.by, note.text))
        if notes.size_of(line) + 1 <= room:
            room -= notes.size_of(line) + 1
            lines.append(line)
            numbers.append(note.id)
    return (Message(role="user", aside="\n".join(lines)) if numbers else None), numbers
