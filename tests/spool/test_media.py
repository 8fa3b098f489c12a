"""Pictures are within the limits for models, inline or spooled, and never in the gateway's memory."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from PIL import Image

from tests.spool.pictures import bomb, noise, plain, saved
from tests.spool.spools import ID, SESSION, WAIT, can_mount, files, in_child, spool_of
from tidegate.errors import ToolFailed
from tidegate.spool import SessionSpool, Spool
from tidegate.spool.entry import UNSPOOLED_BYTES
from tidegate.spool.media import MediaPreparer
from tidegate.store import Store, spooled
from tidegate.values import Media

pytestmark = pytest.mark.anyio

INLINE_BYTES, SHOWN_BYTES, SIDE = 256 * 1024, 4_500_000, 2000
"""What is promised, in numbers of our own: held with a message, sent to a model, on each side."""

SOURCE_BYTES = 256 * 1024 * 1024


@pytest.fixture
def spool(store: Store, tmp_path: Path) -> Spool:
    return spool_of(tmp_path / "spool", store, quota=50_000_000)


@contextmanager
def described(path: Path, data: bytes, size: int | None = None) -> Iterator[int]:
    path.write_bytes(data)
    if size is not None:
        os.truncate(path, size)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


async def content(spool: Spool, media: Media) -> bytes:
    return media.data or await spool.load(SESSION, media.spooled)


async def decoded(spool: Spool, media: Media) -> Image.Image:
    image = Image.open(io.BytesIO(await content(spool, media)))
    image.load()
    assert image.size == (media.width, media.height)
    assert Image.MIME[image.format or ""] == media.media_type
    return image


async def test_a_small_picture_is_unchanged(mine: SessionSpool, spool: Spool) -> None:
    """D2: each of the four formats, inline, byte for byte."""
    for format in ("PNG", "JPEG", "GIF", "WEBP"):
        data = saved(plain(60, 40), format)
        media = await mine.media("a picture", data)
        assert media == Media(media_type=f"image/{format.lower()}", data=data, width=60, height=40)
    assert not spool.root.exists()


async def test_at_the_threshold_a_picture_is_inline_and_one_byte_more_is_spooled(
    mine: SessionSpool, spool: Spool, store: Store
) -> None:
    """D2: at most 256 KiB are stored with the message."""
    data = saved(plain(60, 40), "PNG")
    at = data + bytes(INLINE_BYTES - len(data))
    assert (await mine.media("at", at)).data == at
    assert not spool.root.exists()
    media = await mine.media("above", at + b"\0")
    assert (media.data, await content(spool, media)) == (b"", at + b"\0")
    row = await store.read(spooled.get, media.spooled, SESSION)
    assert row is not None
    assert (row.kind, row.media_type, row.bytes, row.name) == ("media", "image/png", INLINE_BYTES + 1, "above")
    with pytest.raises(ToolFailed, match="is a picture"):
        await mine.page(media.spooled)


async def test_a_large_picture_is_scaled_with_a_note(mine: SessionSpool, spool: Spool) -> None:
    """D2: to at most 2,000 pixels per side, in proportion; lossless formats stay lossless."""
    media = await mine.media("wide", saved(plain(6000, 4000), "PNG"))
    assert (media.width, media.height, media.note, media.media_type) == (
        2000,
        1333,
        "scaled from 6000 x 4000",
        "image/png",
    )
    await decoded(spool, media)
    media = await mine.media("photo", saved(plain(1000, 5000), "JPEG"))
    assert (media.width, media.height, media.media_type) == (400, 2000, "image/jpeg")
    await decoded(spool, media)
    exact = saved(plain(SIDE, SIDE), "PNG")
    assert (await mine.media("exact", exact)).data == exact


async def test_a_picture_with_too_many_bytes_is_compressed(mine: SessionSpool, spool: Spool) -> None:
    """D2: at most 4.5 MB are sent to a model."""
    data = saved(noise(1500, 1500), "PNG")
    assert len(data) > SHOWN_BYTES
    media = await mine.media("noise", data)
    assert INLINE_BYTES < len(await content(spool, media)) <= SHOWN_BYTES
    await decoded(spool, media)


async def test_rotated_and_animated_pictures_are_shown_upright_and_still(mine: SessionSpool, spool: Spool) -> None:
    """D2: since providers would show them wrongly or refuse them."""
    exif = Image.Exif()
    exif[0x0112] = 6
    media = await mine.media("turned", saved(plain(60, 40), "JPEG", exif=exif))
    assert (await decoded(spool, media)).size == (40, 60)
    assert media.note == ""
    frames = saved(plain(30, 20), "GIF", save_all=True, append_images=[noise(30, 20), noise(30, 20, seed=2)])
    media = await mine.media("moving", frames)
    assert (media.media_type, media.note) == ("image/png", "the first frame of an animation")
    media = await mine.media("print", saved(plain(60, 40).convert("CMYK"), "JPEG"))
    assert (await decoded(spool, media)).mode == "RGB"
    clear = Image.new("RGBA", (3000, 10), (255, 0, 0, 0))
    assert (await decoded(spool, await mine.media("clear", saved(clear, "PNG")))).getextrema()[3] == (0, 0)


async def test_a_bomb_is_refused_before_it_is_decoded(mine: SessionSpool, spool: Spool) -> None:
    """D7: according to the size in its header; one below the limit is decoded in bounded memory."""
    data = bomb(30_000, 30_000)
    assert len(data) < 1_000_000
    with pytest.raises(ToolFailed, match="has 30000 x 30000 pixels, and at most 50000000"):
        await mine.media("bomb", data)
    with anyio.fail_after(WAIT):
        media = await mine.media("large", bomb(7000, 7000))
        assert (media.width, media.height) == (SIDE, SIDE)
        media = await mine.media("larger", saved(plain(7000, 7000, mode="RGBA"), "PNG", compress_level=1))
        assert (media.width, media.height) == (SIDE, SIDE)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not a PNG, JPEG, GIF or WebP image"),
        (b"hello", "is not a PNG, JPEG, GIF or WebP image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a PNG, JPEG, GIF or WebP image"),
        (saved(noise(300, 300), "PNG")[:5000], "is damaged"),
        (saved(noise(300, 300), "JPEG")[:2000], "is damaged"),
        (saved(noise(300, 300), "WEBP")[:2000], "is damaged"),
    ],
)
async def test_damaged_and_other_files_are_refused_with_the_reason(mine: SessionSpool, data: bytes, why: str) -> None:
    """D8: a provider would refuse every later request of the conversation as well."""
    with pytest.raises(ToolFailed, match=f'^The image "a/b.png" cannot be shown: it {why}') as failure:
        await mine.media("a/b.png", data)
    assert failure.value.message.endswith(".")


async def test_a_local_file_and_bytes_from_a_server_obey_the_same_limits(
    mine: SessionSpool, spool: Spool, tmp_path: Path
) -> None:
    """D8: also when the same picture is read from a descriptor."""
    for data in (saved(plain(60, 40), "GIF"), saved(plain(3000, 30), "PNG")):
        with described(tmp_path / "file", data) as fd:
            assert await mine.media("x", fd) == await mine.media("x", data)
            os.lseek(fd, 10, os.SEEK_SET)
            assert await mine.media("x", fd) == await mine.media("x", data)
    with described(tmp_path / "file", bomb(30_000, 30_000)) as fd, pytest.raises(ToolFailed, match="pixels"):
        await mine.media("x", fd)
    with (
        described(tmp_path / "file", b"", SOURCE_BYTES + 1) as fd,
        pytest.raises(ToolFailed, match="its file is larger"),
    ):
        await mine.media("x", fd)


async def test_over_the_quota_a_picture_is_stored_in_its_message(store: Store, tmp_path: Path) -> None:
    """D4, D5: unchanged or, if it is too large for that, scaled down, with a note. The same applies if the disk
    refuses."""
    data, large = saved(noise(600, 600), "PNG"), saved(noise(1000, 1000), "PNG")
    assert INLINE_BYTES < len(data) < UNSPOOLED_BYTES < len(large)
    (tmp_path / "file").write_text("in the way")
    for spool, why in (
        (spool_of(tmp_path / "spool", store, quota=100_000), "this conversation has used up its limits.spool_bytes"),
        (spool_of(tmp_path / "file", store), "it could not be written (File exists)"),
    ):
        mine = spool.of(SESSION, None)
        media = await mine.media("noise", data)
        assert (media.data, media.spooled, media.note) == (data, "", f"stored in its message, since {why}")
        media = await mine.media("noise", large)
        assert len(media.data) <= UNSPOOLED_BYTES - len(data) and media.note.endswith(f"small, since {why}")
        await decoded(spool, media)
        for _ in range(3):  # however little room is left, a small one goes with its message
            media = await mine.media("noise", large)
        assert 0 < len(media.data) <= INLINE_BYTES
    assert not [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]


CASES = [("full", "No space left on device"), ("read-only", "Read-only file system"), ("quota", "limits.spool_bytes")]


@pytest.mark.parametrize("pillow", [True, False], ids=["with Pillow", "without"])
@pytest.mark.parametrize(("how", "why"), CASES)
async def test_media_that_the_spool_refuses_is_stored_inline_up_to_a_limit(
    tmp_path: Path, how: str, why: str, pillow: bool
) -> None:
    """D5, D7: pictures and sounds, on a real file system that is full or read-only; beyond the limit, the error gives
    the media, the reason and the limit."""
    if not await to_thread.run_sync(can_mount):
        pytest.skip("this machine allows no mounts of one's own")
    arguments = (f"media-{how}", str(tmp_path), "pillow" if pillow else "none")
    found = await to_thread.run_sync(lambda: in_child(*arguments, namespace=True))
    assert found["sound"] == found["picture"] == "the same bytes"
    assert why in found["sound note"] and why in found["picture note"]
    for left_out in [found["second sound"], *([] if pillow else [found["large picture"]])]:
        assert (
            why in left_out
            and f"({UNSPOOLED_BYTES} bytes per turn in total)" in left_out
            and left_out.endswith("free some space.")
        )
    if pillow:
        assert "small, since" in found["large picture"] and why in found["large picture"]
    assert found["inline"] == "within the limit"
    assert (found["files"], found["descriptors"]) == ("0", "0")


async def test_without_pillow_pictures_that_fit_pass_and_others_are_refused_with_advice(
    mine: SessionSpool, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: the extra is optional."""
    monkeypatch.setattr("tidegate.spool.media._pillow", lambda: "")
    data = saved(noise(600, 600), "PNG")
    media = await mine.media("fits", data)
    assert await content(spool, media) == data
    with pytest.raises(ToolFailed, match=r"3000 x 30 pixels .* the operator can install tidegate\[images\]"):
        await mine.media("wide", saved(plain(3000, 30), "PNG"))


