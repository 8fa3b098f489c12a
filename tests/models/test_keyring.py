"""Several keys for one endpoint over a real socket: which key is used, its cooldown, and the end of retries."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.logs import capture_logs
from tests.models.support import ANSWER_BYTES, Listener, ScriptedModel, Slept, ask, settings
from tests.models.test_cooldown import Clock, failure
from tidegate.errors import ModelFailed, ModelKind
from tidegate.http_client import HttpClient
from tidegate.models import Model, Models, RetryPolicy
from tidegate.models.http.cooldown import COOLDOWN_SECONDS, Cooldowns
from tidegate.models.http.keyring import ROTATED, Key, KeyRing
from tidegate.security import Secret

pytestmark = pytest.mark.anyio

SECRETS = {"env:ONE": "canary-one-73d1", "env:TWO": "canary-two-81c4", "env:THREE": "canary-three-09aa"}
KEYS = tuple(SECRETS)
ANSWER = "The tide comes in, the gate keeps the level."


@asynccontextmanager
async def pooled(
    base_url: str,
    clock: Callable[[], float],
    *,
    sleep: Slept | None = None,
    keys: tuple[str, ...] = KEYS,
    **given: object,
) -> AsyncIterator[Models]:
    """`main` and `twin` of one endpoint, and `far` of another (the same server under another name)."""
    retry_policy = RetryPolicy(sleep=sleep or Slept(), chance=lambda: 0.0, clock=clock)
    configured = {
        "main": settings(base_url, keys=keys, **given),
        "twin": settings(base_url, keys=keys, **given),
        "far": settings(base_url.replace("127.0.0.1", "localhost"), keys=keys, **given),
    }

    def resolve(reference: str) -> Secret:
        return Secret(SECRETS[reference])

    async with (
        HttpClient() as clients,
        Models(configured, clients, resolve, ANSWER_BYTES, retry_policy=retry_policy) as models,
    ):
        yield models


def used(server: ScriptedModel) -> list[str]:
    """The references of the used keys, in order."""
    names = {f"Bearer {secret}": reference for reference, secret in SECRETS.items()}
    return [names[request.authorization] for request in server.recorded]


@pytest.mark.parametrize(
    "script", ["[status 429 code=insufficient_quota times=1]", "[status 429 times=1]", "[status 401 times=1]"]
)
async def test_a_failed_key_has_a_cooldown_and_the_next_is_used_at_once(server: ScriptedModel, script: str) -> None:
    clock, sleep = Clock(), Slept()
    async with pooled(server.base_url, clock, sleep=sleep, retries=0) as models:
        model = models.get("main")
        assert (await ask(model, script)).text == ANSWER
        assert used(server) == ["env:ONE", "env:TWO"]
        assert sleep.pauses == []
        assert (await ask(model, "again")).text == ANSWER
        assert used(server)[-1] == "env:TWO", "the first rests"
        state = models.states()["main"]
        assert (state.keys, state.keys_resting, state.rests_until) == (3, 1, None)
        clock.now += COOLDOWN_SECONDS["quota"]
        await ask(model, "later")
        assert used(server)[-1] == "env:ONE", "it has rested"
        assert models.states()["main"].keys_resting == 0


async def test_the_same_key_is_used_while_it_works(server: ScriptedModel) -> None:
    """S32: a provider's cache belongs to a key's account."""
    async with pooled(server.base_url, Clock(), retries=3) as models:
        for text in ("one", "two [status 503 times=2]", "three [close times=1]", "four [status 400]"):
            try:
                await ask(models.get("main"), text)
            except ModelFailed as failed:
                assert failed.kind == "invalid"
    assert set(used(server)) == {"env:ONE"}, "what is not the key's fault leaves it where it is"


async def test_models_of_one_endpoint_share_key_cooldowns(server: ScriptedModel) -> None:
    async with pooled(server.base_url, Clock(), retries=0) as models:
        await ask(models.get("main"), "[status 402 times=1]")
        await ask(models.get("twin"), "hello")
        await ask(models.get("far"), "hello")
    assert used(server) == ["env:ONE", "env:TWO", "env:TWO", "env:ONE"]


async def test_if_all_keys_are_in_cooldown_the_failure_says_until_when(server: ScriptedModel) -> None:
    clock = Clock()
    async with pooled(server.base_url, clock, retries=2) as models:
        with pytest.raises(ModelFailed) as caught:
            await ask(models.get("main"), "[status 402]")
        assert used(server) == list(KEYS), "each once, and none is waited for"
        assert (caught.value.kind, caught.value.retry_after) == ("quota", COOLDOWN_SECONDS["quota"])
        assert models.states()["main"].keys_resting == 3
        assert models.states()["main"].failures == {"quota": 3}
        clock.now += 100
        assert (await ask(models.get("main"), "hello")).text == ANSWER
        assert used(server)[-1] == "env:ONE", "of those that rest, the one that comes back first"
        assert models.states()["main"].keys_resting == 2, "and it works"


async def test_each_key_is_tried_once_even_if_its_cooldown_ends_meanwhile(server: ScriptedModel) -> None:
    """Each request takes longer than the cooldown."""
    clock = Clock()
    sleep = Slept()

    def ticking() -> float:
        clock.now += 2
        return clock.now

    with anyio.fail_after(20):
        async with pooled(server.base_url, ticking, sleep=sleep, retries=2) as models:
            with pytest.raises(ModelFailed) as caught:
                await ask(models.get("main"), "[status 429 retry-after=1]")
    assert caught.value.kind == "rate"
    assert len(sleep.pauses) == 2
    assert len(server.recorded) == 1 + 2 + 2, "once, a turn of each other key, and the retries"


async def test_a_single_key_has_no_cooldown(server: ScriptedModel) -> None:
    async with pooled(server.base_url, Clock(), keys=("env:ONE",), retries=0) as models:
        with pytest.raises(ModelFailed) as caught:
            await ask(models.get("main"), "[status 402]")
        assert caught.value.retry_after is None
        assert (models.states()["main"].keys, models.states()["main"].keys_resting) == (1, 0)


async def test_without_keys_no_key_is_sent(server: ScriptedModel) -> None:
    async with pooled(server.base_url, Clock(), keys=()) as models:
        await ask(models.get("main"), "hello")
        assert models.states()["main"].keys == 0
    assert server.recorded[0].authorization == ""


async def test_shown_text_is_withdrawn_before_another_key_is_used(server: ScriptedModel) -> None:
    listener = Listener()
    async with pooled(server.base_url, Clock(), retries=0) as models:
        answer = await ask(models.get("main"), "[error after=3 code=insufficient_quota times=1]", listener)
    assert answer.text == listener.text == ANSWER
    assert len(listener.resets) == 1
    assert used(server) == ["env:ONE", "env:TWO"]


async def test_concurrent_requests_rotate_together(server: ScriptedModel) -> None:
    async with pooled(server.base_url, Clock(), retries=0) as models:
        model: Model = models.get("main")
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, model, f"{number} [status 402 times=1]")
        assert models.states()["main"].failures["quota"] == 20
        await ask(model, "hello")


async def test_a_key_is_named_by_its_reference_and_never_by_its_value(server: ScriptedModel) -> None:
    """X15: in the log, in the failure, and in anything that a traceback shows."""
    with capture_logs() as lines:
        async with pooled(server.base_url, Clock(), retries=0) as models:
            with pytest.raises(ModelFailed) as caught:
                await ask(models.get("main"), "[status 401 echo]")
            shown = [repr(models.get("main")), repr(models.states()), repr(Key("env:ONE", SECRETS["env:ONE"]))]
    rested = [line for line in lines if line["event"] == "a key is in cooldown"]
    assert [line["key"] for line in rested] == list(KEYS)
    assert [line["others_ready"] for line in rested] == [True, True, False]
    for secret in SECRETS.values():
        for seen in (str(lines), caught.value.message, repr(caught.value), *shown):
            assert secret not in seen


async def test_the_signature_depends_on_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: even if they share a prefix; and no key can be read from it."""

    async def signature(keys: tuple[str, ...]) -> bytes:
        async with pooled("http://127.0.0.1:1/v1", Clock(), keys=keys) as models:
            return models.get("main").signature

    both = await signature(KEYS[:2])
    assert both == await signature(KEYS[:2])
    assert len({both, await signature(KEYS[:1]), await signature(KEYS), await signature((KEYS[0], KEYS[2]))}) == 4
    monkeypatch.setitem(SECRETS, "env:TWO", SECRETS["env:TWO"] + "x")
    assert await signature(KEYS[:2]) != both
    assert SECRETS["env:ONE"].encode() not in both


kinds = st.sampled_from(sorted(ROTATED | {"overloaded", "network", "content"}))


@given(st.lists(st.tuples(kinds, st.none() | st.floats(0, 200), st.floats(0, 400)), max_size=30), st.integers(1, 4))
def test_a_key_in_cooldown_is_never_used_while_another_is_available(
    steps: list[tuple[ModelKind, float | None, float]], count: int
) -> None:
    clock = Clock()
    ring = KeyRing([Key(f"env:K{n}", str(n)) for n in range(count)], Cooldowns(clock), "http://x")
    until = dict.fromkeys(ring.keys, 0.0)
    for kind, after, pause in steps:
        key = ring.key()
        awake = [one for one in ring.keys if until[one] <= clock.now]
        assert key == (awake[0] if awake else min(ring.keys, key=until.__getitem__))
        told = failure(kind, after)
        others = ring.failed(key, told)
        if kind in ROTATED and count > 1:
            until[key] = clock.now + (COOLDOWN_SECONDS[kind] if after is None else max(after, 1.0))
        assert others == (kind in ROTATED and any(until[one] <= clock.now for one in ring.keys) and count > 1)
        assert ring.in_cooldown == sum(until[one] > clock.now for one in ring.keys)
        clock.now += pause
