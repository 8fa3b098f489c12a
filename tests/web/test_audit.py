"""`GET /api/audit`: pages, filters and bounds."""

import pytest

from tests.in_process import InProcessGateway
from tests.web.client import call

pytestmark = pytest.mark.anyio


async def test_every_event_is_on_one_page(gateway: InProcessGateway) -> None:
    """X24: with any page size; `next` is null on the last page."""
    for number in range(7):
        await gateway.add_key(f"anna {number}")
    whole = (await call(gateway, "GET", "/api/audit?limit=1000")).json
    assert whole["next"] is None and len(whole["events"]) >= 14
    paged: list[object] = []
    before = ""
    while True:
        page = (await call(gateway, "GET", f"/api/audit?limit=4{before}")).json
        assert len(page["events"]) <= 4
        paged += page["events"]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert paged == whole["events"]
    assert [event["id"] for event in whole["events"]] == list(range(len(paged), 0, -1))


async def test_a_wrong_query_is_refused_in_one_sentence(gateway: InProcessGateway) -> None:
    """H19: 400 with the name of the field; for an unknown kind, with the known ones."""
    for query, word in (
        ("kind=colour", "'setting', 'sign_in', 'sign_out' or 'tool', not 'colour'"),
        ("since=soon", "since must be a time span"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("before=x", "before must be"),
        ("before=nan:1", "before must be"),
        ("before=1.0:99999999999999999999", "before must be"),
        (f"host={'x' * 254}", "host"),
    ):
        reply = await call(gateway, "GET", f"/api/audit?{query}")
        assert reply.status == 400 and word in reply.error["message"], (query, reply.body)
        assert reply.error["param"] == query.partition("=")[0]
    nobody = await call(gateway, "GET", "/api/audit?principal=nobody")
    assert (nobody.status, nobody.error["code"]) == (404, "principal_not_found")


async def test_only_the_owner_can_read_the_audit_log(gateway: InProcessGateway) -> None:
    """X24, X06: everyone else gets 403."""
    anna = await gateway.add_key("anna")
    assert (await call(gateway, "GET", "/api/audit", key=anna)).status == 403
    assert (await call(gateway, "GET", "/api/audit", key="")).status == 401
