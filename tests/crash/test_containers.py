"""All containers of the program, found by inspection: after many sessions have come and gone, none has grown."""

import gc
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.crash.visitors import Visitors
from tests.in_process import WAIT, InProcessGateway, in_process_gateway

pytestmark = pytest.mark.anyio

PROGRAM = "tidegate."
CONTAINERS = (dict, set, frozenset, list, tuple, deque, bytearray, Mapping)
DEEPEST = 4
"""Nested containers are followed to this depth; below it there are only rows and messages."""
SESSIONS = 200


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its dictionary and in its slots."""
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(thing, name):
                yield name, getattr(thing, name)


def size(held: Any, depth: int = 0) -> int:
    """The number of items in a container, including nested containers."""
    if not isinstance(held, CONTAINERS) or depth > DEEPEST:
        return 0
    inside = (*held.keys(), *held.values()) if isinstance(held, Mapping) else held
    return len(held) + sum(size(one, depth + 1) for one in inside if isinstance(one, CONTAINERS))


def count() -> Counter[str]:
    """Objects of the program by class, and the sizes of their containers by class and attribute."""
    gc.collect()
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if str(kind.__module__).startswith(PROGRAM):
            name = f"{kind.__module__.removeprefix(PROGRAM)}.{kind.__qualname__}"
            found[name] += 1
            for attribute, held in attributes(thing):
                if isinstance(held, CONTAINERS):
                    found[f"{name}.{attribute}"] += size(held)
    return +found


async def settled(wanted: Counter[str] | None = None) -> Counter[str]:
    """The count once it equals the wanted one or has been stable for a few checks, or at the deadline."""
    now, same = count(), 0
    with anyio.move_on_after(WAIT):
        while now != wanted if wanted is not None else same < 5:
            await anyio.sleep(0.05)
            again = count()
            now, same = again, same + 1 if again == now else 0
    return now


async def come_and_go(h: InProcessGateway, number: int) -> None:
    """Sessions through every entry point, ended in every way, and the maintenance jobs that clean up after them."""
    headers = {"Authorization": f"Bearer {h.key}"}
    await Visitors(h.url, headers, f"visit-{number}").come(SESSIONS)
    async with aiohttp.ClientSession(h.url, headers=headers, timeout=aiohttp.ClientTimeout(total=WAIT)) as client:
        for place in itertools.count():
            async with client.get("/api/sessions") as answer:
                listed = (await answer.json())["sessions"]
            if not listed:
                break
            for session in listed:
                path = f"/api/sessions/{session['id']}"
                request = client.delete(path) if place % 2 else client.post(f"{path}/end")
                async with request as answer:
                    assert answer.status in (200, 204)
    for chore in h.service.maintenance_tasks():
        await chore.run()


@pytest.mark.slow
async def test_no_container_grows_with_finished_sessions(tmp_path: Path) -> None:
    """F5, L02, L04, L07, L31, B5, B7: in any object of any package, known or not."""
    async with (
        ScriptedModel() as model,
        in_process_gateway(tmp_path / "home", "[limits]\nresidents = 16\nconnection_idle = 0.1", model=model) as h,
    ):
        await come_and_go(h, 1)
        before = await settled()
        assert before["lifetimes.residency.Presence"] == 1 and before["sessions.service.Sessions"] == 1
        await come_and_go(h, 2)
        after = await settled(before)
        assert h.service.status().sessions.unloads["count"] > 0
        assert model.stats()["refusals"] == []
    grown = {name: (before[name], after[name]) for name in before | after if before[name] != after[name]}
    assert grown == {}, "before and after"


def test_a_container_that_grows_is_found_wherever_it_is() -> None:
    """F5: the inspection itself, with a fault in an unknown object: in a slot, and in a nested container."""

    class Hidden:
        __module__ = f"{PROGRAM}made.up"
        __slots__ = ("within",)

        def __init__(self) -> None:
            self.within: dict[str, list[set[int]]] = {"one": [{1}]}

    kept = Hidden()
    before = count()
    kept.within["one"][0].add(2)
    assert count() - before == Counter(
        {"made.up.test_a_container_that_grows_is_found_wherever_it_is.<locals>.Hidden.within": 1}
    )
