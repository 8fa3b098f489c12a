"""What an agent asks, as it is printed, and what a person says to it, as it is sent.

Guarantee: a person is shown the whole of what he is asked about; a word that is no clear answer is none.
"""

from typing import Any

from tidegate.cli.output import plain, when

_YES = ("y", "yes", "approve", "approved")
_NO = ("n", "no", "deny", "denied")


def described(question: dict[str, Any]) -> list[str]:
    """The question in full, its choices numbered."""
    lines = plain(question["summary"]).split("\n")
    return [*lines, *(f"{number}. {plain(choice)}" for number, choice in enumerate(question.get("choices", ()), 1))]


def heading(question: dict[str, Any]) -> str:
    what = "an approval" if question["kind"] == "approval" else "a question"
    until = f", until {when(question['expires'])}" if question.get("expires") else ""
    whose = f"{plain(question['person'])}'s conversation {question['conversation']}"
    return f"{question['id']}: {what} in {whose}, asked {when(question['asked'])}{until}"


def hint(question: dict[str, Any]) -> str:
    """What can be said, for a prompt."""
    if question["kind"] == "approval":
        return "y approves, n [REASON] denies"
    return f"1 to {len(question['choices'])} answers" if question.get("choices") else "what you write is the answer"


def answer_of(question: dict[str, Any], text: str) -> dict[str, str] | None:
    """The answer as the gateway takes it; None when the words are none. The gateway knows which choices there are."""
    text = text.strip()
    if question["kind"] == "question":
        return {"decision": "answered", "text": text} if text else None
    word, _, reason = text.partition(" ")
    if word.lower() in _YES and not reason:
        return {"decision": "approved"}
    if word.lower() in _NO:
        return {"decision": "denied", "text": reason.strip()}
    return None
