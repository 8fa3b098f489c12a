"""aider, editing a file of a git repository."""

import json
import os
import subprocess
from pathlib import Path

from tests.clients.check import AGENTS, ANSWER, BASE_URL, KEY, SMALL, TOO_LONG, check, command, run, run_examples

WHOLE = 'hello.py\n```\nprint("level")\n```\n'
DIFF = 'hello.py\n```python\n<<<<<<< SEARCH\nprint("tide")\n=======\nprint("gate")\n>>>>>>> REPLACE\n```\n'
OPTIONS = (
    *("--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable", "--no-pretty"),
    *("--no-show-model-warnings", "--no-gitignore", "--no-detect-urls", "--no-suggest-shell-commands"),
)


def aider(agent: str, message: str, *words: str, **options: object) -> str:
    return command("aider", "--model", f"openai/{agent}", *OPTIONS, *words, "--message", message, **options)  # type: ignore[arg-type]


def repository() -> None:
    """A fresh one, as the working folder."""
    folder = Path.cwd().parent / f"repository-{os.urandom(4).hex()}"
    folder.mkdir()
    os.chdir(folder)
    Path("hello.py").write_text('print("tide")\n')
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def saying(text: str) -> str:
    return f"[text {json.dumps({'text': text})}]"


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    repository()
    run_examples("aider")


@check(agents=AGENTS[:1])
def plain(agent: str) -> None:
    repository()
    assert ANSWER in aider(agent, "hello", "--no-stream", "--chat-mode", "ask")


@check()
def stream(agent: str) -> None:
    repository()
    assert ANSWER in aider(agent, "hello", "--chat-mode", "ask")


@check(agents=AGENTS[:1])
def usage(agent: str) -> None:
    repository()
    assert "Tokens:" in aider(agent, "hello", "--no-stream", "--chat-mode", "ask")


@check()
def whole_file(agent: str) -> None:
    repository()
    aider(agent, saying(WHOLE), "--edit-format", "whole", "hello.py")
    assert Path("hello.py").read_text() == 'print("level")\n'
    log = subprocess.run(["git", "log", "--format=%an %s"], capture_output=True, text=True, check=True).stdout
    assert len(log.splitlines()) == 2, log


@check(agents=AGENTS[:1])
def changed_lines(agent: str) -> None:
    repository()
    aider(agent, saying(DIFF), "--edit-format", "diff", "hello.py")
    assert Path("hello.py").read_text() == 'print("gate")\n'


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    repository()
    out = aider("no-such-agent", "hello", "--chat-mode", "ask")
    assert "NotFoundError" in out and "responses" in out, out


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    repository()
    out = aider(agent, "hello", "--chat-mode", "ask", OPENAI_API_KEY="wrong")
    assert "AuthenticationError" in out, out


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    repository()
    out = aider(agent, TOO_LONG, "--chat-mode", "ask")
    assert "exhausted context window" in out and ANSWER not in out, out[-600:]


@check(agents=AGENTS[:1])
def retry(agent: str) -> None:
    repository()
    assert ANSWER in aider(agent, "[status 503 times=1]", "--chat-mode", "ask")


if __name__ == "__main__":
    os.environ.update(
        OPENAI_API_BASE=BASE_URL,
        OPENAI_API_KEY=KEY,
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        GIT_AUTHOR_NAME="a",
        GIT_AUTHOR_EMAIL="a@b",
        GIT_COMMITTER_NAME="a",
        GIT_COMMITTER_EMAIL="a@b",
    )
    run()
