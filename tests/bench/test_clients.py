"""`make clients`: its list of clients, its documentation page, and its output. Nothing is installed here."""

import re
from pathlib import Path

import pytest

from tests.clients.environments import ROOT, Client, read_clients
from tests.clients.plan import PLAN
from tests.clients.report import Result, table

PAGE = (ROOT / "docs" / "clients.md").read_text()
PINNED = re.compile(r"[\w@/.-]+(\[\w+\])?(==|@)\d[\w.]*$")


@pytest.mark.parametrize("client", read_clients().values(), ids=lambda client: client.name)
def test_every_client_has_its_checks_its_section_and_its_versions(client: Client) -> None:
    """H10: the page explains the setup of each client, and the suite runs that example."""
    assert client.script.exists()
    assert client.packages and all(PINNED.match(package) for package in client.packages)
    heading = f"## {client.title}\n"
    assert heading in PAGE
    section = PAGE.partition(heading)[2].partition("\n## ")[0]
    assert "http://127.0.0.1:8420/v1" in section and ".tidegate/api-key" in section
    assert client.title in client.script.read_text()


def test_every_section_of_the_page_is_run() -> None:
    """H10: every documented client is tested."""
    described = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)[1:]
    assert described == [client.title for client in read_clients().values()]


def test_checks_of_the_plan_are_known_by_their_names() -> None:
    """H10: a misspelt check would be missing from the table."""
    folder = Path(read_clients()["llm"].script).parent
    for name in PLAN:
        python, javascript = name.replace("-", "_"), re.sub(r"-(\w)", lambda found: found[1].upper(), name)
        assert any(
            re.search(rf"^(async )?def {python}\(|^  {javascript}: ", path.read_text(), re.MULTILINE)
            for path in (*folder.glob("*.py"), *folder.glob("*.mjs"))
        ), name


def test_the_table_shows_failures_with_their_reasons() -> None:
    """H10: the table has one word per client and check, and a line per failure."""
    results = [
        Result("a", "plain", "main", True, ""),
        Result("a", "plain", "anthropic", False, "nothing came"),
        Result("b", "plain", "main", True, ""),
        Result("b", "image", "main", None, "it has none"),
        Result("b", "handoff", "main", True, ""),
    ]
    text = table(results)
    assert re.search(r"^plain +FAILED +ok$", text, re.MULTILINE)
    assert re.search(r"^image +- +-$", text, re.MULTILINE)
    assert re.search(r"^its own +- +ok$", text, re.MULTILINE)
    assert "FAILED a plain (anthropic): nothing came" in text
    assert text.endswith("4 checks, 1 failed.")
