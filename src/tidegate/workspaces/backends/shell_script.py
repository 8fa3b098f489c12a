"""The script around a command: restores the shell, runs the command, saves the shell, and reports what was left behind.

The directory, exported variables, functions and aliases are as the last command left them, whichever process and
machine it ran in. A prompt for input gets end-of-file immediately instead of waiting. Processes left in the background
are killed and counted when the command returns. The saved text is only ever read by the sandbox that wrote it.

The script is sent to bash on standard input because it may be too long for an argument. Its length is sent first
because a background process continues to read the input after the script. Output and errors share one stream, in order;
the other stream is the state channel. The script calls `builtin` and `command` explicitly, since a saved function may
have any name.
"""

from typing import NamedTuple

from tidegate.workspaces.backends.interface import MARK, OWNER

STATE_BYTES = 256 * 1024
"""Maximum size of a saved shell. An ordinary shell takes a few kilobytes; large collections of functions belong in a
file."""

ENTRY = ("bash", "--norc", "--noprofile", "-c", 'IFS= read -r n && s=$(head -c "$n") && eval "$s"')
"""The bash command line for all backends. `head` reads exactly the given length, so the rest of the input can still be
read."""

_PTY_SIZE = "stty rows 40 cols 120 2>/dev/null"  # for a terminal that nobody looks at: wide enough for most lines

_END = "# saved"  # the last line of a saved shell; without it, the shell was killed half-way

_DIGITS = 9  # in a number of processes; a longer one is not ours

_CROWD = 24  # processes left behind; with this many, there may be no room for another process to save the shell

_FIND = f"""__tidegate_find() {{
  # Use only builtins: a child process would carry the mark, too, and there may be no room for one.
  local IFS=$'\\1' file pid all; __tidegate_pids=()
  for file in /proc/[0-9]*/environ; do
    pid=${{file#/proc/}}; pid=${{pid%/environ}}
    [ "$pid" != "$$" ] && builtin mapfile -d '' -t all 2>/dev/null <"$file" || continue
    [[ $'\\1'"${{all[*]}}"$'\\1' == *$'\\1{MARK}='"$1"$'\\1'* ]] || continue
    builtin kill -0 "$pid" 2>/dev/null && __tidegate_pids+=("$pid")
  done
  [ ${{#__tidegate_pids[@]}} -gt 0 ]
}}
__tidegate_end() {{
  # Send SIGTERM first, and SIGKILL after a third of a second.
  local round
  __tidegate_find "$1" || return
  [ $__tidegate_left -gt 0 ] || __tidegate_left=${{#__tidegate_pids[@]}}  # else they are counted, and still ending
  builtin kill -TERM "${{__tidegate_pids[@]}}"
  for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    command sleep 0.03
    __tidegate_find "$1" || break
    [ $round -lt 11 ] || builtin kill -KILL "${{__tidegate_pids[@]}}"
  done
}} 2>/dev/null
"""

_SAVE = f"""__tidegate_save() {{
  local code=$? mark=${MARK} theirs some; builtin set +eux; __tidegate_left=0
  __tidegate_find "$mark"; some=${{#__tidegate_pids[@]}}
  if [ $some -ge {_CROWD} ]; then
    builtin kill -KILL "${{__tidegate_pids[@]}}"; __tidegate_left=$some
  fi
  theirs=$(builtin trap -p EXIT); builtin trap - EXIT
  if [ "$theirs" != "trap -- '__tidegate_save' EXIT" ] && [ -n "$theirs" ]; then
    builtin eval "builtin set -- $theirs"; builtin eval "$3"
  fi
  # Run this in a subshell, so that our own names can be removed, and run it first, since time may be short.
  ( builtin unset __tidegate_left __tidegate_pids
    builtin unset -f __tidegate_save __tidegate_end __tidegate_find
    builtin export -n {MARK} {OWNER} PWD SHLVL _
    builtin printf 'builtin cd -- %q 2>/dev/null\n' "$PWD"
    builtin export -p; builtin declare -f; builtin alias -p; builtin echo '{_END}' ) >&9 2>/dev/null
  [ $some -eq 0 ] || __tidegate_end "$mark"
  builtin printf 'left %s\n' "$__tidegate_left" >&9
  builtin exec 9>&-
  builtin exit "$code"
}}
"""


class SavedShell(NamedTuple):
    """The content of the state channel: the number of processes left behind, and the saved shell, which is None if it
    was not saved."""

    left: int
    shell: bytes | None
    too_long: bool = False


def frame(text: str) -> bytes:
    """Returns a script in the form read by `ENTRY`."""
    data = text.encode("utf-8", "surrogateescape")
    # The command substitution that reads it drops trailing line breaks.
    return b"%d\n%s" % (len(data), data)


def quote(text: str) -> str:
    """Quotes `text` as one bash word."""
    return "'" + text.replace("'", "'\\''") + "'"


def command(text: str, *, mark: str, folder: str, shell: bytes | None, pty: bool = False) -> bytes:
    """Returns the script for a command in the terminal."""
    run = f"\\builtin eval {quote(text)}"
    if pty:
        # The terminal has its own shell in another process, so changes are not kept. There is no other way to provide a
        # terminal.
        run = f"\\command script -qefc {quote(f'{_PTY_SIZE}; {text}')} /dev/null"
    return frame(
        f"exec 9>&2 2>&1\n{_FIND}{_SAVE}"
        + _restore(folder, shell)
        + f"\\builtin export {MARK}={quote(mark)}\n\\builtin trap __tidegate_save EXIT\n"
        + f"{{ {run}\n}} </dev/null\n__tidegate_save\n"
    )


def background(text: str, *, mark: str, folder: str, shell: bytes | None) -> bytes:
    """Returns the script for a background process, which starts with the shell's current state and does not change it.
    The process reads the input that is written to it."""
    return frame(
        f"exec 2>&1\n{_restore(folder, shell)}\\builtin export {MARK}={quote(mark)}\n\\builtin eval {quote(text)}\n"
    )


def first_match(pattern: str) -> bytes:
    """Returns a script that prints the first line in its input that matches an extended regular expression."""
    return frame(f"exec grep -a -m 1 -E -e {quote(pattern)}\n")


def read_state(data: bytes) -> SavedShell:
    """Parses what `command` has written to the state channel. A shell that was replaced (`exec`) or killed has written
    nothing."""
    shell, end, rest = data.rpartition(f"{_END}\n".encode())
    number = rest.strip().removeprefix(b"left ")
    left = int(number) if number.isdigit() and len(number) < _DIGITS else 0
    if len(data) > STATE_BYTES:
        return SavedShell(left, None, too_long=True)
    return SavedShell(left, shell + end if end else None)


def _restore(folder: str, shell: bytes | None) -> str:
    # If the saved directory no longer exists, the command starts in the folder itself. The saved text is a separate
    # word, so that even an invalid script, whoever wrote it to the state channel, does not keep later commands from
    # running.
    saved = f"builtin eval {quote(shell.decode('utf-8', 'surrogateescape'))}\n" if shell else ""
    return f"builtin cd -- {quote(folder)}\nbuiltin shopt -s expand_aliases\n{saved}"
