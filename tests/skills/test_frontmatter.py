"""The frontmatter of a SKILL.md: any bytes give a skill or one clear sentence."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.skills.frontmatter import (
    FILE_BYTES,
    HEAD_CHARACTERS,
    LONGEST_DESCRIPTION,
    InvalidSkill,
    body,
    decoded,
    read,
)
from tidegate.skills.skill import Skill


def head(text: str) -> str:
    return f"---\n{text}\n---\n"


GOOD = "name: tide-tables\ndescription: Reads tide tables."

WRONG = {
    "": "no frontmatter",
    "# A title\n": "no frontmatter",
    "---\nname: a\n": "no frontmatter",
    head("description: x"): "no name",
    head("name: a"): "no description",
    head('name: a\ndescription: "  "'): "no description",
    head("name: Tide\ndescription: x"): "lower-case",
    head("name: -a\ndescription: x"): "lower-case",
    head("name: a--b\ndescription: x"): "lower-case",
    head("name: ../etc\ndescription: x"): "lower-case",
    head(f"name: {'a' * 65}\ndescription: x"): "at most 64",
    head(f"name: a\ndescription: {'x' * (LONGEST_DESCRIPTION + 1)}"): "1025 characters",
    head("name: [a]\ndescription: x"): "its name is a list",
    head("name: a\ndescription: x: y"): "line 3",
    head("name: a\nname: b\ndescription: x"): "twice, again on line 3",
    head("name: a\ndescription: x\nmetadata:\n  v: 1\n  v: 2"): "twice",
    head("name: !!python/object/apply:os.system [id]\ndescription: x"): "a tag on line 2",
    head("name: &n a\ndescription: *n"): "an anchor or alias on line 2",
    head("name: a\ndescription: x\n--- b"): "several documents",
    head("- a\n- b"): "not a list of fields",
    head("[" * 20): "more than 16 levels",
    head("? [a]\n: b"): "a list as a field name",
    head(f"name: a\ndescription: x\nlicense: {'x' * HEAD_CHARACTERS}"): f"more than {HEAD_CHARACTERS} characters",
    head(f"name: a\ndescription: x\ncompatibility: {'x' * 501}"): "its compatibility has 501",
    head("name: a\ndescription: x\nmetadata: [a]"): "its metadata is a list",
    head("name: a\ndescription: x\nallowed-tools: {a: b}"): "allowed-tools",
}


def sentence(text: str) -> str:
    with pytest.raises(InvalidSkill) as told:
        read(text)
    return told.value.message


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:40])
def test_errors_in_a_skill_are_one_sentence(text: str) -> None:
    """X19: and nothing is made of tags, repeated by aliases, or overwritten by a second name."""
    told = sentence(text)
    assert WRONG[text] in told and "\n" not in told and told.endswith(".")


def test_all_fields_of_the_format_are_read_as_literal_text() -> None:
    text = head(
        'name: tide-tables\ndescription: >-\n  Reads\n  tide tables.\nlicense: MIT\ncompatibility: "needs: python 3"\n'
        "metadata:\n  version: 1.0\n  on: yes\n  nested: {a: b}\nallowed-tools: Bash(git:*) Read\nx-other: [1, {a: 2}]"
    )
    assert read(text + "\n# Body\n") == Skill(
        name="tide-tables",
        description="Reads tide tables.",
        license="MIT",
        compatibility="needs: python 3",
        metadata=(("version", "1.0"), ("on", "yes")),
        tools=("Bash(git:*)", "Read"),
    )
    assert read(head(f"{GOOD}\nallowed-tools:\n  - Read\n  - Write")).tools == ("Read", "Write")


def test_line_ends_and_a_byte_order_mark_of_other_editors_are_read() -> None:
    text = decoded(b"\xef\xbb\xbf" + (head(GOOD) + "\nOne.\nTwo.\n").replace("\n", "\r\n").encode())
    assert read(text).name == "tide-tables"
    assert body(text) == "One.\r\nTwo."


def test_a_description_is_one_printable_line() -> None:
    """X19: nothing in it can begin a line of its own in a prompt."""
    text = head('name: a\ndescription: "one\\n\\n# System\\u2028two \\e[31m\\u202e three"')
    assert read(text).description == "one # System two \\x1b[31m\\u202e three"


def test_files_that_are_too_long_or_not_text_are_reported() -> None:
    for data, words in ((b"x" * (FILE_BYTES + 1), "256 KiB"), (b"---\nname: \xff", "UTF-8 (byte 11)")):
        with pytest.raises(InvalidSkill, match="; ") as told:
            decoded(data)
        assert words in told.value.message


YAMLISH = st.lists(
    st.sampled_from(
        [*"[]{}:-?&*!|>'\"%@`#,\n \t", "name", "description", ": ", "\n- ", "---\n", "...\n", "<<", "é", "\x00"]
    ),
    max_size=60,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=300), YAMLISH.map(lambda text: head(text).encode()), st.text().map(str.encode)))
@example(head(GOOD).encode())
def test_any_bytes_give_a_skill_or_one_sentence(data: bytes) -> None:
    """X19: and a skill that is within the format's bounds."""
    try:
        found = read(decoded(data))
    except InvalidSkill as error:
        assert error.message.endswith(".") and error.message.isprintable() and len(error.message) < 400
    else:
        assert 1 <= len(found.name) <= 64 and found.name == found.name.lower()
        assert 1 <= len(found.description) <= LONGEST_DESCRIPTION and found.description.isprintable()


@settings(max_examples=100, deadline=None)
@given(
    st.text(min_size=1, max_size=200),
    st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,3}", fullmatch=True).filter(lambda n: len(n) <= 64),
)
def test_quoted_text_is_read_back(description: str, name: str) -> None:
    import yaml

    written = yaml.safe_dump({"name": name, "description": description}, allow_unicode=True, default_style='"')
    plain = " ".join(description.split())
    if plain and plain.isprintable():
        assert read(head(written)) == Skill(name=name, description=plain)
