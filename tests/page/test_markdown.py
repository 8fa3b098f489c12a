"""How answers look: Markdown, tasks, mathematics, code, direction of text; complete and while they arrive."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, TimeoutError, expect

from tests.page.browser import Visit
from tests.page.conftest import say
from tests.page.gateway import Gateway

RENDERED = """async (text) => {
  const { parse, render } = await import('/static/markdown.js');
  const shown = document.createElement('div');
  const env = {};
  shown.append(render(parse(text, env), env));
  return shown.innerHTML;
}"""


def rendered(page: Page, text: str) -> str:
    return str(page.evaluate(RENDERED, text))


def test_the_usual_markdown_is_rendered(page_for_text: Page) -> None:
    """Emphasis, lists, quotes, headings below those of the page, line breaks, strikethrough, bare addresses."""
    assert rendered(page_for_text, "a **b** *c* ~~d~~ `e*` snake_case_name\nf<br>g") == (
        '<p dir="auto">a <strong>b</strong> <em>c</em> <s>d</s> <code>e*</code> snake_case_name<br>\nf<br>\ng</p>'
    )
    assert (
        rendered(page_for_text, "3. a\n4. b").replace("\n", "") == '<ol start="3" dir="auto"><li>a</li><li>b</li></ol>'
    )
    headings = rendered(page_for_text, "# a\n## b\n### c\n###### d")
    assert re.findall(r"<(h\d)", headings) == ["h4", "h5", "h6", "h6"]
    assert "<blockquote" in rendered(page_for_text, "> q")
    assert '<a href="https://x.example/y"' in rendered(page_for_text, "(https://x.example/y).")


def test_links_open_safely_and_pictures_are_links(page_for_text: Page) -> None:
    """In a new tab that knows nothing of this one; no picture is loaded."""
    safe = 'target="_blank" rel="noopener noreferrer nofollow"'
    assert (
        rendered(page_for_text, "[a](https://x.example)")
        == f'<p dir="auto"><a href="https://x.example" {safe}>a</a></p>'
    )
    assert rendered(page_for_text, "![a](https://x.example/p.png)") == (
        f'<p dir="auto"><a href="https://x.example/p.png" {safe}>a</a></p>'
    )
    assert rendered(page_for_text, "[![a](https://x.example/p)](https://y.example/)").count("<a ") == 1
    assert f'<a href="mailto:a@b.example" {safe}>' in rendered(page_for_text, "<mailto:a@b.example>")
    for bad in ("[a](/relative)", "[a](ftp://x.example)", "![a](data:image/png;base64,AAAA)"):
        assert "<a" not in rendered(page_for_text, bad)


def test_tables_are_aligned_and_tasks_are_checked(page_for_text: Page) -> None:
    """Columns as the text says; a task's box says what it means and cannot be changed."""
    table = rendered(page_for_text, "| a | b | c | d |\n|:-|-:|:-:|-|\n| 1 | 2 | 3 | 4 |")
    assert re.findall(r"<t[hd]\b([^>]*)>", table) == [
        ' scope="col" class="left"', ' scope="col" class="right"', ' scope="col" class="center"', ' scope="col"',
        ' class="left"', ' class="right"', ' class="center"', "",
    ]  # fmt: skip
    tasks = rendered(page_for_text, "- [x] a\n- [ ] b")
    assert re.findall(r"<input[^>]*>", tasks) == [
        '<input type="checkbox" disabled="" checked="" aria-label="Done">',
        '<input type="checkbox" disabled="" aria-label="Not done">',
    ]


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("$x$ and $$y$$ and \\(z\\) and \\[w\\]", ["$x$", "$$y$$", "\\(z\\)", "\\[w\\]"]),
        ("$$\na\n\n= b\n+ c\n$$", ["$$\na\n\n= b\n+ c\n$$"]),
        ("\\[\nx\n\\]\nafter", ["\\[\nx\n\\]"]),
        ("- item\n\n  $$\n  x\n  $$", ["$$\nx\n$$"]),
        ("**$a_1$** and $b_1 * c$ and *$d$*", ["$a_1$", "$b_1 * c$", "$d$"]),
        ("| $a$ |\n|---|\n| \\(b\\) |", ["$a$", "\\(b\\)"]),
        ("It costs $5 and $6.", []),
        ("Between $5 and $6, or US$7 and 8$.", []),
        ("$20,000/$30,000, $ 5 $, \\$5 and 6\\$, $$$$, `$x$`", []),
        ("An unclosed $x, \\(y, \\[z and $$w", []),
        ("```\n$x$\n$$\ny\n$$\n```", []),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:20],
)
def test_formulas_are_recognised_and_prices_are_not(page_for_text: Page, text: str, formulas: list[str]) -> None:
    """With all four pairs of delimiters, and never in code."""
    found = re.findall(r'class="math[^>]*>([^<]*)<', rendered(page_for_text, text))
    assert [unescape(formula) for formula in found] == formulas


