"""Globs: what they match, and that matching is fast."""

import pytest

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.globs import MOST_CHOICES, Glob


@pytest.mark.parametrize(
    ("glob", "fits", "fits_not"),
    [
        ("", ["a", "a/b.py"], []),
        ("*.py", ["a.py", "a/b/c.py", ".py"], ["a.pyc", "py", "a.py/b"]),
        ("a?c", ["abc", "x/aüc"], ["ac", "abbc", "a/c"]),
        ("[!a-c]x", ["dx", "q/zx"], ["ax", "x"]),
        ("[]x]", ["]", "x"], ["y"]),
        ("src/*.py", ["src/a.py"], ["a.py", "src/b/a.py", "x/src/a.py"]),
        ("/src/*.py", ["src/a.py"], ["x/src/a.py"]),
        ("./src/*.py", ["src/a.py"], ["x/src/a.py"]),
        ("**/*.py", ["a.py", "a/b/c.py"], ["a.txt"]),
        ("src/**/x.py", ["src/x.py", "src/a/x.py", "src/a/b/x.py"], ["x.py", "src/x.py/y", "a/src/x.py"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "a/src/b"]),
        ("src/", ["src/a", "src/a/b"], ["src"]),
        ("**", ["a", "a/b"], []),
        ("**/**/a", ["a", "b/a", "b/c/a"], ["b"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/y/z/c", "a/b/b/c"], ["a/c", "a/b"]),
        ("*.{ts,tsx}", ["a.ts", "b/c.tsx"], ["a.t", "a.js"]),
        ("{src,test}/{a,b}.py", ["src/a.py", "test/b.py"], ["src/c.py"]),
        ("{a,b{c,d}}.x", ["a.x", "bc.x", "bd.x"], ["b.x", "bcd.x"]),
        ("a{,.bak}", ["a", "a.bak"], ["a."]),
        ("{a", ["{a"], ["a"]),
        ("a}{b}", ["a}{b}"], ["ab"]),
        ("weird\n*", ["weird\nname"], ["weird"]),
    ],
)
def test_a_glob_matches_as_documented(glob: str, fits: list[str], fits_not: list[str]) -> None:
    given = Glob(glob)
    assert [path for path in fits if not given.matches(path)] == []
    assert [path for path in fits_not if given.matches(path)] == []


def test_matching_a_glob_is_fast() -> None:
    """Stars with many ways to match: trying them all would never end."""
    name = "a" * 255
    deep = "/".join(["a"] * 100)
    assert not Glob("*a" * 200 + "b").matches(name)
    assert not Glob("**/a/" * 100 + "b").matches(deep)
    assert not Glob("*" * 500 + "b").matches(name)


def test_a_glob_that_is_too_large_is_refused() -> None:
    assert Glob("{" + ",".join("ab" * (MOST_CHOICES // 2)) + "}").matches("a")
    for glob in ("{a,b}" * 10, "x" * 1001, "a\0b"):
        with pytest.raises(ToolFailed, match="The glob"):
            Glob(glob)
