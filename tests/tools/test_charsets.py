"""Charsets of fetched text: labels as browsers read them, and codecs whose time grows with the text."""

import codecs

import pytest

from tests.scaling import LINEAR, growth
from tidegate.tools.builtin.web.charsets import CODECS, codec

HOSTILE = {"invalid": b"\xff", "lead": b"\x81", "escapes": b"\x1b$B", "pairs": b"\x00\xd8", "letters": b"a"}


@pytest.mark.parametrize(
    ("label", "text", "data"),
    [
        ("ISO-8859-1", "“€”", b"\x93\x80\x94"),
        (" us-ascii ", "ü", b"\xfc"),
        ("gb2312", "囧", "囧".encode("gbk")),
        ("euc-kr", "뷁", "뷁".encode("cp949")),
        ("Shift_JIS", "①", "①".encode("cp932")),
        ("iso-2022-jp", "潮", "潮".encode("iso2022_jp")),
        ("latin5", "ğ", "ğ".encode("cp1254")),
        ("utf-16", "潮", "潮".encode("utf-16-le")),
        ("utf-16be", "潮", "潮".encode("utf-16-be")),
        ("koi8-ru", "ґ", "ґ".encode("koi8-u")),
        ("tis-620", "ก", "ก".encode("cp874")),
    ],
)
def test_labels_are_decoded_like_in_browsers(label: str, text: str, data: bytes) -> None:
    assert data.decode(codec(data[:3], label), "replace") == text


def test_a_byte_order_mark_comes_before_every_label() -> None:
    for name in ("utf-8-sig", "utf-16"):
        data = "潮".encode(name)
        assert data.decode(codec(data, "koi8-r", "punycode")) == "潮"


@pytest.mark.parametrize(
    "label",
    [
        *("punycode", "idna", "undefined", "unicode_escape", "raw_unicode_escape", "unicode-internal", "mbcs", "oem"),
        *("rot13", "rot_13", "hex", "base64", "quopri", "uu", "zlib", "bz2", "utf-7", "utf7", "utf-32", "cp65001"),
        *("hz-gb-2312", "iso-2022-kr", "replacement", "x-user-defined", "", "\0", "ü", "../../etc/passwd", "u" * 9999),
    ],
)
def test_every_other_label_is_read_as_utf_8_and_raises_nothing(label: str) -> None:
    assert codec(b"abc", label) == "utf-8"
    assert codec(b"abc", label, "koi8-r") == "koi8-r"  # what the page itself says


@pytest.mark.parametrize("name", sorted(set(CODECS.values())))
def test_no_codec_takes_more_than_linear_time(name: str) -> None:
    def decode(data: bytes) -> None:
        codecs.getincrementaldecoder(name)("replace").decode(data, True)

    for unit in HOSTILE.values():
        assert growth(decode, unit.__mul__, 16 * 1024) < LINEAR