SAMPLE = """# Report

Some **bold** text with $e^{i\\pi} + 1 = 0$ and a [link][l].

[l]: https://x.example/

| name | amount |
|:-----|-------:|
| one  |   1.50 |

- [x] done
- [ ] open
  1. nested

$$
\\int_0^1 \\frac{x}{\\sqrt{2}} dx
$$

```python
def main(count: int) -> None:
    print("hello")  # says hello
```

```diff
-old
+new
```

> A quote

مرحبا بالعالم

- עברית
"""


def test_mathematics_code_and_diffs_are_formatted(visit: Visit) -> None:
    """As MathML and with highlighting, by libraries that are loaded only when a text needs them."""
    page = visit.page
    say(page, "say no more than **words**")
    libraries = ("formatting_worker", "temml", "highlight")
    assert not [url for url in visit.requests if any(name in url for name in libraries)]
    say(page, f"say {SAMPLE}")
    answer = page.locator(".answer").last
    expect(answer.locator("math")).to_have_count(2)
    expect(answer.locator("math mfrac msqrt")).to_have_count(1)
    expect(answer.locator(".language-python .hljs-keyword").first).to_have_text("def")
    expect(answer.locator(".language-diff .hljs-deletion")).to_have_text("-old")
    expect(answer.locator(".language-diff .hljs-addition")).to_have_text("+new")
    assert all(any(name in url for url in visit.requests) for name in libraries)


def test_a_formula_that_is_not_valid_stays_as_it_was_written(page: Page) -> None:
    """And the next one is formatted."""
    say(page, "say $\\frac{a$ and $x$ and\n\n```nosuchlanguage\nx\n```")
    expect(page.locator(".answer math")).to_have_count(1)
    expect(page.locator(".answer p .math").first).to_have_text("$\\frac{a$")


def test_code_is_copied_by_a_button_with_a_name(
    new_visit: Callable[..., Visit], signed_in: BrowserContext, gateway: Gateway
) -> None:
    """Exactly as it was written."""
    permissions = ["clipboard-read", "clipboard-write"]
    page = new_visit(storage_state=signed_in.storage_state(), permissions=permissions).page
    page.goto(gateway.origin + "/")
    say(page, "say so:\n\n```python\nif x < 1:\n\tprint('<b>')\n```")
    expect(page.locator(".answer .hljs-keyword").first).to_be_visible()
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Code copied")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "if x < 1:\n\tprint('<b>')\n"


def test_text_has_the_direction_of_its_language(page: Page) -> None:
    """Each block its own; code and formulas stay left to right."""
    say(page, "say English\n\nمرحبا `x` بالعالم\n\n- עברית\n- English\n\n| שם |\n|---|\n| x |\n\n```\nאב\n```")
    direction = "(element) => getComputedStyle(element).direction"
    blocks = page.locator(".answer .markdown > *").all()
    assert [block.evaluate(direction) for block in blocks] == ["ltr", "rtl", "rtl", "rtl", "ltr"]
    assert page.locator(".answer table").evaluate(direction) == "rtl"


