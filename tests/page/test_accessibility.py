"""The page without a mouse, on a narrow screen, in both colour schemes, and with a screen reader."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.page.browser import Visit
from tests.page.conftest import mine, say, send
from tests.page.gateway import Gateway

STYLE = Path(__file__).parents[2] / "src/tidegate/web/static/style.css"


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    """Typing, line breaks, completion, new conversations, moving between conversations, stopping."""
    keys = page.keyboard
    expect(page.locator("#composer")).to_be_focused()
    keys.type("say one")
    keys.press("Shift+Enter")
    keys.type("two")
    keys.press("Enter")
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text("one\ntwo", use_inner_text=True)
    assert mine(page) == ["say one\ntwo"]
    keys.press("Control+k")
    expect(page.locator(".mine")).to_have_count(0)
    expect(page.locator("#composer")).to_be_focused()
    keys.type("/re")
    options = page.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    keys.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    second = options.nth(1).locator("b").inner_text()
    keys.press("Tab")
    expect(page.locator("#composer")).to_have_value(f"{second} ")
    keys.press("Control+a")
    keys.type("/")
    keys.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)
    keys.press("Control+a")
    keys.type("count to 100000")
    keys.press("Enter")
    expect(page.locator("#stop")).to_be_visible()
    keys.press("Escape")
    expect(page.locator("#stop")).to_have_count(0)
    keys.press("Alt+n")
    expect(page.locator(".mine")).to_have_count(0)
    entries = page.locator(".entries a")
    expect(entries.nth(0)).to_contain_text("count to 100000")
    expect(entries.nth(1)).to_contain_text("say one two")
    keys.press("Alt+ArrowDown")
    expect(page.locator(".mine .plain")).to_have_text("count to 100000")
    keys.press("Alt+ArrowDown")
    expect(page.locator(".mine .plain")).to_have_text("say one\ntwo", use_inner_text=True)


# Begins a new conversation, and types as soon as it is drawn; says what is in the box when the page has come to rest.
TYPED_AT_ONCE = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const drawn = new Promise((done) => {
    new MutationObserver((_, observer) => {
      if (document.querySelector(".mine")) return;
      observer.disconnect();
      document.execCommand("insertText", false, "at once");
      done();
    }).observe(document.body, { childList: true, subtree: true });
  });
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true }));
  await drawn;
  for (let drawn = 0; drawn < 4; drawn += 1) await frame();
  return document.querySelector("#composer").value;
}"""


def test_letters_typed_as_soon_as_a_conversation_is_rendered_are_kept(page: Page) -> None:
    """The message box is prepared before it is visible."""
    say(page, "say one")
    expect(page.locator("#composer")).to_be_focused()
    assert page.evaluate(TYPED_AT_ONCE) == "at once"


# How the focused element and the box around it look; then how they look without the focus, which comes back at once.
LOOKS = """() => {
  const e = document.activeElement, box = e.closest('.box') ?? e;
  const look = () => {
    const own = getComputedStyle(e);
    const outline = own.outlineStyle === 'none' ? '' : `${own.outlineStyle} ${own.outlineWidth} ${own.outlineColor}`;
    return [outline, getComputedStyle(box).borderColor];
  };
  const focused = look();
  e.blur();
  const plain = look();
  e.focus();
  return {name: e.id || e.className || e.tagName, focused, plain};
}"""


def test_tab_reaches_every_control_with_a_visible_focus(page: Page) -> None:
    """In the order of the page, and the focus is visible."""
    say(page, "what time is it")
    page.get_by_role("button", name="Signed-in browsers").focus()
    reached: list[str] = []
    for _ in range(4):
        page.keyboard.press("Tab")
        looks = page.evaluate(LOOKS)
        reached.append(looks["name"])
        assert looks["focused"] != looks["plain"], looks
        if looks["name"] == "composer":
            page.keyboard.type("x")  # without a word there is nothing to send
    assert reached == ["transcript", "SUMMARY", "composer", "send"]


def test_roles_and_names_are_there(page: Page) -> None:
    """Landmarks, a log, a polite announcer, a name for every control."""
    say(page, "what time is it")
    expect(page.get_by_role("navigation", name="Conversations")).to_be_visible()
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.get_by_role("log", name="Conversation")).to_be_visible()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.locator("#announcer")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#announcer")).to_contain_text("The clock says")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, a, select, textarea, input')].filter((e) =>"
        " !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []


def test_a_narrow_screen_has_everything(
    new_visit: Callable[..., Visit], signed_in: BrowserContext, gateway: Gateway
) -> None:
    """360 pixels wide, nothing overflows, and one press opens the list."""
    visit = new_visit(storage_state=signed_in.storage_state(), viewport={"width": 360, "height": 640}, has_touch=True)
    page = visit.page
    page.goto(gateway.origin + "/")
    say(page, "say " + "averylongwordwithoutanyspace" * 20 + "\n\n```\n" + "x" * 300 + "\n```")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    send(page, "count to 100000")
    expect(page.locator("#stop")).to_be_visible()
    for control in ("#busy", "#stop", "#send"):
        box = page.locator(control).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360, control
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_have_count(0)
    expect(page.locator("#sidebar")).to_be_hidden()
    page.locator("#menu").click()
    expect(page.locator("#menu")).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#new")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    page.locator("#menu").click()
    page.locator("#new").click()
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.locator(".mine")).to_have_count(0)


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme: str) -> None:
    """At least 4.5 to 1, on every background of text."""
    light, _, rest = STYLE.read_text().partition("@media (prefers-color-scheme: dark)")
    colours = _colours(light) if scheme == "light" else {**_colours(light), **_colours(rest)}
    grounds = {
        "text": ("ground", "side", "raised", "mine", "code"),
        "soft": ("ground", "side", "raised", "mine", "code"),
        "accent": ("ground", "side", "raised", "code"),
        "warn": ("ground", "raised", "warn-ground"),
        "on-accent": ("accent",),
        "good": ("code", "good-ground"),
        **{f"code-{kind}": ("code",) for kind in ("keyword", "string", "number", "title", "name")},
    }
    for text, backs in grounds.items():
        for back in backs:
            high, low = sorted((_luminance(colours[text]), _luminance(colours[back])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)
