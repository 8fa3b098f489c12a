"""A web page as Markdown: its content, and the converter that is used."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spool import JobRunner
from tidegate.tools.builtin.web import html_text
from tidegate.tools.builtin.web.html_text import Converter

URL = "https://example.org/a/b"
FOLDER = Path(html_text.__file__).parent


def converted(page: str) -> str:
    converter = Converter(URL)
    converter.feed(page)
    converter.close()
    return converter.text()


async def made(page: bytes, **order: Any) -> tuple[dict[str, Any], str]:
    """The result of the child process."""
    input, output = os.memfd_create("in"), os.memfd_create("out")
    try:
        os.write(input, page)
        report = await JobRunner().run(
            "html_text",
            {"url": URL, "charset": "", "bytes": 100_000, "trafilatura": "", **order},
            within=30,
            memory=2**30,
            written=1_000_000,
            input=input,
            output=output,
            folder=FOLDER,
        )
        return report, os.pread(output, 1_000_000, 0).decode()
    finally:
        os.close(input)
        os.close(output)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("plain", "plain\n"),
        ("<p>one</p><p>two</p>", "one\n\ntwo\n"),
        ("<p>a\n   b<br>c</p>", "a b\nc\n"),
        ("<h2>Head <code>x</code></h2>", "## Head `x`\n"),
        ("<p>x <b>bold</b> <i>it</i></p>", "x **bold** *it*\n"),
        ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>e", "- a\n- b\n  - c\n- d\n\ne\n"),
        ("<ol><li>a</li><li><p>b</p><p>more</p></li></ol>", "1. a\n2. b\n\n  more\n"),
        ("<blockquote>said<blockquote>before</blockquote></blockquote>", "> said\n\n> > before\n"),
        ("<pre>  a\n    b &lt; c\n</pre>", "```\n  a\n    b < c\n```\n"),
        ("<pre>```</pre>", "````\n```\n````\n"),
        ("<table><tr><th>k<th>v</tr><tr><td>1<td>a|b</table>", "| k | v |\n| --- | --- |\n| 1 | a\\|b |\n"),
        ("<table><tr><td>laid out</td></tr></table>", "laid out\n"),
        ('<a href="c?x=1">in</a>', "[in](https://example.org/a/c?x=1)\n"),
        ('<a href="#top">up</a> <a href="javascript:x()">do</a>', "up do\n"),
        ('<img src=/p.png alt="A  tide"><img src=x>', "![A tide](https://example.org/p.png)\n"),
        ("a<hr>b", "a\n\n---\n\nb\n"),
        ("<script>x</script><style>y</style><template>z</template>", ""),
        ("<nav>only this</nav>", "only this\n"),
        ("<p>x</p><footer>f</footer><aside>s</aside>", "x\n"),
        ("</p></ul></blockquote></pre></a></td></tr>x", "x\n"),
        ("<html><head><title>t</title><p>no head is closed", "no head is closed\n"),
        ("<head><title>t<body><p>x", "x\n"),
        ("<svg><title>t</title></svg>x", "x\n"),
    ],
)
def test_the_text_of_a_page_is_kept_without_its_decoration(page: str, text: str) -> None:
    assert converted(page) == text


def test_where_a_page_names_its_content_the_rest_is_left_out() -> None:
    content = "word " * 60
    assert converted(f"<div>menu</div><main><p>{content}</p></main><div>ads</div>") == f"{content.strip()}\n"
    assert "menu" in converted("<div>menu</div><main><p>short</p></main>")


@given(st.text(alphabet=st.sampled_from("<>/abp trdliuo1=\"'&;!-\n"), max_size=200))
def test_the_converter_handles_any_page(page: str) -> None:
    text = converted(page)
    assert text == "" or (text.endswith("\n") and text[0] != "\n" and "\n\n\n" not in text)


@given(
    st.lists(
        st.sampled_from(["<table>", "<tr>", "<td>", "<ul>", "<li>", "<a href=x>", "</a>", "</ul>", "<pre>", "w1 "])
    )
)
def test_no_word_of_a_page_gets_lost_however_it_is_nested(parts: list[str]) -> None:
    assert converted("".join(parts)).count("w1") == parts.count("w1 ")


@pytest.mark.anyio
async def test_the_child_bounds_what_comes_out_and_says_so() -> None:
    report, text = await made(b"<title> A\n title</title>" + "ü".encode() * 5000, bytes=1001)
    assert report == {"title": "A title", "cut": True, "by": "tidegate"}
    assert text == "ü" * 500


@pytest.mark.anyio
async def test_trafilatura_makes_the_text_where_it_is_installed(tmp_path: Path) -> None:
    """And the converter of our own where it finds little or nothing, or a part of it is missing."""
    (tmp_path / "trafilatura.py").write_text(
        "def extract(page, *, url, output_format, **options):\n"
        "    return f'{output_format} of {url} ' * page.count('article') or None\n"
    )
    report, text = await made(b"article" * 50, trafilatura=str(tmp_path))
    assert (report["by"], text) == ("trafilatura", f"markdown of {URL} " * 50)
    for page in (b"<p>x</p>", b"<p>article</p>"):
        report, text = await made(page, trafilatura=str(tmp_path))
        assert (report["by"], text) == ("tidegate", f"{page[3:-4].decode()}\n")
    (tmp_path / "trafilatura.py").write_text("import no_such_part")
    report, text = await made(b"<p>x</p>", trafilatura=str(tmp_path))
    assert (report["by"], text) == ("tidegate", "x\n")


@pytest.mark.anyio
async def test_the_real_trafilatura_works_within_the_limits_of_a_child() -> None:
    found = pytest.importorskip("trafilatura", reason="the extra `web` is not installed")
    words = "".join(
        f"<p>Tide {n} comes in by itself, and goes out again, whatever is said of it.</p>" for n in range(30)
    )
    body = f"<nav>menu</nav><article><h1>Tides</h1>{words}</article><footer>imprint</footer>"
    page = f"<html><head><title>T</title></head><body>{body}</body></html>".encode()
    report, text = await made(page, trafilatura=str(Path(found.__file__).parent.parent))
    assert (report["by"], report["title"]) == ("trafilatura", "T")
    assert "# Tides" in text and "imprint" not in text
