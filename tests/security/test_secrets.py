"""Secrets in memory, where they come from, and keys."""

import copy
import hmac
import os
import pickle
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Misconfigured
from tidegate.security import Principal, Secret, digest, make_code, make_key, resolve, same

CANARY = "c4nary-Zq7-secret-value"


def test_a_secret_shows_itself_only_when_asked() -> None:
    """X15: printing, formatting, comparing and copying give nothing away."""
    secret = Secret(CANARY)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        "{}".format(*[secret]),
        repr([secret]),
        repr({"k": secret}),
    ]
    shown += [str(Misconfigured(f"{secret}")), repr(copy.deepcopy([secret])), str(secret.digest())]
    assert not any(CANARY in text for text in shown)
    assert secret.reveal() == CANARY
    assert copy.copy(secret).reveal() == CANARY
    assert not hasattr(secret, "__dict__")


def test_a_secret_cannot_be_serialised() -> None:
    """X15: no dump can hold one."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(Secret(CANARY), protocol)
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": Secret(CANARY)})


def test_secrets_that_share_a_prefix_differ() -> None:
    """A2: two tokens with the same beginning have different digests, and neither digest holds the token."""
    first, second = Secret("sk-proj-" + "a" * 60 + "1"), Secret("sk-proj-" + "a" * 60 + "2")
    assert first.digest() != second.digest()
    assert first != second
    assert first == Secret(first.reveal())
    assert hash(first) == hash(Secret(first.reveal()))
    assert len(first.digest()) == 32
    assert first != first.reveal()


@given(st.text(), st.text())
@settings(max_examples=100, deadline=None)
def test_digest_and_comparison_take_any_text(left: str, right: str) -> None:
    """A2, X01: non-ASCII and broken text are compared, not failed on."""
    assert same(left, right) == (left == right) == (digest(left) == digest(right))
    assert same(left, left)


@given(st.binary(), st.binary())
@settings(max_examples=50, deadline=None)
def test_digest_and_comparison_take_any_bytes(left: bytes, right: bytes) -> None:
    """X01: a key from a header is any bytes at all."""
    assert same(left, right) == (left == right)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """H21: by their digests, which have one length, and by a comparison that does not stop at the first difference."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def watched(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    assert not same("tg_abc", "tg_abcdef") and Secret("tg_abc") == Secret("tg_abc")
    assert compared == [(digest("tg_abc"), digest("tg_abcdef")), (digest("tg_abc"), digest("tg_abc"))]


def test_text_and_its_utf8_bytes_are_the_same_token() -> None:
    assert digest("schlüssel") == digest("schlüssel".encode())


def test_keys_and_codes_are_long_distinct_and_told_apart() -> None:
    keys = {make_key() for _ in range(200)}
    assert len(keys) == 200
    assert all(re.fullmatch(r"tg_[A-Za-z0-9]{40}", key) for key in keys)
    assert re.fullmatch(r"tgc_[A-Za-z0-9]{40}", make_code())


def test_a_reference_is_resolved_from_just_what_it_names(tmp_path: Path) -> None:
    """X22: nothing but the named variable or file is looked at."""
    (tmp_path / "key").write_text(f"  {CANARY}\n")
    env = {"A": CANARY, "OPENAI_API_KEY": "other"}
    assert resolve("env:A", env, tmp_path).reveal() == CANARY
    assert resolve("file:key", {}, tmp_path).reveal() == CANARY
    assert resolve(f"file:{tmp_path}/key", {}, Path("/nowhere")).reveal() == CANARY


def test_a_reference_that_leads_nowhere_is_a_clear_sentence_without_the_secret(tmp_path: Path) -> None:
    """X15: an error never repeats the content."""
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "lines").write_text(f"{CANARY}\n{CANARY}\n")
    (tmp_path / "binary").write_bytes(CANARY.encode() + b"\xff")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    os.mkfifo(tmp_path / "pipe")
    env = {"BLANK": "  ", "INJECT": f"{CANARY}\r\nX-Evil: 1"}
    wrong = {
        "env:MISSING": "environment variable MISSING is not set",
        "env:BLANK": "environment variable BLANK is not set",
        "env:INJECT": "several lines or control characters",
        "file:missing": "cannot be read (No such file or directory)",
        "file:.": "not a file",
        "file:pipe": "not a file",
        "file:empty": "it is empty",
        "file:lines": "several lines",
        "file:binary": "not text",
        "file:large": "larger than",
        "file:~nobody-of-that-name/key": "cannot be read",
        CANARY: "must be a reference",
        f"env:{CANARY}": "must be a reference",
    }
    for reference, said in wrong.items():
        with pytest.raises(Misconfigured) as caught:
            resolve(reference, env, tmp_path)
        assert said in caught.value.message
        assert CANARY not in caught.value.message
        assert caught.value.__cause__ is None
        assert "\n" not in caught.value.message


def test_a_principal_says_what_it_may_use() -> None:
    """X23: identity is a value that is passed along."""
    owner = Principal(id="p_1", name="me", role="owner")
    guest = Principal(id="p_2", name="guest", agents=("main",))
    assert owner.is_owner
    assert owner.may_use("anything")
    assert not guest.is_owner
    assert guest.may_use("main")
    assert not guest.may_use("other")
    with pytest.raises(AttributeError):
        guest.role = "owner"  # type: ignore[misc]
