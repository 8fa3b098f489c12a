"""A resident that remembers what was done to it, for the tests of presence."""

import asyncio
from collections.abc import Awaitable, Callable


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Tenant:
    """Counts its releases; a release can be made to wait or to fail."""

    def __init__(self, signature: bytes = b"one", weight: int = 1) -> None:
        self.signature = signature
        self.weight = weight
        self.released = 0
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    async def release(self) -> None:
        self.released += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure


def building(tenant: Tenant) -> Callable[[], Awaitable[Tenant]]:
    async def build() -> Tenant:
        await asyncio.sleep(0)
        return tenant

    return build


async def settled() -> None:
    """Let the tasks that were just started run to where they wait or end."""
    for _ in range(5):
        await asyncio.sleep(0)
