"""The agents' own workspace folders.

Guarantee: an agent whose workspace is not configured finds its folder, which is the running user's alone; nothing in a
folder that was there before is changed, and a configured folder is never made.
"""

from collections.abc import Iterator
from pathlib import Path

from tidegate.config import Config

_FOLDER_MODE = 0o700
_NOTES = """These are notes for trying the demo model: it read this file with the tool read_file.

The file lies in the agent's workspace, the one folder that its file tools can see. Put your own files there.
"""


def make(config: Config) -> Iterator[str]:
    """Make the folders that are missing; yields a warning for each that cannot be made."""
    for name, agent in config.agents.items():
        if agent.workspace is not None:
            continue
        folder = config.workspace(name)
        try:
            is_new = _make_folder(folder)
            if is_new and config.models[agent.model].api == "demo":
                (folder / "notes.txt").write_text(_NOTES)
        except OSError as error:
            yield f"The workspace folder {folder} of agent {name} cannot be made ({error.strerror}): make it yourself."


def _make_folder(folder: Path) -> bool:
    """Whether it was made now. Its parent is made with the same mode, which `parents=True` would not do."""
    folder.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    try:
        folder.mkdir(mode=_FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True
