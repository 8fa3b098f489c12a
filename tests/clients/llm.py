"""llm, Simon Willison's command line."""

import os
import uuid
from pathlib import Path

import yaml

from tests.clients.check import (
    AGENTS,
    ANSWER,
    BASE_URL,
    KEY,
    SMALL,
    TOO_LONG,
    assert_merged,
    check,
    command,
    forget,
    has_picture,
    has_schema,
    picture,
    run,
    run_examples,
    same,
    sent,
)

ADD = "def add(a: int, b: int) -> int:\n    'Adds two numbers.'\n    return a + b\n"
SESSION = uuid.uuid4().hex


def set_up() -> None:
    """Every agent as a model, and one with a named session for each."""
    folder = Path.cwd() / "llm"
    folder.mkdir(exist_ok=True)
    os.environ["LLM_USER_PATH"] = str(folder)
    shared = {"api_base": BASE_URL, "api_key_name": "tidegate", "supports_tools": True, "supports_schema": True}
    listed = [
        {"model_id": f"{prefix}{agent}", "model_name": agent, **shared, "vision": True, **headers}
        for agent in (*AGENTS, SMALL, "no-such-agent")
        for prefix, headers in (("", {}), ("named-", {"headers": {"X-Session-Id": f"{SESSION}-{agent}"}}))
    ]
    (folder / "extra-openai-models.yaml").write_text(yaml.safe_dump(listed))
    llm("keys", "set", "tidegate", "--value", KEY)


def llm(*words: str, **options: object) -> str:
    return command("llm", *words, **options).strip()  # type: ignore[arg-type]


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    del os.environ["LLM_USER_PATH"]
    try:
        run_examples("llm")
    finally:
        set_up()


@check(agents=AGENTS[:1])
def models(agent: str) -> None:
    listed = llm("openai", "endpoint", BASE_URL, "--models", "--key", KEY)
    same(sorted(listed.split()), sorted([*AGENTS, SMALL]))


@check()
def plain(agent: str) -> None:
    same(llm("-m", agent, "--no-stream", "hello"), ANSWER)


@check()
def stream(agent: str) -> None:
    same(llm("-m", agent, "hello"), ANSWER)


@check()
def usage(agent: str) -> None:
    assert "Token usage" in llm("-m", agent, "-u", "hello")


@check()
def turns(agent: str) -> None:
    llm("-m", agent, "hello")
    same(llm("-c", "[say again]"), "again")
    out = llm("chat", "-m", agent, stdin="hello\n[say second]\nexit\n")
    assert ANSWER in out and "second" in out, out


@check()
def session(agent: str) -> None:
    llm("-m", f"named-{agent}", "My name is Ada.")
    llm("-m", f"named-{agent}", "Who am I?")
    assert "My name is Ada." in str(sent()[-1])


@check()
def tools(agent: str) -> None:
    out = llm("-m", agent, "--functions", ADD, "--td", "--no-stream", '[tool add {"a": 2, "b": 3}]')
    assert "5" in out and ANSWER in out, out


@check()
def tools_stream(agent: str) -> None:
    out = llm("-m", agent, "--functions", ADD, "--td", '[tool add {"a": 2, "b": 3}]')
    assert "5" in out and ANSWER in out, out


@check()
def tools_session(agent: str) -> None:
    out = llm("-m", f"named-{agent}", "--functions", ADD, "--td", '[tool add {"a": 2, "b": 3}]')
    assert "5" in out and ANSWER in out, out


@check()
def parallel(agent: str) -> None:
    out = llm("-m", agent, "--functions", ADD, "--td", '[together add {"a": 2, "b": 3} add {"a": 4, "b": 5}]')
    assert "5" in out and "9" in out and ANSWER in out, out


@check()
def own_tools(agent: str) -> None:
    same(llm("-m", agent, "--functions", ADD, "[tool clock {}]"), ANSWER)
    assert_merged()


@check()
def schema(agent: str) -> None:
    forget()
    same(
        llm("-m", agent, "--schema", "name, people int", '[say {"name": "Ely", "people": 2}]'),
        '{"name": "Ely", "people": 2}',
    )
    assert has_schema(sent()[-1]), "the model was not sent the schema"


@check()
def image(agent: str) -> None:
    forget()
    Path("red.png").write_bytes(picture())
    same(llm("-m", agent, "-a", "red.png", "What is it?"), ANSWER)
    assert has_picture(sent()[-1])


@check()
def image_alone(agent: str) -> None:
    Path("red.png").write_bytes(picture())
    same(llm("-m", agent, "-a", "red.png", ""), ANSWER)


@check()
def empty(agent: str) -> None:
    llm("-m", agent, "[say]")
    same(llm("-c", "hello"), ANSWER)


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    out = llm("-m", "no-such-agent", "hello", succeeds=False)
    assert "no-such-agent" in out and "responses" in out, out


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    out = llm("-m", agent, "--key", "wrong", "hello", succeeds=False)
    assert "key" in out, out


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    out = llm("-m", agent, stdin=TOO_LONG, succeeds=False)
    assert "400" in out or "context" in out, out


@check()
def retry(agent: str) -> None:
    same(llm("-m", agent, "[status 503 times=1]"), ANSWER)


if __name__ == "__main__":
    set_up()
    run()
