"""The terminal client's output: answers, notes and tool output.

If the output is a pipe, answers go to standard output and notes to standard error. On a terminal, everything goes to
standard output, with notes and tool output in faint text if colours are enabled. Printed text cannot move the cursor.
"""

import os
import sys

from tidegate.cli.output import strip_controls, wrap_text, write_faint


class Printer:
    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._dim = interactive and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._fresh = True
        self._of_tool = False
        """True if the current line is tool output."""

    def text(self, text: str) -> None:
        if text := strip_controls(text):
            self._switch_to(tool=False)
            self._write(text)

    def end_line(self, *, typed: bool = False) -> None:
        """Ensures that the cursor is at the beginning of a line. `typed` is true if the user has just pressed Enter."""
        if not self._fresh and not typed:
            self._write("\n")
        self._fresh = True

    def line(self, text: str) -> None:
        self.end_line()
        shown = wrap_text(strip_controls(text)) if self._interactive else text
        self.text(shown if shown.endswith("\n") else shown + "\n")

    def prompt(self, text: str) -> None:
        self.end_line()
        self._write(text)

    def note(self, text: str) -> None:
        """Prints a remark that is not part of the answer."""
        shown = strip_controls(text).replace("\n", " ")
        if not self._interactive:
            print(shown, file=sys.stderr)
            return
        self.end_line()
        self._write(wrap_text(f"· {shown}"), faint=True)
        self._write("\n")

    def progress(self, text: str) -> None:
        """Prints a running tool's output as it arrives, unless the output is a pipe."""
        # Programs with a progress display overwrite their line. Print each state on its own line instead.
        if self._interactive and (shown := strip_controls(text.replace("\r\n", "\n").replace("\r", "\n"))):
            self._switch_to(tool=True)
            self._write(shown, faint=True)

    def _switch_to(self, *, tool: bool) -> None:
        """Starts a new line when the output switches between answer and tool."""
        if tool != self._of_tool:
            self.end_line()
        self._of_tool = tool

    def _write(self, text: str, *, faint: bool = False) -> None:
        write_faint(text) if faint and self._dim else sys.stdout.write(text)
        sys.stdout.flush()
        self._fresh = text.endswith("\n")
