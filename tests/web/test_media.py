"""Pictures and sounds over HTTP: in users' messages as OpenAI's clients send them, and in transcripts."""

import base64
import io
import itertools
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scripted_model import ScriptedModel
from tests import core
from tests.in_process import InProcessGateway, in_process_gateway
from tests.spool.pictures import noise, plain, saved
from tests.spool.sounds import mp3, wav
from tests.web.client import CHAT, Reply, call
from tidegate.errors import Refused
from tidegate.web.api.byte_ranges import parse_range

pytestmark = pytest.mark.anyio
SMALL, LARGE, SONG = wav(0.5), wav(10), mp3(20)
PICTURE = saved(plain(20, 10), "PNG")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sound(data: bytes, format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": format}}


def picture(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded(data)}", "detail": "low"}}


def document(data: bytes, name: str = "tides.pdf") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{encoded(data)}"}}


def user_message(*parts: dict[str, Any] | str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": "main", "messages": [{"role": "user", "content": content}]}


def given_to(model: ScriptedModel) -> list[bytes]:
    """The sounds and pictures of the last request, in order."""
    found: list[bytes] = []
    for message in model.recorded[-1].decoded()["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "input_audio":
                found.append(base64.b64decode(part["input_audio"]["data"]))
            elif part["type"] == "image_url":
                found.append(base64.b64decode(part["image_url"]["url"].partition(",")[2]))
    return found


def check_growth(model: ScriptedModel) -> None:
    assert model.stats()["refused"] == 0
    for earlier, later in itertools.pairwise([request.body for request in model.recorded]):
        assert later.startswith(earlier.removesuffix(b"]}"))


async def post(gateway: InProcessGateway, body: dict[str, Any], **options: Any) -> Reply:
    """A large body."""
    return await call(gateway, "POST", CHAT, data=io.BytesIO(msgspec.json.encode(body)), **options)


def spooled(gateway_home: Path) -> list[Path]:
    return sorted(path for path in (gateway_home / "spool").rglob("*") if path.is_file())


async def test_media_reach_the_model_unchanged_even_after_a_restart(home: Path, model: ScriptedModel) -> None:
    """D3, H05, B4: small ones and large ones, sounds and pictures; requests only grow."""
    large_picture = saved(noise(400, 400), "PNG")
    async with in_process_gateway(home, model=model) as gateway:
        body = user_message("listen", sound(LARGE), sound(SONG, "mp3"), picture(PICTURE))
        answer = await call(gateway, "POST", CHAT, json=body, headers={"X-Session-Id": "ears"})
        assert answer.status == 200, answer.body
        assert given_to(model) == [LARGE, SONG, PICTURE]
        assert [path.read_bytes() for path in spooled(home)] == [LARGE]
        body = user_message(picture(large_picture), sound(SMALL))
        assert (await call(gateway, "POST", CHAT, json=body, headers={"X-Session-Id": "ears"})).status == 200
        everything = [LARGE, SONG, PICTURE, large_picture, SMALL]
        assert given_to(model) == everything
    async with in_process_gateway(home, model=model) as gateway:
        await gateway.chat("and now?", "ears")
        assert given_to(model) == everything
    check_growth(model)


async def test_a_call_without_a_session_may_have_media_anywhere_and_leaves_none(
    home: Path, gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H04, D3: the caller has the complete conversation; the spool stays empty."""
    messages = [
        {"role": "system", "content": "You hear."},
        {"role": "user", "content": [sound(LARGE)]},
        {"role": "assistant", "content": "I heard."},
        {"role": "user", "content": [{"type": "text", "text": "and this?"}, sound(SMALL)]},
    ]
    answer = await call(gateway, "POST", CHAT, json={"model": "main", "messages": messages})
    assert answer.status == 200
    assert given_to(model) == [LARGE, SMALL]
    assert model.stats()["refused"] == 0
    assert spooled(home) == []


async def test_the_official_client_sends_sounds(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H04: as OpenAI's documentation shows."""
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=gateway.key) as client:
        answer = await client.chat.completions.create(
            model="main",
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is in this recording?"},
                        {"type": "input_audio", "input_audio": {"data": encoded(SMALL), "format": "wav"}},
                    ],
                }
            ],
        )
    assert answer.choices[0].message.content
    assert given_to(model) == [SMALL]


