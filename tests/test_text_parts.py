"""Parts of a text: pages of lines without gaps, and characters that stay whole."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.text_parts import after_lines, char_start, page_end

TEXTS = st.text("aé🌊\n", max_size=40)


@given(text=TEXTS, place=st.integers(0, 200))
def test_a_text_is_never_cut_within_a_character(text: str, place: int) -> None:
    data = text.encode()
    start = char_start(data, place)
    assert start <= place < start + 4
    data[:start].decode()


@given(text=TEXTS, lines=st.integers(1, 4), most=st.integers(4, 20))
def test_pages_follow_each_other_without_gaps(text: str, lines: int, most: int) -> None:
    """Each has complete lines or a part of one, within both limits."""
    rest = text.encode()
    while rest:
        end, count = page_end(rest, lines, most)
        page = rest[:end].decode()
        assert 0 < end <= most and 1 <= count <= lines
        assert page.count("\n") in (count, count - 1)
        whole = page.endswith("\n") or end == len(rest)
        assert whole or "\n" not in page
        rest = rest[end:]


@given(data=st.binary(max_size=40), most=st.integers(1, 20))
def test_a_page_makes_progress_in_any_bytes(data: bytes, most: int) -> None:
    assert data == b"" or page_end(data, 1, most)[0] > 0


@given(lines=st.lists(st.text("aé", max_size=3), max_size=6))
def test_the_offset_after_some_lines_is_found(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    for count in range(len(lines) + 1):
        assert data[: after_lines(data, count)].count(b"\n") == count
        assert data[after_lines(data, count) :] == "".join(f"{line}\n" for line in lines[count:]).encode()
