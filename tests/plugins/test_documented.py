"""The page about plug-ins is correct: its example runs, and its numbers are those of the code."""

import re
from pathlib import Path

from tests.gateway.process import gateway
from tidegate import plugins
from tidegate.plugins import loading
from tidegate.plugins.host import Deadlines
from tidegate.plugins.kinds import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_the_example_of_the_page_works_in_a_real_gateway(tmp_path: Path) -> None:
    """H10: as a reader would do it."""
    home = tmp_path / "home"
    (home / "plugins").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    (home / "plugins" / "greetings.py").write_text(block("python"))
    (home / "tidegate.toml").write_text(block("toml"))
    with gateway(home) as running:
        assert "Ahoy, Anna!" in running.say('call greet {"name": "Anna"}')
        assert "the name is empty" in running.say('call greet {"name": ""}')


def test_its_table_has_every_kind_and_every_limit() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| `(\[.*?)` \|", PAGE, re.MULTILINE)
    assert rows == [(kind.name, kind.setting) for kind in KINDS.values()]
    deadlines = Deadlines()
    limits = dict(re.findall(r"^\| (import|the function|`start`|`stop`) \| (\d+) s \|", PAGE, re.MULTILINE))
    assert limits == {
        "import": f"{loading.IMPORT_SECONDS:g}",
        "the function": f"{deadlines.make:g}",
        "`start`": f"{deadlines.start:g}",
        "`stop`": f"{deadlines.stop:g}",
    }
    assert f"api={plugins.API_VERSION})" in PAGE
