"""Reading lines from a person: prompt_toolkit when it is installed (extra `chat`), else readline.

Guarantee: what was typed before is there again (the history file, readable by its owner only, bounded); Ctrl-D raises
EOFError and Ctrl-C KeyboardInterrupt, whichever way lines are read.
"""

import os
from collections.abc import Callable
from pathlib import Path

_KEPT_LINES = 2000  # of history


def line_reader(history: Path) -> Callable[[str], str]:
    """A function that shows a prompt and returns a line."""
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
    """Lines of prompt_toolkit's history begin with `+`; the same form is kept, so that both ways share the file."""
    import readline

    for line in history.read_text(errors="replace").splitlines():
        if line.startswith("+"):
            readline.add_history(line[1:])

    def read(prompt: str) -> str:
        line = input(prompt)
        if line.strip():
            with history.open("a") as file:
                file.write(f"\n+{line}\n")
        return line

    return read


def _shorten(history: Path) -> None:
    lines = history.read_text(errors="replace").splitlines(keepends=True)
    if len(lines) > 3 * _KEPT_LINES:
        history.write_text("".join(lines[-3 * _KEPT_LINES :]))
