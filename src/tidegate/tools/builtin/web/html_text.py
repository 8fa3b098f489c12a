"""A job for a child process: converts a web page to readable Markdown.

The output is the page's text in its original order, without scripts, styles and navigation. Headings, lists, tables,
quotations, code and links with absolute addresses are kept. The output has at most the requested number of bytes, and
the result says whether it was truncated. The job runs in a child process because a malicious page can make a parser use
a lot of time and memory. It uses the standard library or, if it is installed, trafilatura, which is better at finding
the main content.
"""

import importlib
import os
import re
import sys
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

_INPUT, _OUTPUT = 0, 1
_PIECE = 1024 * 1024
_LEAST_CONTENT = 200
"""If `main` or `article` has at least this many characters, the rest of the page is left out."""

_LEAST_CHOSEN = 500
"""Shorter results of trafilatura are not used, since it reduces short pages to a few words."""

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_META_BYTES = 4096
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,2000})", re.IGNORECASE)
_TITLE_CHARACTERS = 200
_NO_CHARACTER = re.compile(r"&#[0-9]{20,};?")  # the library's `int` refuses more than 4,300 digits
_SPACES = re.compile(r"[ \t\n\r\f]+")

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "select"})
_SILENT |= {"button", "textarea", "title"}
_AROUND = frozenset({"nav", "footer", "aside"})
_CONTENT = frozenset({"main", "article"})
_BLOCKS = frozenset({"address", "article", "aside", "body", "dd", "details", "dialog", "div", "dl", "dt", "fieldset"})
_BLOCKS |= {"figcaption", "figure", "footer", "form", "header", "html", "main", "nav", "p", "section", "summary"}
_BLOCKS |= {"table", "tbody", "tfoot", "thead", "caption"}
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`", "kbd": "`", "samp": "`", "del": "~~", "s": "~~"}
_DEEPEST = 20


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job. The order contains `url`, `charset` (as sent by the server, or empty), `bytes` (the maximum length
    of the output) and `trafilatura` (the folder from which to import it, or empty). The page is read from descriptor 0;
    the Markdown is written to descriptor 1. The result contains `title`, `cut`, and `by`, the converter that was
    used."""
    page = _NO_CHARACTER.sub("\ufffd", _decoded(_read(), order["charset"]))
    found = _TITLE.search(page)
    text, by = _with_trafilatura(page, order) if order["trafilatura"] else ("", "")
    if not text:
        text, by = _with_converter(page, order["url"]), "tidegate"
    data = text.encode("utf-8", "replace")
    kept = data[: order["bytes"]].decode("utf-8", "ignore").encode()
    _write(kept)
    return {"title": _title(found[1]) if found else "", "cut": len(data) > order["bytes"], "by": by}


def _with_trafilatura(page: str, order: dict[str, Any]) -> tuple[str, str]:
    sys.path.append(order["trafilatura"])
    try:
        extract = importlib.import_module("trafilatura").extract
    except ImportError:  # part of it is missing
        return "", ""
    text = extract(
        page,
        url=order["url"],
        output_format="markdown",
        include_links=True,
        include_tables=True,
        include_formatting=True,
        favor_recall=True,
    )
    return (str(text), "trafilatura") if text and len(text) >= _LEAST_CHOSEN else ("", "")


def _with_converter(page: str, url: str) -> str:
    converter = Converter(url)
    converter.feed(page)
    converter.close()
    return converter.text()


class Converter(HTMLParser):
    """Collects blocks of text during parsing. The converter counts open elements instead of building a tree, so
    elements that are never closed, or are closed twice, do little harm."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        # lint: allow the page is bounded. Separator, text, whether within the content, whether around it.
        self._blocks: list[tuple[str, str, bool, bool]] = []
        self._inline: list[str] = []
        self._open = dict.fromkeys(_SILENT | _AROUND | _CONTENT, 0)
        self._silent = 0
        self._heading = ""
        self._lists: list[int | None] = []  # the last number of each; None for an unnumbered list
        self._item = False
        self._after_item = False
        self._quotes = 0
        self._pre = 0
        self._links: list[tuple[str, int]] = []
        self._cells: list[str] | None = None
        self._rows = 0

    # -- parser events --

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":  # it closes everything that was left open before
            self._open |= dict.fromkeys(_SILENT, 0)
            self._silent = 0
        if tag in self._open:
            self._flush()
            self._open[tag] += 1
            self._silent += tag in _SILENT
        if self._silent:
            return
        given = {name: value or "" for name, value in attrs}
        if tag in _BLOCKS or tag in _HEADINGS or tag in ("ul", "ol", "li", "blockquote", "pre", "tr", "hr"):
            if self._cells is None or tag == "tr":
                self._flush()
            self._begin(tag, given)
        elif tag in ("td", "th"):
            self._end_cell()
            if self._cells is None:
                self._cells = []
        elif tag == "br":
            self._inline.append(" " if self._cells is not None else "\n")
        elif tag == "img":
            if alt := " ".join(given.get("alt", "").split()):
                self._inline.append(f"![{alt}]({self._address(given.get('src', ''))})")
        elif tag == "a":
            self._links.append((self._address(given.get("href", "")), len(self._inline)))
        elif tag in _MARKS and not self._pre:
            self._inline.append(_MARKS[tag])

    def handle_endtag(self, tag: str) -> None:
        if self._open.get(tag):
            self._flush()
            self._open[tag] -= 1
            self._silent -= tag in _SILENT
            return
        if self._silent:
            return
        if tag == "a":
            self._end_link()
        elif tag in ("td", "th"):
            self._end_cell(closed=True)
        elif tag in _MARKS:
            if not self._pre:
                self._inline.append(_MARKS[tag])
        elif tag in _BLOCKS or tag in _HEADINGS or tag in ("ul", "ol", "li", "blockquote", "pre", "tr"):
            if tag in ("tr", "table"):
                self._end_row()
            if self._cells is None:
                self._flush()
            self._end(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._inline.append(data if self._pre else _SPACES.sub(" ", data))

    # -- blocks --

    def _begin(self, tag: str, given: dict[str, str]) -> None:
        if tag in _HEADINGS:
            self._heading = _HEADINGS[tag]
        elif tag in ("ul", "ol"):
            if len(self._lists) < _DEEPEST:
                start = given.get("start", "")
                first = int(start) if start.isdecimal() and len(start) < 9 else 1
                self._lists.append(first - 1 if tag == "ol" else None)
        elif tag == "li":
            if self._lists and (number := self._lists[-1]) is not None:
                self._lists[-1] = number + 1
            self._item = True
        elif tag == "blockquote":
            self._quotes += 1
        elif tag == "pre":
            self._pre += 1
        elif tag == "hr":
            self._put("---")
        elif tag == "table":
            self._rows = 0
        elif tag == "tr":
            self._end_row()
            self._cells = []

    def _end(self, tag: str) -> None:
        if tag in _HEADINGS:
            self._heading = ""
        elif tag in ("ul", "ol"):
            if self._lists:
                self._lists.pop()
            self._item = False
            self._after_item = bool(self._lists)
        elif tag == "blockquote":
            self._quotes = max(0, self._quotes - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)

    def _end_link(self) -> None:
        if not self._links:
            return
        address, start = self._links.pop()
        words = " ".join("".join(self._inline[start:]).split())
        if start <= len(self._inline) and address and words and not self._pre:
            lead = " " if "".join(self._inline[start:])[:1].isspace() else ""
            self._inline[start:] = [f"{lead}[{words}]({address})"]

    def _end_cell(self, *, closed: bool = False) -> None:
        if self._cells is None:
            return
        words = " ".join("".join(self._inline).split())
        self._inline.clear()
        self._links.clear()
        if closed or words:
            self._cells.append(words.replace("|", "\\|"))

    def _end_row(self) -> None:
        if self._cells is None:
            return
        self._end_cell()
        cells, self._cells = self._cells, None
        # Pages that use tables for layout have rows with a single cell of plain text.
        if len(cells) == 1:
            self._put(cells[0])
        elif cells and any(cells):
            row = f"| {' | '.join(cells)} |"
            self._put(row if self._rows else f"{row}\n|{' --- |' * len(cells)}", joined=bool(self._rows))
            self._rows += 1

    def _flush(self) -> None:
        text = "".join(self._inline)
        self._inline.clear()
        self._links.clear()
        if self._cells is not None:
            self._end_row()
        if self._pre:
            text = text.strip("\n")
            if text.strip():
                fence = "````" if "```" in text else "```"
                self._put(f"{fence}\n{text}\n{fence}")
            return
        lines = [" ".join(line.split()) for line in text.split("\n")]
        text = "\n".join(line for line in lines if line)
        if text.strip("*`~ "):
            self._put(self._heading + text.replace("\n", " ") if self._heading else text)

    def _put(self, text: str, *, joined: bool = False) -> None:
        if self._lists:
            indent = "  " * (len(self._lists) - 1)
            number = self._lists[-1]
            mark = ("- " if number is None else f"{number}. ") if self._item else "  "
            joined = joined or (self._item and self._after_item)
            text = indent + mark + text.replace("\n", f"\n{indent}  ")
            self._item = False
        self._after_item = bool(self._lists)
        if self._quotes:
            mark = "> " * min(self._quotes, _DEEPEST)
            text = mark + text.replace("\n", f"\n{mark}")
        content = any(self._open[tag] for tag in _CONTENT)
        around = any(self._open[tag] for tag in _AROUND)
        self._blocks.append(("\n" if joined else "\n\n", text, content, around))

    def _address(self, text: str) -> str:
        try:
            whole = urljoin(self._url, text.strip())
        except ValueError:
            return ""
        usable = whole.startswith(("http://", "https://", "mailto:")) and not text.strip().startswith("#")
        return whole.replace(" ", "%20").replace(")", "%29").replace("\n", "") if usable else ""

    def text(self) -> str:
        """Returns the Markdown of the main content if the page marks it, otherwise of the whole page."""
        self._flush()
        self._silent = 0
        kept = [block for block in self._blocks if block[2] and not block[3]]
        if sum(len(block[1]) for block in kept) < _LEAST_CONTENT:
            kept = [block for block in self._blocks if not block[3]] or self._blocks
        return "".join(part for block in kept for part in block[:2]).lstrip("\n") + "\n" if kept else ""


def _title(text: str) -> str:
    return " ".join(unescape(text).split())[:_TITLE_CHARACTERS]


def _decoded(data: bytes, charset: str) -> str:
    # Imported by its bare name, since in the child process the module is not in a package.
    codec = importlib.import_module("charsets").codec
    found = _META.search(data[:_META_BYTES])
    declared = found[1].decode("ascii") if found else ""
    if codec(b"", declared).startswith("utf-16"):  # the declaration could not have been read as ASCII
        declared = ""
    return data.decode(codec(data, charset, declared), "replace")


def _read() -> bytes:
    pieces: list[bytes] = []
    place = 0
    while piece := os.pread(_INPUT, _PIECE, place):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_OUTPUT, view) :]
