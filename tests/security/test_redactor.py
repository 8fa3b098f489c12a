"""No secret leaves the redactor, however it is wrapped."""

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.project.quick import example_count
from tidegate.errors import Misconfigured
from tidegate.security import HIDDEN, Redactor, Secret
from tidegate.values import Frozen

CANARY = 'c4nary/ü"Zq7\\secret+value'


class Holder(Frozen, frozen=True):
    inner: Any


class Odd:
    def __repr__(self) -> str:
        return f"Odd({CANARY})"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError(CANARY)


def raised(make: Callable[[], BaseException]) -> BaseException:
    try:
        try:
            raise ValueError(f"inner {CANARY}")
        except ValueError as inner:
            raise make() from inner
    except BaseException as error:
        error.add_note(f"note {CANARY}")
        return error


def forms(secret: str) -> list[str]:
    return [secret, json.dumps(secret)[1:-1], quote(secret, safe=""), repr(secret)[1:-1]]


def assert_clean(text: str) -> None:
    for form in forms(CANARY):
        assert form not in text


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        f"before {CANARY} after {CANARY}",
        CANARY.encode(),
        bytearray(CANARY.encode()),
        b"\xff\xfe" + CANARY.encode() + b"\xff",
        {"a": {"b": [1, (CANARY, {CANARY})]}},
        {CANARY: 1},
        [frozenset({CANARY})],
        Holder(inner=[Holder(inner=CANARY)]),
        Odd(),
        Broken(),
        json.dumps({"key": CANARY}),
        json.dumps({"key": CANARY}, ensure_ascii=False),
        f"https://host/?key={quote(CANARY, safe='')}&x=1",
        f"https://user:{quote(CANARY, safe='')}@host/",
        "dXNlcjo " + base64.b64encode(CANARY.encode()).decode(),
        raised(lambda: RuntimeError(CANARY)),
        raised(lambda: ExceptionGroup(f"group {CANARY}", [KeyError(CANARY), OSError(5, CANARY)])),
        {"deep": {"er": {"and": [{"deeper": [[CANARY]]}]}}},
    ],
)
def test_a_known_secret_is_gone_from_every_kind_of_value(value: Any) -> None:
    """X15: nested values, keys, bytes, foreign objects, exceptions with their causes and groups."""
    redactor = Redactor([Secret(CANARY)])
    plain = redactor.value(value)
    text = msgspec.json.encode(plain, enc_hook=repr).decode() + repr(plain) + str(plain)
    assert_clean(text)
    assert base64.b64encode(CANARY.encode()).decode()[:20] not in text
    assert_clean(redactor.text(str(redactor.value(value))))
    assert_clean(repr(redactor))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [hidden]"),
        ("authorization: bearer tok", "authorization: bearer [hidden]"),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', '{"Authorization": "Basic [hidden]"}'),
        ('["Authorization", "Bearer tok"]', '["Authorization", "Bearer [hidden]"]'),
        ("(b'authorization', b'Bearer tok')", "(b'authorization', b'Bearer [hidden]')"),
        ("refused: Bearer a1b2 (expired)", "refused: Bearer [hidden] (expired)"),
        ("bearer xKqTzLwPmR, bearer qwertyuiopasdfgh", "bearer [hidden], bearer [hidden]"),
        ("BEARER ~cG9saWN5/kA+==", "BEARER [hidden]"),
        ("a bearer token's lifetime; Bearer authentication.", "a bearer token's lifetime; Bearer authentication."),
        ("use a BEARER TOKEN (bearer token) as 'Bearer <key>'", "use a BEARER TOKEN (bearer token) as 'Bearer <key>'"),
        ("key sk-proj-0123456789 used", "key [hidden] used"),
        ("tg_" + "a1B2" * 10, HIDDEN),
        ("link #code=tgc_" + "a1B2" * 10, "link #code=[hidden]"),
        ("ghp_0123456789abcdef", HIDDEN),
        ("postgres://me:hunter2@host/db", "postgres://me:[hidden]@host/db"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl.", "jwt [hidden]."),
        ("a basic question about risk-taking desk-work", "a basic question about risk-taking desk-work"),
        ("session s_abc, turn t_def, 12 tokens, key not set", "session s_abc, turn t_def, 12 tokens, key not set"),
    ],
)
def test_what_looks_like_a_credential_is_hidden_without_being_known(text: str, clean: str) -> None:
    """X15, X16: also those that nobody configured, such as a caller's own."""
    assert Redactor().text(text).rstrip(".") == clean.rstrip(".")


def test_a_sensitive_name_hides_its_value_whatever_it_looks_like() -> None:
    """X15: a header or field with such a name is never shown."""
    event = {
        "headers": {"Cookie": "plain", "X_API_KEY": "plain", "accept": "text"},
        "password": ["plain"],
        "token": None,
    }
    assert Redactor().value(event) == {
        "headers": {"Cookie": HIDDEN, "X_API_KEY": HIDDEN, "accept": "text"},
        "password": HIDDEN,
        "token": None,
    }


def test_of_two_secrets_that_share_a_beginning_neither_leaves_a_rest() -> None:
    """A2, X15: the longer one is replaced whole."""
    short, long = "canary-token", "canary-token-and-its-tail"
    for secrets in ([short, long], [long, short]):
        redactor = Redactor(Secret(text) for text in secrets)
        assert redactor.text(f"{long} {short}") == f"{HIDDEN} {HIDDEN}"


def test_a_secret_can_be_learned_later_and_only_so_many() -> None:
    redactor = Redactor()
    assert CANARY in redactor.text(CANARY)
    redactor.learn(Secret(CANARY), Secret(CANARY))
    assert redactor.text(CANARY) == HIDDEN
    with pytest.raises(Misconfigured, match="more than"):
        redactor.learn(*(Secret(f"secret-{number}") for number in range(2000)))


def test_words_too_short_to_be_secrets_are_left_alone() -> None:
    assert Redactor([Secret("x"), Secret("abc")]).text("x abc") == "x abc"


def test_bytes_stay_bytes_and_keep_what_is_not_text() -> None:
    data = b"\xff\x00" + CANARY.encode() + b"\xfe"
    assert Redactor([Secret(CANARY)]).bytes(data) == b"\xff\x00[hidden]\xfe"


def test_large_and_endless_values_come_out_bounded() -> None:
    loop: list[Any] = []
    loop.append(loop)
    redactor = Redactor([Secret(CANARY)])
    assert len(repr(redactor.value(loop))) < 100
    assert len(redactor.value("x" * 10**6)) < 20_000
    assert redactor.value("x" * 10**6).endswith("more characters")
    assert redactor.value(list(range(1000)))[-1] == "… 800 more"
    assert redactor.value({str(n): n for n in range(1000)})["…"] == "800 more"
    # A secret on the edge of the cut is gone before the cut is made.
    for place in range(16 * 1024 - len(CANARY) - 1, 16 * 1024 + 1, 3):
        assert CANARY[:8] not in redactor.value("x" * place + CANARY + "y" * 100)


@given(st.text(min_size=4, max_size=40), st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=example_count(150), deadline=None)
def test_any_secret_is_gone_from_any_text(secret: str, before: str, after: str) -> None:
    """X15: for all characters."""
    if secret in HIDDEN:
        return
    redactor = Redactor([Secret(secret)])
    for text in (before + secret + after, json.dumps(secret), repr(secret)):
        clean = redactor.text(text)
        # What is left may meet at the mark; the secret itself is no more there than in the mark's surroundings.
        assert clean.count(secret) <= (before + HIDDEN + after).count(secret)
