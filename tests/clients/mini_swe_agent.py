"""mini-swe-agent's command line, in text mode, on a task that the scripted model solves."""

import os
from pathlib import Path

from tests.clients.check import AGENTS, BASE_URL, KEY, SMALL, check, command, forget, run, run_examples, sent

SOLVE = (
    'Make greeting.txt say hello. [tool bash {"command": "echo hello > greeting.txt"}] '
    '[tool bash {"command": "cat greeting.txt"}] [tool bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}]'
)
TOGETHER = (
    '[together bash {"command": "echo one > one.txt"} bash {"command": "echo two > two.txt"}] '
    '[tool bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}]'
)


def mini(agent: str, task: str, **options: object) -> str:
    return command(
        "mini", "-m", f"openai/{agent}", "-y", "--exit-immediately", "-t", task, "-o", "trajectory.json", **options,
    )  # type: ignore[arg-type]  # fmt: skip


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    directed = ('"Write hello into greeting.txt"', f"'{SOLVE}'")
    run_examples("mini-swe-agent", directed, prints="COMPLETE_TASK")
    assert Path("greeting.txt").read_text() == "hello\n"


@check()
def tools(agent: str) -> None:
    forget()
    mini(agent, SOLVE)
    assert Path("greeting.txt").read_text() == "hello\n"
    assert len(sent()) == 3, f"{len(sent())} requests to the model"


@check(agents=AGENTS[:1])
def parallel(agent: str) -> None:
    mini(agent, TOGETHER)
    assert Path("one.txt").read_text() + Path("two.txt").read_text() == "one\ntwo\n"


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    out = mini("no-such-agent", "hello", succeeds=False)
    assert "responses" in out, out


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    out = mini(agent, "hello", succeeds=False, OPENAI_API_KEY="wrong")
    assert "AuthenticationError" in out, out


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    """Its own prompt alone is longer than this window."""
    out = mini(agent, "word " * 20_000, succeeds=False)
    assert "ContextWindowExceededError" in out, out


@check(agents=AGENTS[:1])
def retry(agent: str) -> None:
    mini(agent, f"{SOLVE} [status 503 times=1]")


if __name__ == "__main__":
    os.environ.update(
        OPENAI_API_BASE=BASE_URL,
        OPENAI_API_KEY=KEY,
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        MSWEA_GLOBAL_CONFIG_DIR=str(Path.cwd()),
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    run()