def test_wide_blocks_scroll_inside_themselves_and_can_be_focused(page: Page) -> None:
    """By keyboard, with a name for screen readers; the page does not become wider."""
    wide = "x" * 600
    cells = " | ".join("z" * 40)
    table = f"| {cells} |\n|{'---|' * 40}\n| {cells} |"
    say(page, f"say ```\n{wide}\n```\n\n{table}\n\n$${'+'.join('x' * 300)}$$")
    for block in (page.locator(".answer pre"), page.locator(".answer .table")):
        block.focus()
        expect(block).to_be_focused()
        assert block.get_attribute("aria-label") in ("Code", "Table")
    expect(page.locator(".answer math")).to_have_count(1)
    assert page.locator(".answer pre").evaluate("(block) => block.scrollWidth > block.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    width = "(box) => box.scrollWidth <= box.clientWidth"
    assert page.locator(".transcript").evaluate(width)


GROW = """async ([text, step]) => {
  const { GrowingAnswerText, AnswerText } = await import('/static/answer_text.js');
  const { html, render } = await import('/static/ui.js');
  const box = document.createElement('div');
  document.body.append(box);
  let raw = 0;
  const sizes = [];
  const watcher = new MutationObserver(() => {});
  watcher.observe(box, { childList: true, subtree: true, characterData: true });
  for (let end = step; ; end += step) {
    render(html`<${GrowingAnswerText} text=${text.slice(0, end)} />`, box);
    const added = watcher.takeRecords().flatMap((record) => [...record.addedNodes]).filter((node) => node.isConnected);
    sizes.push(added.reduce((sum, node) => sum + node.textContent.length, 0));
    if (box.querySelector('script, img, style, iframe')) raw += 1;
    if (end >= text.length) break;
  }
  watcher.disconnect();
  const grown = box.textContent;
  render(html`<${AnswerText} text=${text} />`, box);
  const complete = box.textContent;
  render(null, box);
  box.remove();
  const without = (shown) => shown.replace(/\\s+/g, '');
  return { raw, isSame: without(grown) === without(complete), sizes };
}"""
LONG = {
    "paragraphs": "Some *text* with **bold** and `code`, on and on and on.\n\n" * 1_000,
    "one paragraph": "Some *text* with **bold** and `code`, on and on and on.\n" * 1_000,
    "list": "- an item with *text*\n- [x] a task\n" * 1_000,
    "nested list": "- an item\n  - with *another*\n\n    and a paragraph\n" * 1_000,
    "numbered list": "".join(f"{number}. item\n" for number in range(1, 3_000)),
    "table": "| a | b |\n|---|--:|\n" + "| cell one | 2 |\n" * 2_000,
    "code": "```js\n" + "let value = compute(17);\n" * 2_000 + "```\n\nafter\n",
    "quote": "> quoted *text* of some length\n" * 1_500,
    "mixed": SAMPLE * 80,
}


@pytest.mark.parametrize("name", LONG)
def test_the_work_for_a_piece_does_not_grow_with_the_text(page_for_text: Page, name: str) -> None:
    """Only the end of a growing answer is rendered again, whatever it consists of."""
    grown: dict[str, Any] = page_for_text.evaluate(GROW, [LONG[name], 50])
    sizes = grown["sizes"]
    assert len(sizes) > 500
    early, late = sizes[20:250], sizes[-250:]
    most = 12_000 if name in ("one paragraph", "quote") else 4_000
    assert max(late) <= most
    assert sum(late) <= 3 * sum(early) + most


def test_a_growing_text_becomes_the_complete_one(page_for_text: Page) -> None:
    """In pieces of any size, with nothing lost, repeated or interpreted as HTML in between."""
    texts = {name: text[:6_000] for name, text in LONG.items() if name != "mixed"} | {
        "sample": SAMPLE.replace("[l]: https://x.example/\n\n", ""),
        "markup": "<script>window.x=1</script>\n\n<img src=x>\n\n- <style>\n\n`<b>` <!-- x -->\n\n" * 3,
        "lines": "a\r\n\r\n- b\r\n- c\r\n\r\n```\r\nd\r\n```\r\ne",
    }
    for name, text in texts.items():
        for step in (7, 61):
            grown = page_for_text.evaluate(GROW, [text, step])
            assert grown["isSame"], (name, step)
            assert grown["raw"] == 0


def test_a_growing_text_keeps_what_is_settled(page: Page) -> None:
    """A reader may select text above the end while more arrives; a reset and a very long beginning are handled."""
    kept = """async () => {
      const { GrowingAnswerText } = await import('/static/answer_text.js');
      const { html, render } = await import('/static/ui.js');
      const box = document.createElement('div');
      document.body.append(box);
      const show = (text) => render(html`<${GrowingAnswerText} text=${text} />`, box);
      show('first\\n\\nsecond\\n\\nthi');
      const first = box.querySelector('p');
      show('first\\n\\nsecond\\n\\nthird');
      const isKept = first === box.querySelector('p');
      show('other');
      const afterReset = box.textContent;
      show('line\\n'.repeat(30_000) + 'the end');
      const isMarked = () => box.querySelector('[data-shortened]') !== null;
      const shortened = [box.textContent.length, isMarked(), box.textContent.slice(-7)];
      show('fresh');
      const fresh = [box.textContent, isMarked()];
      render(null, box);
      box.remove();
      return { isKept, afterReset, shortened, fresh };
    }"""
    seen = page.evaluate(kept)
    assert seen["isKept"] and seen["afterReset"] == "other" and seen["fresh"] == ["fresh", False]
    length, is_marked, end = seen["shortened"]
    assert length < 60_000 and is_marked and end == "the end"


HOSTILE = {
    "brackets": "[", "stars": "*", "underscores": "_a", "open emphasis": "**a *b ", "backticks": "a`", "pipes": "|",
    "quotation marks": "\"'", "quotes": "> ", "lists": "- ", "items": "- [ ] a\n", "numbers": "1. ", "links": "[a](",
    "pictures": "![](", "pictures with formulas": "![$](", "references": "[a][", "definitions": "[x]: y\n",
    "tags": "<a ", "breaks": "<br", "entities": "&a", "strikes": "~~a ", "backslashes": "\\", "dollars": "$a",
    "open formulas": "\\(", "blocks of formulas": "\\[\n", "open blocks": "$$\na\n\n", "fences": "```\n", "addresses": "https://",
    "hashes": "#", "empty rows": "|a\n|-\n" + "|\n" * 40, "spaces": " x" + " " * 50,
    "short rows": "|a" * 50 + "\n" + "|-" * 50 + "\n" + "a\n" * 100, "digits in a list": "- 1\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_blocks_the_page(page_for_text: Page, name: str) -> None:
    """The time is about linear: four times the text takes far less than sixteen times as long."""
    spent = """async (piece) => {
        const { parse, render } = await import('/static/markdown.js');
        const spend = (length, times) => {
            const text = piece.repeat(Math.ceil(length / piece.length)).slice(0, length);
            return Math.min(...Array.from({ length: times }, () => {
                const start = performance.now();
                render(parse(text, {}));
                return performance.now() - start;
            }));
        };
        spend(2_000, 1);
        const measured = [spend(10_000, 3), spend(40_000, 2)];
        piece = 'Some *text* with `code`.\\n\\n- a\\n';
        return [...measured, spend(40_000, 2)];
    }"""
    part, whole, ordinary = page_for_text.evaluate(spent, HOSTILE[name])
    assert whole <= 10 * part or whole <= 2 * ordinary, (part, whole, ordinary)


def test_a_formatter_that_does_not_end_is_ended(page: Page) -> None:
    """The page stays usable, the text stays as it was written, and after three attempts there is no further one."""
    endless = "onmessage = () => { for (;;); };"
    script = {"body": endless, "content_type": "text/javascript"}
    page.context.route("**/formatting_worker.js", lambda route: route.fulfill(**script))
    try:
        with page.expect_worker():
            say(page, "say $a$ $b$ $c$ $d$ $e$ $f$")
        with page.expect_worker():
            pass
        with page.expect_worker():
            expect(page.locator(".answer .math").first).to_have_text("$a$")
        while page.workers:
            expect(page.locator(".answer .math").first).to_have_text("$a$")
        with pytest.raises(TimeoutError), page.expect_worker(timeout=1_000):
            say(page, "say still here $g$")
        expect(page.locator(".answer .math").last).to_have_text("$g$")
        assert page.workers == []
    finally:
        page.context.unroute_all()
