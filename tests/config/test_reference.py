"""Settings as text: the configuration in effect, the example, and the generated reference."""

from pathlib import Path

import pytest

from tidegate.config import Config, example, read, show
from tidegate.config.settings import NAMED, SINGLE
from tidegate.config.tables.declarations import settings_of
from tools import generate

HOME = Path("/srv/gate")
FULL = """
[server]
host = "0.0.0.0"
insecure = true
origins = ["https://a.example"]
[models."a.b"]
api = "openai-chat"
base_url = "https://api.example.org/v1"
model = "m"
key = "file:keys/one"
headers = { "X-Title" = "t \\\\ \\"q\\"", "Authorization" = "env:TOKEN" }
idle_timeout = 0.25
price_input = 0.00001
price_output = 3
efforts = ["low"]
vision = false
[models.spare]
api = "demo"
[models.third]
api = "anthropic"
base_url = "https://api.example.org/v1"
model = "m"
keys = ["env:ONE", "env:TWO"]
cache_ttl = "5m"
[agents.main]
model = "a.b"
fallback = ["third", "spare"]
reasoning = "off"
prompt = "Tabs\\tand\\nlines, \\u007f, \\u2028, 🌊 and \\"quotes\\""
tools = ["clock"]
workspace = "w"
[budgets.day]
per = "principal"
each = "month"
tokens = 1_000_000
money = 0.0000001
only = ["Anna B.", "\u00fc"]
[budgets.turn]
per = "turn"
money = 3
[limits]
turn_seconds = 61
resident_bytes = 100001
[expiry]
named_idle = "30d"
retention = "never"
"""


@pytest.mark.parametrize("text", ["", FULL, example()])
def test_what_is_shown_reads_back_as_the_same_configuration(text: str) -> None:
    config = read(text, HOME)
    again = read(show(config), HOME)
    assert again == config
    assert show(again) == show(config)


def test_show_names_secrets_only_by_reference() -> None:
    """X15: the file never contained the secret itself."""
    shown = show(read(FULL, HOME))
    assert 'key = "file:keys/one"' in shown
    assert '"Authorization" = "env:TOKEN"' in shown


def test_show_says_if_the_demo_model_is_used() -> None:
    assert "demo model is used" in show(read("", HOME))
    assert "demo model is used" not in show(read(FULL, HOME))


def test_the_example_is_a_valid_configuration_with_a_real_model() -> None:
    config = read(example(), HOME)
    assert not config.demo
    assert config.models["main"].key == "env:OPENAI_API_KEY"


def test_every_setting_has_a_doc_line_and_a_default_that_its_own_rule_accepts() -> None:
    """Otherwise a default could be a value that cannot be written in a file."""
    for kind in (*SINGLE.values(), *NAMED.values()):
        settings = settings_of(kind)
        assert list(settings) == list(kind.__struct_fields__)
        for setting in settings.values():
            assert setting.doc.endswith("."), setting.name
    shown = show(Config(home=HOME))
    assert read(shown, HOME).limits == Config(home=HOME).limits


def test_the_page_of_settings_is_up_to_date_and_complete() -> None:
    assert generate.stale(generate.ROOT, {"docs/configuration.md": generate.configuration}) == []
    page = generate.configuration()
    for kind in (*SINGLE.values(), *NAMED.values()):
        for name in settings_of(kind):
            assert f"| `{name}` |" in page


def test_an_outdated_page_is_reported_and_updated(tmp_path: Path) -> None:
    pages = {"docs/a.md": lambda: "new\n", "docs/b.md": lambda: "same\n"}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("old\n")
    (tmp_path / "docs/b.md").write_text("same\n")
    assert generate.stale(tmp_path, pages) == ["docs/a.md"]
    assert generate.write(tmp_path, pages) == ["docs/a.md"]
    assert generate.stale(tmp_path, pages) == []


def test_the_settings_need_no_heavy_module() -> None:
    """Idle memory: reading the configuration imports neither pydantic nor a TOML writer."""
    import subprocess
    import sys

    code = (
        "import sys, tidegate.config; "
        "print([m for m in ('pydantic', 'tomlkit', 'aiohttp', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
