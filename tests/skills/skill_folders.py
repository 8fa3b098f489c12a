"""Skills and projects in folders, for tests."""

import json
from pathlib import Path
from typing import Any

from tidegate.config import Config, read


def skill(
    folder: Path, name: str, description: str = "", *, body: str = "Do it.", head: str = "", **files: str
) -> Path:
    """A skill in a folder of skills; `files` are further ones, `/` written as two underscores and `.` as one."""
    its = folder / name
    its.mkdir(parents=True, exist_ok=True)
    text = f"---\nname: {name}\ndescription: {json.dumps(description or f'What {name} is for.')}\n{head}---\n\n{body}\n"
    (its / "SKILL.md").write_text(text)
    for path, content in files.items():
        file = its / path.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return its


def configured(home: Path, *, project: Path | None = None, more: str = "", toml: str = "", **agent: Any) -> Config:
    """One agent `main` with the toolset."""
    home.mkdir(parents=True, exist_ok=True)
    fields = {"tools": ["skills"], **({"workspace": str(project)} if project is not None else {}), **agent}
    given = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    return read(f'{toml}[models.main]\napi = "demo"\n[agents.main]\n{given}{more}', home)


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