DEAF = "[A sound (audio/wav, 10.0 s) stands here, which this model cannot hear.]"


async def test_a_model_without_audio_input_gets_a_description(home: Path, model: ScriptedModel) -> None:
    """D3: it gets a note, not an error."""
    settings = core.settings(model).replace("audio = true\n", "")
    async with in_process_gateway(home, toml=settings) as gateway:
        assert (await call(gateway, "POST", CHAT, json=user_message("listen", sound(LARGE)))).status == 200
        assert {"type": "text", "text": DEAF} in model.recorded[-1].decoded()["messages"][-1]["content"]


# -- what is refused ---------------------------------------------------------------------------------------------------

PART = "messages[0].content[1]"
DATA = f"{PART}.input_audio.data"


@pytest.mark.parametrize(
    ("part", "param", "why"),
    [
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, DATA, "missing"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, f"{PART}.input_audio.format", "missing"),
        (sound(SMALL, "flac"), f"{PART}.input_audio.format", "must be"),
        ({"type": "input_audio", "input_audio": {"data": "not base64!", "format": "wav"}}, DATA, "not valid base64"),
        ({"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}}, DATA, "not valid base64"),
        ({"type": "input_audio", "input_audio": {"data": "ÄÄÄÄ", "format": "wav"}}, DATA, "not valid base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, DATA, "is not WAV data"),
        (sound(SMALL, "mp3"), DATA, "is not MP3 data"),
        (sound(PICTURE), DATA, "is not WAV data"),
        (sound(b"fLaC\0\0\0\x22" + bytes(50), "mp3"), DATA, "is not MP3 data"),
        (sound(SMALL[:40]), PART, "ends before its audio data"),
        (sound(SMALL[:44]), PART, "contains no audio"),
        (sound(wav(3700, rate=8, hertz=1)), PART, "lasts 3700 s"),
        (picture(PICTURE, "image/jpeg"), f"{PART}.image_url.url", "is not JPEG data"),
        (picture(PICTURE, "image/svg+xml"), f"{PART}.image_url.url", "must be a data URL"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, f"{PART}.image_url.url", "not fetched"),
        (picture(saved(noise(300, 300), "PNG")[:5000]), PART, "is damaged"),
        (document(b"PK\x03\x04\xff\xfe"), f"{PART}.file.file_data", "is not UTF-8 text, a PDF, an image or a sound"),
        ({"type": "file", "file": {"file_data": "%PDF-1.7"}}, f"{PART}.file.file_data", "not valid base64"),
        ({"type": "file", "file": {"file_id": "file-1"}}, f"{PART}.file.file_data", "is missing"),
    ],
)  # fmt: skip
async def test_media_of_the_wrong_type_are_refused_with_their_path(
    home: Path, gateway: InProcessGateway, model: ScriptedModel, part: dict[str, Any], param: str, why: str
) -> None:
    """H20, X08: 400 and one sentence; no model is called and nothing is stored."""
    answer = await call(gateway, "POST", CHAT, json=user_message("listen", part), headers={"X-Session-Id": "x"})
    assert (answer.status, answer.error["param"]) == (400, param), answer.error
    assert why in answer.error["message"] and answer.error["message"].endswith(".")
    assert not model.recorded and spooled(home) == []


async def test_media_that_are_too_large_or_too_many_are_413(home: Path, model: ScriptedModel) -> None:
    """H20: by size, by number, by the conversation's quota; partial files are removed."""
    async with in_process_gateway(
        home, '[limits]\nbody_bytes = "64 MiB"\nspool_bytes = "1 MiB"\n', model=model
    ) as gateway:
        answer = await post(gateway, user_message(sound(wav(0.1) + bytes(20_000_001 - len(wav(0.1))))))
        assert (answer.status, answer.error["param"]) == (413, "messages[0].content[0].input_audio.data")
        answer = await post(gateway, user_message(document(b"%PDF-1.7" + bytes(20_000_000))))
        assert (answer.status, answer.error["param"]) == (413, "messages[0].content[0].file.file_data")
        answer = await post(gateway, user_message(*[sound(SMALL)] * 51))
        assert (answer.status, answer.error["param"]) == (413, "messages")
        answer = await post(gateway, user_message(sound(LARGE), sound(wav(70))))
        assert (answer.status, answer.error["param"]) == (413, "messages[0].content[1]")
        assert "limits.spool_bytes" in answer.error["message"]
        answer = await post(
            gateway, user_message(*[sound(LARGE)] * 10)
        )  # three are spooled, and six go with the message
        assert (answer.status, answer.error["param"]) == (413, "messages[0].content[9]")
        assert not model.recorded and spooled(home) == []


async def test_a_repeated_request_stores_its_media_once(
    home: Path, gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H18, D4: the same key is the same turn."""
    headers = {"X-Session-Id": "ears", "Idempotency-Key": "k"}
    first = await call(gateway, "POST", CHAT, json=user_message(sound(LARGE)), headers=headers)
    again = await call(gateway, "POST", CHAT, json=user_message(sound(LARGE)), headers=headers)
    assert (first.status, first.body) == (200, again.body)
    assert len(model.recorded) == 1
    assert [path.read_bytes() for path in spooled(home)] == [LARGE]


# -- out again ---------------------------------------------------------------------------------------------------------


async def test_a_sound_can_be_fetched_completely_or_in_part_with_safe_headers(gateway: InProcessGateway) -> None:
    """D6: the row describes it without its bytes; a browser that plays it requests parts."""
    await call(gateway, "POST", CHAT, json=user_message(sound(LARGE), sound(SMALL)), headers={"X-Session-Id": "ears"})
    session = (await call(gateway, "GET", "/api/sessions")).json["sessions"][0]["id"]
    path = f"/api/sessions/{session}/messages"
    (row, *_) = (await call(gateway, "GET", path)).json["messages"]
    told = row["message"]["media"]
    assert [(each["media_type"], each["seconds"], each.get("data", "")) for each in told] == [
        ("audio/wav", 10.0, ""),
        ("audio/wav", 0.5, ""),
    ]
    for number, data in enumerate((LARGE, SMALL)):
        whole = await call(gateway, "GET", f"{path}/{row['seq']}/media/{number}")
        assert (whole.status, whole.body, whole.headers["content-type"]) == (200, data, "audio/wav")
        assert whole.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert whole.headers["x-content-type-options"] == "nosniff" and whole.headers["accept-ranges"] == "bytes"
        part = await call(gateway, "GET", f"{path}/{row['seq']}/media/{number}", headers={"Range": "bytes=10-19"})
        assert (part.status, part.body) == (206, data[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(data)}"
    behind = await call(gateway, "GET", f"{path}/{row['seq']}/media/0", headers={"Range": "bytes=9999999-"})
    assert (behind.status, behind.error["code"]) == (416, "out_of_range")


@pytest.mark.parametrize("data", [b"%PDF-1.7 small", b"%PDF-1.7" + bytes(300_000)], ids=["inline", "spooled"])
async def test_a_document_is_named_in_the_transcript_and_downloaded(gateway: InProcessGateway, data: bytes) -> None:
    """D6: it never opens in the gateway's own origin, whatever its content and name."""
    name = 'high "tide"\r\nX-Evil: ö.pdf'
    await post(gateway, user_message(document(data, name)), headers={"X-Session-Id": "papers"})
    session = (await call(gateway, "GET", "/api/sessions")).json["sessions"][0]["id"]
    path = f"/api/sessions/{session}/messages"
    (row, *_) = (await call(gateway, "GET", path)).json["messages"]
    (told,) = row["message"]["media"]
    assert (told["media_type"], told["size"], "data" in told) == ("application/pdf", len(data), False)
    assert told["name"] == name.replace("\r\n", "??")
    fetched = await call(gateway, "GET", f"{path}/{row['seq']}/media/0")
    assert (fetched.status, fetched.body, fetched.headers["content-type"]) == (200, data, "application/pdf")
    assert fetched.headers["content-disposition"] == (
        "attachment; filename*=UTF-8''high%20%22tide%22%3F%3FX-Evil%3A%20%C3%B6.pdf"
    )
    assert fetched.headers["x-content-type-options"] == "nosniff"
    assert fetched.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert "X-Evil" not in fetched.headers


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        (b"bytes=0-", (0, 100)),
        (b"bytes=0-0", (0, 1)),
        (b"bytes=90-500", (90, 100)),
        (b"bytes=-7", (93, 100)),
        (b"bytes=-700", (0, 100)),
        (b"bytes=5-4", None),
        (b"bytes=-", None),
        (b"bytes=0-1,5-6", None),
        (b"lines=0-1", None),
    ],
)
def test_a_single_range_is_served_and_anything_else_gets_the_complete_resource(
    header: bytes | None, part: tuple[int, int] | None
) -> None:
    """As HTTP specifies."""
    found = parse_range(header, 100)
    assert (None if found is None else found[:2]) == part


@given(st.binary(max_size=30) | st.from_regex(rb"bytes=\d*-\d*", fullmatch=True), st.integers(0, 50))
def test_any_range_header_is_served_or_refused(header: bytes, size: int) -> None:
    """H20: whatever the header contains."""
    try:
        part = parse_range(header, size)
    except Refused as refused:
        assert refused.status == 416
    else:
        assert part is None or 0 <= part.start < part.end <= size


# -- when the spool refuses --------------------------------------------------------------------------------------------


async def test_media_beyond_the_quota_stay_with_their_message_after_a_restart(home: Path, model: ScriptedModel) -> None:
    """D5: up to a limit; beyond it the client is told what was left out, why, and the limit."""
    home.mkdir(parents=True)
    (home / "spool").write_text("in the way")
    named = {"X-Session-Id": "talk"}
    photograph = saved(noise(500, 500), "PNG")
    async with in_process_gateway(home, model=model) as h:
        reply = await post(h, user_message(sound(LARGE), picture(photograph), "look"), headers=named)
        assert reply.status == 200, reply.body
        assert given_to(model) == [LARGE, photograph]
        asked = len(model.recorded)
        reply = await post(h, user_message(sound(wav(70)), "listen"), headers=named)
        assert reply.status == 503, reply.body
        assert "it could not be written" in reply.error["message"] and "2097152 bytes" in reply.error["message"]
        assert len(model.recorded) == asked, "nothing of it was taken in"
    async with in_process_gateway(home, model=model) as h:
        assert (await post(h, user_message("again"), headers=named)).status == 200
        assert given_to(model) == [LARGE, photograph]
        check_growth(model)


async def test_over_the_quota_media_of_one_message_are_kept_while_there_is_space(
    home: Path, model: ScriptedModel
) -> None:
    """D4, D5: the first is in the spool, the second in its message; neither is refused because of the other."""
    async with in_process_gateway(home, "[limits]\nspool_bytes = 1_048_576\n", model=model) as h:
        reply = await post(h, user_message(sound(wav(25)), sound(wav(26)), "listen"))
        assert reply.status == 200, reply.body
        assert given_to(model) == [wav(25), wav(26)]