async def test_a_picture_that_takes_too_long_is_given_up(mine: SessionSpool, spool: Spool) -> None:
    """D7, L15: and its child process is gone."""
    spool.media_preparer = MediaPreparer(spool.workers, seconds=0.01)
    with pytest.raises(ToolFailed, match=r"takes longer than 0.01 s"):
        await mine.media("slow", saved(noise(600, 600), "PNG"))


async def test_many_pictures_are_processed_two_at_a_time_and_leave_nothing(mine: SessionSpool, spool: Spool) -> None:
    """D7, L15: the memory of child processes is bounded too; a cancellation leaves no child, file or descriptor."""
    data = saved(noise(700, 700), "PNG")
    kept: list[Media] = []

    async def one() -> None:
        kept.append(await mine.media("noise", data))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)
    assert sorted(files(spool)) == sorted(media.spooled for media in kept)
    with anyio.move_on_after(0.05):
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)
    assert spool.stats().writing == 0


async def test_a_picture_of_a_hundred_megabytes_uses_little_memory(tmp_path: Path) -> None:
    """D7: a child process reads it from its file."""
    found = await to_thread.run_sync(lambda: in_child("picture", str(tmp_path)))
    assert ID.match(found["spooled"])
    assert int(found["grown"]) <= 8 * 1024 * 1024


