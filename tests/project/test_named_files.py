"""The documentation names files that exist."""

import re

from tests.project.quick import ROOT

NAMED = re.compile(r"`([\w./-]*\w\.(?:py|js|toml|sql))`")
OF_USERS = {"tidegate.toml", "NAME.py", "plugins/NAME.py", "plugins/greetings.py", "plugins/nearby.py"}
FOLDERS = ("src", "tests", "tools", "bench", "docs")


def test_every_file_that_a_page_names_exists() -> None:
    """A reader finds it under the name that it has now."""
    paths = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    files = [f"/{path.relative_to(ROOT)}" for path in paths if path.suffix in {".py", ".js", ".toml", ".sql"}]
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        for name in NAMED.findall(page.read_text(encoding="utf-8"))
        if name not in OF_USERS and not any(file.endswith(f"/{name}") for file in files)
    }
    assert missing == set()
