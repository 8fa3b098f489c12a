"""Transcripts over HTTP: paged, bounded in bytes and rows, with complete messages."""

from typing import Any

import pytest

from tests.in_process import InProcessGateway
from tests.web.client import call, chat
from tidegate.store import messages
from tidegate.values import Media, Message

pytestmark = pytest.mark.anyio

PAGE_BYTES = messages.PAGE_BYTES
LONG = PAGE_BYTES // 3
ROWS = 8


async def long_talk(h: InProcessGateway, *sizes: int) -> str:
    """A conversation with rows of these sizes after the two of its first turn. Returns the path of its messages."""
    await chat(h, "one", session="n")
    [view] = (await call(h, "GET", "/api/sessions")).json["sessions"]

    def add(db: Any) -> None:
        for number, size in enumerate(sizes):
            message = Message(role="user", text=f"{number}:" + "x" * size)
            messages.append(db, session=view["id"], turn=None, step=None, message=message, now=1.0)

    await h.store.write(add)
    return f"/api/sessions/{view['id']}/messages"


@pytest.mark.parametrize(("first", "parameter"), [("after=0", "after"), ("limit=200", "before")])
async def test_a_page_is_bounded_in_bytes_and_says_where_to_continue(
    gateway: InProcessGateway, first: str, parameter: str
) -> None:
    """L24: in either direction `next` leads through all rows, each complete, and null marks the end."""
    path = await long_talk(gateway, *(LONG for _ in range(ROWS)))
    seen: list[tuple[int, int]] = []
    query = first
    for _ in range(ROWS + 2):
        reply = await call(gateway, "GET", f"{path}?{query}")
        assert len(reply.body) < PAGE_BYTES * 1.1
        rows = [(row["seq"], len(row["message"]["text"])) for row in reply.json["messages"]]
        seen = seen + rows if parameter == "after" else rows + seen
        if reply.json["next"] is None:
            break
        query = f"{parameter}={reply.json['next']}"
    assert [seq for seq, _ in seen] == list(range(1, ROWS + 3))
    assert {size for _, size in seen[2:]} == {LONG + 2}


async def test_a_message_larger_than_a_page_is_returned_alone_and_complete(gateway: InProcessGateway) -> None:
    """L24: nothing is cut silently."""
    path = await long_talk(gateway, 2 * PAGE_BYTES, 10)
    one = (await call(gateway, "GET", f"{path}?after=2")).json
    assert [(row["seq"], len(row["message"]["text"])) for row in one["messages"]] == [(3, 2 * PAGE_BYTES + 2)]
    last = (await call(gateway, "GET", f"{path}?after={one['next']}")).json
    assert [row["seq"] for row in last["messages"]] == [4] and last["next"] is None
    back = (await call(gateway, "GET", f"{path}?before=4")).json
    assert [row["seq"] for row in back["messages"]] == [3] and back["next"] == 3


async def test_the_last_page_has_no_next_also_when_it_is_full(gateway: InProcessGateway) -> None:
    """H20: null means the end, so that no client requests an empty page; undone rows are not counted."""
    path = await long_talk(gateway, 10, 10)
    for query in ("", "after=0", "after=2&limit=2", "before=3&limit=2", "after=9", "before=1"):
        assert (await call(gateway, "GET", f"{path}?{query}")).json["next"] is None, query
    for query, where in (("limit=3", 2), ("after=0&limit=3", 3), ("after=2&limit=1", 3)):
        assert (await call(gateway, "GET", f"{path}?{query}")).json["next"] == where, query


async def test_a_page_lists_pictures_and_each_can_be_fetched(gateway: InProcessGateway) -> None:
    """D6: a listing has no media bytes; they are fetched one by one by users who may read the transcript."""
    path = await long_talk(gateway)
    session = path.split("/")[3]
    data = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 400
    spooled = "sp_" + "0" * 32
    held = (
        Media(media_type="image/png", data=data, width=20, height=10, note="scaled"),
        Media(media_type="image/jpeg", spooled=spooled, width=9),
        Media(media_type="image/jpeg", spooled="sp_" + "1" * 32),
    )

    def add(db: Any) -> None:
        message = Message(role="tool", call_id="c", name="read_file", text="t" * 9000, media=held)
        messages.append(db, session=session, turn=None, step=None, message=message, now=1.0)

    await gateway.store.write(add)
    file = gateway.config.home / "spool" / session / spooled
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\xff\xd8 and more")
    for query in ("after=2", "limit=1"):
        reply = await call(gateway, "GET", f"{path}?{query}")
        [row] = reply.json["messages"]
        assert len(row["message"]["text"]) == 9000
        assert [(found.get("data", ""), found["media_type"]) for found in row["message"]["media"]] == [
            ("", "image/png"),
            ("", "image/jpeg"),
            ("", "image/jpeg"),
        ]
        assert (row["message"]["media"][0]["width"], row["message"]["media"][0]["note"]) == (20, "scaled")
        assert len(reply.body) < 11_000
    for number, kind, bytes_ in ((0, "image/png", data), (1, "image/jpeg", b"\xff\xd8 and more")):
        picture = await call(gateway, "GET", f"{path}/{row['seq']}/media/{number}")
        assert (picture.status, picture.body) == (200, bytes_)
        assert picture.headers["content-type"] == kind and picture.headers["x-content-type-options"] == "nosniff"
        assert picture.headers["content-security-policy"] == "default-src 'none'; sandbox"
    here = row["seq"]
    for place in (f"{here}/media/2", f"{here}/media/3", f"{here}/media/-1", "1/media/0", "99/media/0", "x/media/y"):
        assert (await call(gateway, "GET", f"{path}/{place}")).status == 404
    other = await gateway.add_key("bert")
    assert (await call(gateway, "GET", f"{path}/{row['seq']}/media/0", key=other)).status == 404
