"""Commands that a sentence tells a person to type.

Guarantee: what is printed can be copied as it stands: it names the home folder whenever that is not the default one.
"""

import shlex
from pathlib import Path

_DEFAULT_HOME = "~/.tidegate"


def hint(home: Path, command: str) -> str:
    """`tidegate …` for this home folder, in the quotes that our sentences use."""
    try:
        usual = home == Path(_DEFAULT_HOME).expanduser().absolute()
    except RuntimeError:  # a user without a home of his own
        usual = False
    return f"`tidegate {command}`" if usual else f"`tidegate {command} --home {shlex.quote(str(home))}`"
