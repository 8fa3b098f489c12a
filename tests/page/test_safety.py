"""Text stays text: a model's output can neither run, nor load anything, nor disguise itself."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import say

ATTEMPTS = [
    "<script>window.broken = 1</script>",
    "<img src=x onerror=window.broken=1>",
    "<svg onload=window.broken=1></svg><iframe srcdoc='<script>parent.broken=1</script>'></iframe>",
    "[press](javascript:window.broken=1) [press](JaVaScRiPt:window.broken=1) [press](&#106;avascript:window.broken=1)",
    "[press](java\tscript:window.broken=1) [press]( javascript:window.broken=1)",
    "[press](\x01javascript:window.broken=1)",
    "[press](data:text/html,<script>parent.broken=1</script>) [press](vbscript:x) [press](file:///etc/passwd)",
    "![picture](https://elsewhere.invalid/pixel.png) ![x](javascript:window.broken=1)",
    '[a](https://fine.example/" onmouseover="window.broken=1)',
    "<https://fine.example/><b onclick=window.broken=1>",
    "```html\n<script>window.broken = 1</script>\n```",
    "`<img src=x onerror=window.broken=1>` **<img src=x onerror=window.broken=1>**",
    "| <img src=x onerror=window.broken=1> | b |\n|---|---|\n| <script>window.broken=1</script> | [x](javascript:1) |",
    "# <img src=x onerror=window.broken=1>\n> <script>window.broken=1</script>\n- <script>window.broken=1</script>",
    '{"type": "img", "props": {"src": "x", "onerror": "window.broken=1"}, "constructor": null}',
]


def test_a_script_in_an_answer_stays_text(page: Page) -> None:
    """Every attempt, in one answer, is shown as text and has no effect; no request is made for it."""
    say(page, "say " + "\n\n".join(ATTEMPTS))
    answer = page.locator(".answer .markdown")
    expect(answer).to_contain_text("<script>window.broken = 1</script>")
    expect(answer).to_contain_text("<img src=x onerror=window.broken=1>")
    assert answer.locator("script, img, svg, iframe, object, embed, form, input, style, link").count() == 0
    attributes: list[str] = page.evaluate(
        "[...document.querySelectorAll('.answer *')].flatMap((e) => [...e.attributes].map((a) => a.name))"
    )
    assert not {name for name in attributes if name.startswith("on")}
    links: list[str] = page.evaluate("[...document.querySelectorAll('.answer a')].map((a) => a.protocol)")
    assert set(links) <= {"http:", "https:"}
    for link in answer.get_by_text("press").all():
        link.click(trial=False, timeout=5_000)
    answer.hover()
    assert page.evaluate("window.broken") is None


def test_a_users_text_is_shown_unchanged(page: Page) -> None:
    """The user's own text is never markup."""
    say(page, "say <b>x</b> **y**")
    assert page.locator(".mine .plain").inner_text() == "say <b>x</b> **y**"
    assert page.locator(".mine b, .mine strong").count() == 0


def test_a_title_is_text_too(page: Page) -> None:
    """In the list and the header too."""
    say(page, "say x")
    page.locator("#composer").fill("/title <img src=x onerror=window.broken=1>")
    page.locator("#composer").press("Enter")
    expect(page.locator("header h2")).to_have_text("<img src=x onerror=window.broken=1>")
    assert page.locator("header img, .entries img").count() == 0
    assert page.evaluate("window.broken") is None


def test_a_title_reorders_nothing_beside_it(page: Page) -> None:
    """Characters that change the direction of text have no effect beyond the title, and none in the window's title."""
    say(page, "say x")
    page.locator("#composer").fill("/title a\u202eb\u2066c")
    page.locator("#composer").press("Enter")
    expect(page).to_have_title("abc · Tidegate")
    for place in ("header h2", ".entry-title"):
        assert page.locator(place).first.evaluate("(e) => getComputedStyle(e).display") == "block"


def parsed(page: Page, text: str) -> Any:
    return page.evaluate("async (text) => (await import('/static/markdown.js')).parse(text)", text)


def inline(page: Page, text: str) -> Any:
    return page.evaluate("async (text) => (await import('/static/markdown.js')).inline(text)", text)


