"""What the terminal client prints: answers, notes beside them, and what tools put out.

Guarantee: for a pipe only answers are on standard output, and what is beside them on standard error; for a person
everything is on the terminal, what is beside the answer faint where colours are wanted. Nothing that is printed can
move the cursor.
"""

import os
import sys

from tidegate.cli.output import plain, wrapped, write_faint


class Printer:
    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._dim = interactive and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._fresh = True
        self._of_tool = False
        """Whether what stands in an open line is a tool's."""

    def text(self, text: str) -> None:
        if text := plain(text):
            self._turn_to(tool=False)
            self._write(text)

    def end_line(self, *, typed: bool = False) -> None:
        """To the beginning of a line; `typed` when the person has ended it himself."""
        if not self._fresh and not typed:
            self._write("\n")
        self._fresh = True

    def line(self, text: str) -> None:
        self.end_line()
        shown = wrapped(plain(text)) if self._interactive else text
        self.text(shown if shown.endswith("\n") else shown + "\n")

    def prompt(self, text: str) -> None:
        self.end_line()
        self._write(text)

    def note(self, text: str) -> None:
        """Something beside the answer."""
        shown = plain(text).replace("\n", " ")
        if not self._interactive:
            print(shown, file=sys.stderr)
            return
        self.end_line()
        self._write(wrapped(f"· {shown}"), faint=True)
        self._write("\n")

    def progress(self, text: str) -> None:
        """What a running tool puts out, as it comes; nothing of it for a pipe."""
        # A program that draws over its own line means a new state of it: a terminal that is shared gets it as a line.
        if self._interactive and (shown := plain(text.replace("\r\n", "\n").replace("\r", "\n"))):
            self._turn_to(tool=True)
            self._write(shown, faint=True)

    def _turn_to(self, *, tool: bool) -> None:
        """An answer does not go on in a tool's line, nor the other way round."""
        if tool != self._of_tool:
            self.end_line()
        self._of_tool = tool

    def _write(self, text: str, *, faint: bool = False) -> None:
        write_faint(text) if faint and self._dim else sys.stdout.write(text)
        sys.stdout.flush()
        self._fresh = text.endswith("\n")
