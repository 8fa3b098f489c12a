"""Text stays text: a model's output can neither run, nor load anything, nor disguise itself."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import Visit
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


def address(page: Page, text: str) -> Any:
    return page.evaluate("async (text) => (await import('/static/markdown.js')).safeAddress(text)", text)


def test_only_web_and_mail_addresses_become_links(page_of_record: Page) -> None:
    """Absolute http and https without a user name that disguises the host, and mailto."""
    assert address(page_of_record, "https://example.org/a?b=c#d") == "https://example.org/a?b=c#d"
    assert address(page_of_record, "HTTP://EXAMPLE.org") == "http://example.org/"
    assert address(page_of_record, "mailto:ada@example.org") == "mailto:ada@example.org"
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


MARKUP = [
    "<img src=x onerror=window.broken=1>",
    "<img src=/static/x onerror=window.broken=1 onload=window.broken=1>",
    "<svg/onload=window.broken=1>",
    "<svg><script>window.broken=1</script></svg>",
    "<svg><a xlink:href='javascript:window.broken=1'><text y=20>x</text></a></svg>",
    "<svg><animate onbegin=window.broken=1 attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=window.broken=1>#x'/></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src onerror=window.broken=1>'>",
    "<math><mi//xlink:href='data:x,<script>window.broken=1</script>'>",
    "<math><annotation-xml encoding='text/html'><img src onerror=window.broken=1></annotation-xml></math>",
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=window.broken=1>",
    "<math><maction actiontype='statusline#https://elsewhere.invalid' xlink:href='javascript:window.broken=1'>x",
    "<math href='javascript:window.broken=1'>press</math>",
    "<noscript><p title='</noscript><img src onerror=window.broken=1>'>",
    "<svg></p><style><a id='</style><img src onerror=window.broken=1>'>",
    "<svg><desc><![CDATA[</desc><script>window.broken=1</script>]]></svg>",
    "<template><script>window.broken=1</script></template><xmp><p title='</xmp><img src onerror=window.broken=1>'>",
    "<table><caption><svg><title><style><img src onerror=window.broken=1></style>",
    "<select><iframe></select><img src onerror=window.broken=1>",
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe><iframe src='javascript:parent.broken=1'></iframe>",
    "<object data='javascript:window.broken=1'></object><embed src='javascript:window.broken=1'>",
    "<a href='javascript:window.broken=1'>press</a><a href=' \x01javascript:window.broken=1'>press</a>",
    "<a href='java\tscript:window.broken=1'>press</a>",
    "<a href='data:text/html,<script>window.broken=1</script>'>press</a>",
    "<a href='https://example.org/' ping='https://elsewhere.invalid/' onclick='window.broken=1' target=_self>x</a>",
    "<base href='https://elsewhere.invalid/'><meta http-equiv=refresh content='0;url=https://elsewhere.invalid/'>",
    "<link rel=stylesheet href='https://elsewhere.invalid/x.css'><style>@import 'https://elsewhere.invalid/x';</style>",
    "<p style='background:url(https://elsewhere.invalid/x)'>x</p><body background='https://elsewhere.invalid/x'>",
    "<form action='https://elsewhere.invalid/'><input name=x><button formaction='javascript:window.broken=1'>press",
    "<form id=document><input name=getElementById><input name=cookie></form><img name=body>",
    "<a id=broken></a><a id=broken name=x href='https://example.org/'></a>",
    "<form name=DOMPurify><input name=sanitize></form>",
    "<video src='https://elsewhere.invalid/v' onerror=window.broken=1><source src=x onerror=window.broken=1></video>",
    "<picture><source srcset='https://elsewhere.invalid/p'><img src=x></picture><audio src='https://elsewhere.invalid/a'>",
    "<input type=image src='https://elsewhere.invalid/i'><input autofocus onfocus=window.broken=1>",
    "<details open ontoggle=window.broken=1><summary>x</summary></details><marquee onstart=window.broken=1>x</marquee>",
    "<div popover onbeforetoggle=window.broken=1>x</div><dialog open onclose=window.broken=1>x</dialog>",
    "<custom-element onclick=window.broken=1 is=x>x</custom-element><p is=x-y>x</p><slot onslotchange=window.broken=1>",
    "<div><template shadowrootmode=open><script>window.broken=1</script></template></div>",
    "<!--><img src onerror=window.broken=1>--><![CDATA[><img src onerror=window.broken=1>]]><?xml?><img src=x>",
    "<span class='math' onclick=window.broken=1 data-style='background:url(https://elsewhere.invalid/)'>x</span>",
    "<math><mrow data-style='background-color:url(https://elsewhere.invalid/);position:fixed;inset:0'>x</mrow></math>",
]
FORMULAS = [
    r"$\href{javascript:window.broken=1}{press}$ $\url{javascript:window.broken=1}$",
    r"$\includegraphics{https://elsewhere.invalid/x.png}$ $\class{modal}{x}$ $\id{broken}{x}$ $\style{color:red}{x}$",
    r"$\text{<img src=x onerror=window.broken=1>}$ $\text{\" onclick=\"window.broken=1}$ $\unicode{<script>}$",
    r"$\color{red;background:url(https://elsewhere.invalid/)}{x}$ $\data{onclick=window.broken=1}{x}$",
    r"$\def\a{\a\a}\a$ $\def\a#1{\a{#1#1}}\a{x}$",
]
INSERTED = """async ([texts, isMarkup]) => {
  const { parse, render, sanitized } = await import('/static/markdown.js');
  const { formatCode, formatMath } = await import('/static/formatting.js');
  const shown = document.createElement('div');
  shown.className = 'markdown';
  document.body.append(shown);
  for (const text of texts) {
    const nodes = isMarkup ? [sanitized(text), sanitized(text, { math: true })] : [render(parse(text))];
    const part = document.createElement('section');
    part.append(...nodes);
    shown.append(part);
    formatMath(part);
    formatCode(part);
  }
  for (const element of shown.querySelectorAll('*')) element.dispatchEvent(new Event('click', { bubbles: false }));
  return new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(shown.innerHTML)), 500));
}"""
CLEAN = """() => {
  const shown = document.querySelector('.markdown');
  const elements = [...shown.querySelectorAll('*')];
  const attributes = elements.flatMap((element) => [...element.attributes].map(({ name }) => name));
  return {
    broken: window.broken ?? null,
    elements: [...new Set(elements.map(({ localName }) => localName))],
    attributes: [...new Set(attributes)],
    addresses: elements.map((element) => element.getAttribute('href')).filter((address) => address !== null),
    styles: elements.map((element) => element.getAttribute('style') ?? ''),
    intact: document.getElementById instanceof Function && document.body.localName === 'body',
  };
}"""
HARMFUL_ELEMENTS = {
    "script", "style", "img", "svg", "iframe", "object", "embed", "base", "meta", "link", "form", "button", "template",
    "video", "audio", "source", "picture", "select", "textarea", "noscript", "maction", "annotation-xml", "mglyph",
    "use", "animate",
}  # fmt: skip
HARMFUL_ATTRIBUTES = {
    "id",
    "name",
    "style",
    "src",
    "srcset",
    "srcdoc",
    "action",
    "formaction",
    "ping",
    "is",
    "xlink:href",
}


@pytest.mark.parametrize(
    ("texts", "is_markup"),
    [(MARKUP, True), (MARKUP + ATTEMPTS, False), ([f"> - | {text} |\n" for text in MARKUP], False), (FORMULAS, False)],
    ids=["sanitised", "in a text", "nested in a text", "formulas"],
)
def test_no_markup_runs_a_script_or_leaves_the_page(visit: Visit, texts: list[str], is_markup: bool) -> None:
    """The sanitiser alone removes what the parser would never let through: scripts, handlers, addresses, styles, names
    that hide properties of the document, and markup that changes its meaning when it is parsed again."""
    page = visit.page
    page.on("popup", lambda popup: visit.console_errors.append("opened a window"))
    before = len(visit.requests)
    assert page.evaluate(INSERTED, [texts, is_markup])
    clean = page.evaluate(CLEAN)
    assert clean["broken"] is None and clean["intact"]
    assert not HARMFUL_ELEMENTS & set(clean["elements"])
    # Styles of formulas are set by the page, from a list of properties.
    assert not (HARMFUL_ATTRIBUTES - ({"style"} if texts is FORMULAS else set())) & set(clean["attributes"])
    assert not [style for style in clean["styles"] if "url" in style or "position" in style]
    assert not [name for name in clean["attributes"] if name.startswith("on")]
    assert all(address.startswith(("http://", "https://", "mailto:")) for address in clean["addresses"])
    asked = {url.rpartition("/static/")[2] for url in visit.requests[before:]}
    assert asked <= {
        "formatting_worker.js",
        "vendor/temml.js",
        "vendor/temml.css",
        "vendor/Temml.woff2",
        "vendor/highlight.js",
    }
    if is_markup:
        visit.ignore_errors("Content Security Policy")  # the policy is a third barrier, for what the sanitiser parses