def address(page: Page, text: str) -> Any:
    return page.evaluate("async (text) => (await import('/static/markdown.js')).safeAddress(text)", text)


def test_only_plain_web_addresses_become_links(page_of_record: Page) -> None:
    """Absolute http and https, without a user name that disguises the host."""
    assert address(page_of_record, "https://example.org/a?b=c#d") == "https://example.org/a?b=c#d"
    assert address(page_of_record, "HTTP://EXAMPLE.org") == "http://example.org/"
    for bad in (
        "javascript:alert(1)",
        "//example.org",
        "/relative",
        "data:text/html,x",
        "https://example.org@evil.example/",
        "https://user:word@evil.example/",
        "https://",
        "http:/example.org",
        "\thttps://example.org",
        "ftp://example.org",
        "blob:https://example.org/x",
    ):
        assert address(page_of_record, bad) is None, bad


def test_the_usual_markdown_is_understood(page_of_record: Page) -> None:
    """Paragraphs, code, emphasis, lists, links, headings, quotes, tables."""
    text = (
        "# Title #\n\none\ntwo\n\n```py\nx = 1\n```\n- a\n  - b\n- c\n\n1. d\n2. e\n\n> q\n\n|a|b|\n|-|-|\n|1|2|\n\n---"
    )
    blocks = parsed(page_of_record, text)
    assert [block["kind"] for block in blocks] == [
        "heading", "paragraph", "pre", "list", "list", "quote", "table", "rule",
    ]  # fmt: skip
    assert blocks[0]["text"] == "Title"
    assert blocks[1]["text"] == "one\ntwo"
    assert (blocks[2]["language"], blocks[2]["text"]) == ("py", "x = 1")
    assert [len(item) for item in blocks[3]["items"]] == [2, 1]
    assert blocks[4]["ordered"] and len(blocks[4]["items"]) == 2
    assert blocks[6]["rows"] == [["1", "2"]]
    nodes = inline(page_of_record, r"a **b** *c* `d*` snake_case_name \*e\* 2 * 3 * 4 (https://x.example/y).")
    assert [node["kind"] for node in nodes if isinstance(node, dict)] == ["strong", "em", "code", "link"]
    assert "".join(node for node in nodes if isinstance(node, str)) == "a    snake_case_name *e* 2 * 3 * 4 ()."
    assert nodes[-2] == {"kind": "link", "address": "https://x.example/y", "nodes": ["https://x.example/y"]}


def test_an_unfinished_code_block_is_shown_as_code(page_of_record: Page) -> None:
    """Text is rendered while it arrives."""
    assert [block["kind"] for block in parsed(page_of_record, "so:\n```js\nlet x")] == ["paragraph", "pre"]


@pytest.mark.parametrize(
    "text",
    [
        "*" * 50_000,
        "_a" * 25_000,
        "`" * 1_000 + "a`" * 20_000,
        "[" * 50_000,
        "[a](" * 15_000,
        "![](" * 15_000,
        "> " * 25_000,
        "- " * 25_000,
        "\n".join("  " * depth + "- x" for depth in range(300)),
        "#" * 50_000,
        "# " + " " * 50_000 + "x",
        "|" * 25_000 + "\n" + "|-" * 25_000,
        "https://" * 8_000,
        "**a *b " * 8_000,
        "\\" * 50_000,
        "```\n" * 12_000,
    ],
    ids=lambda text: text[:6].replace("\n", " "),
)
def test_no_text_blocks_the_page(page_of_record: Page, text: str) -> None:
    """The time is about linear in the text, whatever it is."""
    spent = """async (text) => {
        const { parse, inline } = await import('/static/markdown.js');
        const spend = (text) => {
            const start = performance.now();
            const walk = (value) => {
                if (Array.isArray(value)) value.forEach(walk);
                else if (value && typeof value === 'object') {
                    if (typeof value.text === 'string' && value.kind !== 'pre') inline(value.text);
                    walk(value.blocks); walk(value.items);
                }
            };
            walk(parse(text));
            inline(text);
            return performance.now() - start;
        };
        spend(text.slice(0, 2000));
        return Math.min(spend(text), spend(text));
    }"""
    # A quadratic walk over 50,000 characters takes many seconds; a linear one takes milliseconds.
    assert page_of_record.evaluate(spent, text) < 3_000
