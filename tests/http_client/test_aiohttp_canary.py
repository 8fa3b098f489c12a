"""The parts of aiohttp below its session on which `http_client/connector.py` relies.

If a new version of aiohttp changes one, a test fails with a sentence that says what changed and what depends on it.
Adapt the package and this list together.
"""

import inspect

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

pytestmark = pytest.mark.anyio

PARAMETERS: dict[tuple[type, str], tuple[set[str], str]] = {
    (aiohttp.ClientRequest, "__init__"): (
        {"method", "url", "loop", "proxy", "ssl"},
        "it describes the connection",
    ),
    (aiohttp.TCPConnector, "connect"): ({"req", "traces", "timeout"}, "it makes a connection"),
    (aiohttp.TCPConnector, "close"): ({"abort_ssl"}, "it waits until all connections are closed"),
    (ResponseHandler, "connection_lost"): ({"exc"}, "it learns that its connection was closed"),
    (Connection, "close"): (set(), "it gives up a connection that was closed"),
}
"""The parameters that are passed to each method, and its use."""

PROPERTIES = {
    ResponseHandler: {"should_close": "a connection on which the server spoke first is not used"},
    Connection: {
        "protocol": "it learns through this protocol that a connection was closed",
        "transport": "our protocol takes it over",
    },
}


@pytest.mark.parametrize(("owner", "name"), PARAMETERS)
def test_a_method_still_takes_what_is_passed_to_it(owner: type, name: str) -> None:
    passed, use = PARAMETERS[owner, name]
    method = getattr(owner, name, None)
    assert method is not None, f"aiohttp {aiohttp.__version__} has no {owner.__name__}.{name} any more: {use}"
    taken = inspect.signature(method).parameters
    missing = passed - taken.keys()
    assert not missing, f"{owner.__name__}.{name} of aiohttp {aiohttp.__version__} does not take {missing}: {use}"
    required = {
        each.name for each in taken.values() if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    assert required <= passed | {"self"}, f"{owner.__name__}.{name} of aiohttp {aiohttp.__version__} needs {required}"


@pytest.mark.parametrize("owner", PROPERTIES)
def test_an_attribute_is_still_there(owner: type) -> None:
    for name, use in PROPERTIES[owner].items():
        assert hasattr(owner, name), f"aiohttp {aiohttp.__version__} has no {owner.__name__}.{name} any more: {use}"


async def test_requests_wait_in_the_client_and_not_in_the_connector() -> None:
    """`limit=0` means no limit."""
    async with aiohttp.TCPConnector(
        limit=0, force_close=True, happy_eyeballs_delay=0.25, socket_factory=lambda info: None
    ) as connector:
        assert connector.limit == 0 and connector.limit_per_host == 0
