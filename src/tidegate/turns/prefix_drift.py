"""Drift: the difference between a session's frozen prompt and tools and its agent's current configuration.

The user is notified once of each configuration change, even across restarts. The notice mentions the command /reload.
Drift is detected when a resident is built, using data that must be read for this anyway, so without drift there are no
additional reads or writes.
"""

import hashlib

from tidegate.agent import PROMPT, part_of
from tidegate.store import SettingRow, settings
from tidegate.tools import Toolset
from tidegate.values import Frozen, Prefix

KEY = f"{settings.OWN}drift"
"""The key of the setting that records the last notice and the turn that sent it."""


class PrefixDrift(Frozen, frozen=True):
    """A difference to report. `text` is shown to the user, and `mark` identifies the configuration."""

    text: str
    mark: str

    def is_reported(self, held: tuple[SettingRow, ...], turn: str) -> bool:
        """True if an earlier turn has reported this drift. A turn that continues after a crash reports it again."""
        notice = last_notice(held)
        return notice is not None and notice[0] == self.mark and notice[1] != turn


def last_notice(held: tuple[SettingRow, ...]) -> list[str] | None:
    """Returns the mark and the turn of the last notice."""
    return next((setting.value for setting in held if setting.key == KEY), None)


def drift_of(frozen: Prefix, prompt: str, tools: Toolset) -> PrefixDrift | None:
    """Compares a frozen prefix with the current configuration. `prompt` and `tools` are the agent's, as a new session
    would get them."""
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
    return PrefixDrift(text=f"{text} /reload applies the change.", mark=mark)


def _prompt_differs(frozen: Prefix, prompt: str) -> bool:
    if frozen.parts:
        return part_of(frozen, PROMPT) != prompt
    # A prompt without parts is the agent's own, or the caller's if the agent has none.
    return bool(prompt) and frozen.prompt != prompt