# -- documents ---------------------------------------------------------------------------------------------------------

DOCUMENT_BYTES = 20_000_000


async def test_a_document_is_unchanged_and_inline_or_spooled(
    mine: SessionSpool, spool: Spool, store: Store, tmp_path: Path
) -> None:
    """D2: from memory and from a file; at most 256 KiB are stored with the message."""
    at = b"%PDF-1.7\n" + bytes(INLINE_BYTES - 9)
    media = await mine.media("papers/tides.pdf", at)
    assert media == Media(media_type="application/pdf", data=at, name="tides.pdf", size=INLINE_BYTES)
    assert (media.is_document, media.words) == (True, "[document: application/pdf, tides.pdf]")
    assert not spool.root.exists()
    with described(tmp_path / "a", at + b"\0") as fd:
        media = await mine.media("tides.pdf", fd)
    assert (media.data, media.size, await content(spool, media)) == (b"", INLINE_BYTES + 1, at + b"\0")
    row = await store.read(spooled.get, media.spooled, SESSION)
    assert row is not None and (row.kind, row.media_type, row.bytes) == ("media", "application/pdf", INLINE_BYTES + 1)
    with pytest.raises(ToolFailed, match="is a document"):
        await mine.page(media.spooled)


async def test_the_largest_document_is_accepted_and_one_byte_more_is_not(
    mine: SessionSpool, spool: Spool, tmp_path: Path
) -> None:
    """D7: it is refused by size, before any of it is copied."""
    with described(tmp_path / "a", b"%PDF-1.7\n", size=DOCUMENT_BYTES) as fd:
        media = await mine.media("a", fd)
        assert (media.size, len(await content(spool, media))) == (DOCUMENT_BYTES, DOCUMENT_BYTES)
    refused = pytest.raises(ToolFailed, match=r'The document "b" cannot be sent: it has 20000001 bytes, and at most')
    with described(tmp_path / "b", b"%PDF-1.7\n", size=DOCUMENT_BYTES + 1) as fd, refused:
        await mine.media("b", fd)
    assert list(files(spool)) == [media.spooled]


async def test_a_document_that_the_spool_refuses_is_stored_inline_up_to_a_limit(store: Store, tmp_path: Path) -> None:
    """D5: like sounds; beyond the limit, the error says what was left out and why."""
    mine = spool_of(tmp_path / "spool", store, quota=1000).of(SESSION, None)
    data = b"%PDF-1.7\n" + bytes(UNSPOOLED_BYTES - 9)
    media = await mine.media("tides.pdf", data)
    assert (media.data, media.spooled) == (data, "")
    assert media.words.startswith("[document: application/pdf, tides.pdf, stored in its message, since")
    with pytest.raises(ToolFailed, match=r'The document "more" cannot be sent: .*limits.spool_bytes'):
        await mine.media("more", data)
