"""Titles of conversations: what a list shows of them.

Guarantee: a title is one line of at most `LONGEST` characters. What a person chose is kept as it is or refused, never
cut; only a title that we make ourselves is shortened.
"""

import textwrap

from tidegate.errors import Refused

LONGEST = 200
"""Characters of a title that somebody chose: a line of any list."""

FIRST_WORDS = 60
"""Characters of a title made from the first message."""


def chosen(text: str) -> str:
    title = " ".join(text.split())
    if len(title) > LONGEST:
        raise Refused(
            f"The title has {len(title)} characters and may have {LONGEST}; choose a shorter one.",
            code="title_too_long",
            param="title",
        )
    return title


def first_words(text: str) -> str:
    """What a conversation without a name is listed as until somebody gives it a title."""
    return textwrap.shorten(text[: 4 * FIRST_WORDS], FIRST_WORDS, placeholder=" …") or text[:FIRST_WORDS]
