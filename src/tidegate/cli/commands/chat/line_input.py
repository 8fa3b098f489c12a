"""Line input at the terminal, with prompt_toolkit if it is installed (extra `chat`), otherwise with readline.

With either, the history file has a limited size and can be read only by its owner, and pasted lines count as one entry.
Ctrl-D at the beginning of a line raises EOFError. Ctrl-C raises KeyboardInterrupt.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

_HISTORY_LINES = 2000


def line_reader(history: Path) -> Callable[[str], str]:
    """Returns a function that shows a prompt and reads a line."""
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _shorten(history)
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    except ImportError:
        return _with_readline(history)
    session: PromptSession[str] = PromptSession(history=FileHistory(str(history)))
    return session.prompt


def _with_readline(history: Path) -> Callable[[str], str]:
    """Returns a function that reads lines with readline. The history file has prompt_toolkit's format, so that both can
    use the same file: each line of an entry starts with `+`, and any other line ends the entry."""
    import readline

    # Makes pasted lines one entry. Python disables this for its own prompt.
    readline.parse_and_bind("set enable-bracketed-paste on")
    for entry in _entries(history):
        readline.add_history(entry)

    def read(prompt: str) -> str:
        try:
            line = input(prompt)
        except (EOFError, KeyboardInterrupt):
            print()  # readline leaves the cursor on its line
            raise
        if line.strip():
            with history.open("a") as file:
                file.write("\n" + "".join(f"+{part}\n" for part in line.split("\n")))
        return line

    return read


def _entries(history: Path) -> Iterator[str]:
    entry: list[str] = []
    for line in [*history.read_text(errors="replace").split("\n"), ""]:
        if line.startswith("+"):
            entry.append(line[1:])
        elif entry:
            yield "\n".join(entry)
            entry = []


def _shorten(history: Path) -> None:
    lines = history.read_text(errors="replace").splitlines(keepends=True)
    if len(lines) > 3 * _HISTORY_LINES:
        recent = lines[-3 * _HISTORY_LINES :]
        first = next((index for index, line in enumerate(recent) if not line.startswith("+")), len(recent))
        history.write_text("".join(recent[first:]))
