"""The tables `[mcp.NAME]`: each mistake is one sentence, and no secret is quoted."""

from pathlib import Path

import pytest

from tidegate.config import read, show
from tidegate.errors import Misconfigured

SECRET = "sk-abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[mcp.a]\n", "requires either the key 'command' or the key 'url'"),
        ('[mcp.a]\ncommand = "x"\nurl = "https://x.example"\n', "requires either"),
        ('[mcp.a__b]\ncommand = "x"\n', "without '__'"),
        (f'[mcp.{"a" * 25}]\ncommand = "x"\n', "up to 24 letters"),
        ('[mcp."a.b"]\ncommand = "x"\n', "up to 24 letters"),
        ('[mcp.a]\nurl = "http://x.example"\ntoken = "env:T"\n', "where others can read it"),
        ('[mcp.a]\nurl = "https://x.example"\nargs = ["b"]\n', "'args', which requires 'command'"),
        ('[mcp.a]\ncommand = "x"\ntoken = "env:T"\n', "which requires 'url'"),
        ('[mcp.a]\ncommand = "x"\nscope = "session"\nstart = "eager"\n', 'requires scope = "process"'),
        ('[mcp.a]\ncommand = "x"\nagents = ["nobody"]\n', "there is no [agents.nobody]"),
        (f'[mcp.a]\ncommand = "x"\nenv = {{ KEY = "{SECRET}" }}\n', "must be a reference"),
        (f'[mcp.a]\ncommand = "x"\nargs = ["--key={SECRET}"]\n', "must not contain a secret"),
        ('[mcp.a]\ncommand = "x"\nenv = { "A-B" = "c" }\n', "not a valid name of an environment variable"),
        ('[mcp.a]\ncommand = "x"\ncomand = "y"\n', "did you mean 'command'"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(text: str, fault: str) -> None:
    """X15"""
    with pytest.raises(Misconfigured) as caught:
        read(text, Path("/home/x"))
    message = caught.value.message
    assert fault in message
    assert SECRET not in message
    assert "\n" not in message


def test_what_is_shown_is_read_again() -> None:
    """X15"""
    text = """
[mcp.files]
command = "npx"
args = ["-y", "server", ""]
env = { KEY = "env:KEY", MODE = "fast" }
cwd = "~/notes"
without = ["delete_*"]
approve = "always"
[mcp.docs]
url = "https://mcp.example.org/mcp"
token = "file:token"
headers = { x-team = "a" }
"""
    config = read(text, Path("/home/x"))
    assert read(show(config), Path("/home/x")) == config
