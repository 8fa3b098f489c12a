"""The script of one command: restore the shell, run the command, save the shell, tell what was left behind.

Guarantee: directory, exported variables, functions and aliases are what the last command left, in whichever process and
on whichever machine that ran; a prompt for input sees the end of its input at once instead of waiting; what the command
left running in the background is ended when it returns, and counted. What is saved is a text that only the sandbox
that wrote it ever reads.

The text goes to bash by its standard input, with its length before it, since an argument could not hold it and since a
background process goes on reading what follows. Output and errors leave by the one stream, in their order; the other
one is the state channel. What the script itself needs is asked for as `builtin` or `command`, since a saved function
may have any name.
"""

from typing import NamedTuple

from tidegate.workspaces.backends.interface import MARK, OWNER

STATE_BYTES = 256 * 1024
"""Of a saved shell. Ordinary ones have a few kilobytes; whole frameworks of functions belong into a file."""

ENTRY = ("bash", "--norc", "--noprofile", "-c", 'IFS= read -r n && s=$(head -c "$n") && eval "$s"')
"""How bash is started, everywhere. `head` takes no byte more than it was told, so that the rest stays readable."""

_PTY_SIZE = "stty rows 40 cols 120 2>/dev/null"  # of a terminal that nobody looks at: wide enough for most lines

_END = "# saved"  # the last line of what was saved; without it, the shell was killed in the middle

_DIGITS = 9  # of a number of processes; what has more is not ours

_CROWD = 24  # left behind, so that there may be no room for one more process, such as saving the shell takes

_FIND = f"""__tidegate_find() {{
  # Without a process of its own: that would carry the mark too, and there may be no room for one.
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
  # Asked first, killed after a third of a second.
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
  # In a shell of its own, so that what is not to be saved can be taken out; and first, since the time may be short.
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
    """What the state channel told: how many processes were left, and the shell, or None when it was not saved."""

    left: int
    shell: bytes | None
    too_long: bool = False


def framed(text: str) -> bytes:
    """A script as `ENTRY` wants it."""
    data = text.encode("utf-8", "surrogateescape")
    # The substitution that takes it drops line breaks at its end.
    return b"%d\n%s" % (len(data), data)


def quote(text: str) -> str:
    """`text` as one word of bash."""
    return "'" + text.replace("'", "'\\''") + "'"


def command(text: str, *, mark: str, folder: str, shell: bytes | None, pty: bool = False) -> bytes:
    """The script of a command in the terminal."""
    run = f"\\builtin eval {quote(text)}"
    if pty:
        # The terminal's own shell is another process: what it changes is not kept, and nothing else would give one.
        run = f"\\command script -qefc {quote(f'{_PTY_SIZE}; {text}')} /dev/null"
    return framed(
        f"exec 9>&2 2>&1\n{_FIND}{_SAVE}"
        + _restore(folder, shell)
        + f"\\builtin export {MARK}={quote(mark)}\n\\builtin trap __tidegate_save EXIT\n"
        + f"{{ {run}\n}} </dev/null\n__tidegate_save\n"
    )


def background(text: str, *, mark: str, folder: str, shell: bytes | None) -> bytes:
    """The script of a process that goes on: it starts where the shell is, and changes nothing there. It reads what is
    written to it."""
    return framed(
        f"exec 2>&1\n{_restore(folder, shell)}\\builtin export {MARK}={quote(mark)}\n\\builtin eval {quote(text)}\n"
    )


def matching(pattern: str) -> bytes:
    """The script that prints the first line of its input in which an extended regular expression is found."""
    return framed(f"exec grep -a -m 1 -E -e {quote(pattern)}\n")


def read_state(data: bytes) -> SavedShell:
    """What `command` wrote to the state channel. A shell that was replaced (`exec`) or killed has written nothing."""
    shell, end, rest = data.rpartition(f"{_END}\n".encode())
    told = rest.strip().removeprefix(b"left ")
    left = int(told) if told.isdigit() and len(told) < _DIGITS else 0
    if len(data) > STATE_BYTES:
        return SavedShell(left, None, too_long=True)
    return SavedShell(left, shell + end if end else None)


def _restore(folder: str, shell: bytes | None) -> str:
    # A directory that is gone meanwhile leaves the command in the folder itself. As a word of its own, so that even a
    # text that is no valid script, whoever wrote that to the state channel, keeps no later command from running.
    saved = f"builtin eval {quote(shell.decode('utf-8', 'surrogateescape'))}\n" if shell else ""
    return f"builtin cd -- {quote(folder)}\nbuiltin shopt -s expand_aliases\n{saved}"
