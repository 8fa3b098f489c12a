"""Programs sent to machines on which nothing from Tidegate is installed.

The source text of modules that also run on this machine is sent, so each exists in only one version; the sent modules
import each other by their usual names. Nothing is written to disk on the other machine. `BOOTSTRAP` is the command
started there: it reads exactly one program from its input and becomes that program.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

BOOTSTRAP = (
    "exec python3 -I -S -c 'import os,sys;r=lambda n:os.read(0,n)or sys.exit(1);"
    'n=int(b"".join(iter(lambda:r(1),b"\\n")));s=[b""];exec("while len(s[0])<n:s[0]+=r(n-len(s[0]))");exec(s[0])\''
)
"""A command that works in any shell: a single line without nested quotes."""

_BECOME = """
import __future__, sys
for name, text in {modules!r}:
    module = sys.modules[name] = type(sys)(name)
    # Older versions cannot evaluate the annotations.
    exec(compile(text, name, "exec", __future__.annotations.compiler_flag), module.__dict__)
sys.modules[{main!r}].{entry}()
"""


def program(modules: Sequence[str], entry: str, standins: Mapping[str, str] | None = None) -> bytes:
    """Returns the input from which `BOOTSTRAP` loads these modules and calls `entry` in the last one. Each module may
    import those before it. `standins` are texts sent instead of modules. This function reads files, so it belongs in a
    thread."""
    texts = [(name, (standins or {}).get(name) or _text(name)) for name in modules]
    data = _BECOME.format(modules=texts, main=modules[-1], entry=entry).encode()
    return b"%d\n%s" % (len(data), data)


def _text(module: str) -> str:
    return Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8")
