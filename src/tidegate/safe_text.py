"""Sanitisation of untrusted text for display.

The results of `strip_controls` and `escape_invisible` contain no control characters except newline and tab, and no
characters that change the direction or order of the text around them. `strip_controls` removes such characters, which
is enough for a terminal. `escape_invisible` escapes them, along with all other invisible characters, for users who have
to approve the text.
"""

import re
import unicodedata

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_BREAKS = "\u2028\u2029"
CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f{_BIDI}{_BREAKS}]")
_CONTROL_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_BREAKS}]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that reverse or break up the surrounding text."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0000-\U000e0fff]"
    "|(?<![\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
)
"""Matches other invisible characters: fillers, and variation selectors that do not follow an emoji."""


def strip_controls(text: str) -> str:
    return _CONTROL_IN_TEXT.sub("", text)


def escape_invisible(text: str, *, one_line: bool = False) -> str:
    blank = {found.start() for found in _BLANK.finditer(text)}
    if text.isprintable() and not blank:
        return text
    kept = "" if one_line else "\n\t"
    return "".join(
        each if each in kept or (_is_visible(each) and place not in blank) else _escape(each)
        for place, each in enumerate(text)
    )


def escape_json(text: str) -> str:
    """Escapes control characters in a JSON document. Such characters occur only inside strings, so the document keeps
    its value."""
    return _CONTROL_IN_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def strip_invisible(text: str) -> str:
    """Removes control characters except newline and tab, and all characters that people cannot see, for text of
    strangers that a model reads. Emoji that are joined by such characters fall apart."""
    return _HIDDEN.sub("", text)
