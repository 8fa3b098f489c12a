"""Expired settings: hidden from their time on, and removed a few at a time."""

import pytest

from tests.store.rows import count, new_session
from tidegate.store import Store, maintenance, settings

pytestmark = pytest.mark.anyio


async def test_expired_settings_are_removed_a_bounded_number_at_a_time(store: Store) -> None:
    """S06, L20: no write waits for all of them, however many there are."""
    for number in range(5):
        await store.write(new_session, f"s_{number}")
        await store.write(settings.put, f"s_{number}", "model", "other", "command", 1.0, 10.0 + number)
        await store.write(settings.put, f"s_{number}", "reasoning", "high", "command", 1.0)
    assert await store.write(settings.expire, 9.0, 2) == 0
    assert await store.write(settings.expire, 14.0, 2) == 2
    assert await maintenance.tidy(store, 14.0) == 3
    assert await store.read(count, "settings") == 5


async def test_the_operator_is_not_shown_expired_settings(store: Store) -> None:
    """S06: a list that is limited contains only current settings."""
    await store.write(new_session, "s_1")
    for number in range(4):
        await store.write(settings.put, "s_1", f"over-{number}", 1, "command", 5.0, 10.0)
    await store.write(settings.put, "s_1", "model", "other", "command", 1.0, 11.0)
    assert [row.key for row in await store.read(settings.list_all, 10.0, 2)] == ["model"]
