"""Drift: how a session's frozen prompt and tools differ from what its agent's configuration gives now.

The user is told once for each change of the configuration, over restarts, and /reload is named. It is found where a
resident is built, from what is read for that anyway, so a turn without drift costs neither a read nor a write.
"""

import hashlib

from tidegate.agent import PROMPT, part_of
from tidegate.store import SettingRow, settings
from tidegate.tools import Toolset
from tidegate.values import Frozen, Prefix

KEY = f"{settings.OWN}drift"
"""Of the setting that says what the user was told of, and in which turn."""


class PrefixDrift(Frozen, frozen=True):
    """`text` is for the user; `mark` tells one configuration from another."""

    text: str
    mark: str

    def is_told(self, held: tuple[SettingRow, ...], turn: str) -> bool:
        """Whether an earlier turn has told it. A turn that goes on after a crash tells it again."""
        told = told_of(held)
        return told is not None and told[0] == self.mark and told[1] != turn


def told_of(held: tuple[SettingRow, ...]) -> list[str] | None:
    """The mark, and the turn."""
    return next((setting.value for setting in held if setting.key == KEY), None)


def drift_of(frozen: Prefix, prompt: str, tools: Toolset) -> PrefixDrift | None:
    """`prompt` and `tools` are the agent's own, as a new session would get them."""
    prompt = prompt.strip()
    old = {tool.name: tool for tool in frozen.tools}
    new = {tool.name: tool for tool in tools.definitions}
    changes = {
        "now also": [name for name in new if name not in old],
        "no longer": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    changed = [
        *(["prompt"] if _prompt_differs(frozen, prompt) else []),
        *(["tools"] if any(changes.values()) else []),
    ]
    if not changed:
        return None
    named = "; ".join(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
    text = (
        f"This agent's {' and '.join(changed)} changed since this conversation began{f' ({named})' if named else ''}."
    )
    mark = hashlib.blake2b(tools.digest + prompt.encode(), digest_size=8).hexdigest()
    return PrefixDrift(text=f"{text} /reload takes {'it' if changed == ['prompt'] else 'them'} over.", mark=mark)


def _prompt_differs(frozen: Prefix, prompt: str) -> bool:
    if frozen.parts:
        return part_of(frozen, PROMPT) != prompt
    # Of a prompt that has one part it is not known whose that was: the caller's, if the agent has none.
    return bool(prompt) and frozen.prompt != prompt
