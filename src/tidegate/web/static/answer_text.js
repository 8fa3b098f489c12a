// Renders a Markdown text, complete or still growing. In a growing text, blocks that later text cannot change are
// rendered once, and only the last one is rendered again. A long list, table or block of code is settled in parts, and
// any other very long block is divided, so the time for a piece does not depend on the length of the text before it.

import { addCopyButtons, formatCode, formatMath } from "./formatting.js";
import { parse, render } from "./markdown.js";
import { html, useLayoutEffect, useRef } from "./ui.js";

const LONGEST_BLOCK = 2_000; // characters of a block, above which its complete parts are settled
const LONGEST_UNDIVIDED = 10_000; // characters of a block without such parts, above which it is divided anywhere
const LONGEST_HEAD = 500; // characters of the lines that are repeated for each part: a table's head, a fence's first line
const LONGEST_PIECE = 10_000; // characters rendered at a time
const LONGEST_FIRST = 60_000; // characters; of a longer text, only the end is shown while it grows
const MOST_PARTS = 1_000; // blocks shown of a growing text, and parts shown of its last block: the last ones

/** The blocks of the outermost level: the token that begins each, and the tokens in it. */
function outerBlocks(tokens) {
  const blocks = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) blocks.push({ token, line: token.map[0], inner: [] });
    else if (token.level > 0) blocks.at(-1).inner.push(token);
  }
  return blocks;
}

/** Where a long block may be divided: the kind of its parts, a line, and the text to repeat before the next part. */
function division({ token, line, inner }, unfinished, textOf) {
  if (token.type.endsWith("_list_open")) {
    const last = inner.findLast(({ type, level }) => type === "list_item_open" && level === 1).map[0];
    return last > line && last < unfinished ? { kind: "list", line: last, head: "" } : null;
  }
  const repeated = { table_open: 2, fence: 1 }[token.type];
  if (!repeated || unfinished <= line + repeated) return null;
  const head = textOf(line, line + repeated);
  return head.length > LONGEST_HEAD ? null : { kind: token.type === "fence" ? "code" : "table", line: unfinished, head };
}

/** How much of the text can be settled: its length, and `kind` and `head` if this ends within a block; or null. */
function settleable(tokens, text) {
  const blocks = outerBlocks(tokens);
  if (!blocks.length) return null;
  const lines = [0, ...Array.from(text.matchAll(/\r\n?|\n/g), (end) => end.index + end[0].length)];
  const unfinished = lines.length - 1; // this line may still change; a block that begins in it may prove to be none
  const last = blocks.at(-1).line < unfinished ? blocks.at(-1) : (blocks.at(-2) ?? blocks[0]);
  if (last !== blocks[0]) return { length: lines[last.line] };
  if (text.length <= LONGEST_BLOCK) return null;
  const part = division(last, unfinished, (from, to) => text.slice(lines[from], lines[to]));
  if (part) return { length: lines[part.line], kind: part.kind, head: part.head };
  if (text.length <= LONGEST_UNDIVIDED) return null;
  return { length: lines[unfinished] || text.length };
}

const INSIDE = { list: (block) => block, table: (block) => block.querySelector("tbody"), code: (block) => block.querySelector("code") };

/** Shows a growing text in an element. */
class GrowingText {
  #element;
  #text = "";
  #settled = 0; // characters that are rendered for good
  #open = []; // nodes of the rest, which are rendered again
  #block = null; // {kind, head, inside, element}: the block that has settled parts and goes on
  #references = Object.create(null); // the link definitions in the settled text

  constructor(element) {
    this.#element = element;
  }

  show(text) {
    const isLong = text.length - this.#text.length > LONGEST_FIRST;
    if (isLong || !text.startsWith(this.#text)) this.#restart(isLong ? text.length - LONGEST_FIRST / 2 : 0);
    for (let end = Math.max(this.#text.length, this.#settled); end < text.length; ) {
      end = Math.min(end + LONGEST_PIECE, text.length);
      this.#text = text.slice(0, end);
      this.#draw();
    }
    this.#text = text;
  }

  #restart(start) {
    this.#element.replaceChildren();
    this.#settled = start;
    this.#text = "";
    this.#open = [];
    this.#block = null;
    this.#references = Object.create(null);
    this.#element.toggleAttribute("data-shortened", start > 0);
  }

  #draw() {
    for (const node of this.#open) node.remove();
    for (;;) {
      const head = this.#block?.head ?? "";
      const text = head + this.#text.slice(this.#settled);
      const env = { references: Object.create(this.#references) };
      const tokens = parse(text, env);
      const part = settleable(tokens, text);
      if (!part) {
        this.#open = this.#append(tokens, env);
        return;
      }
      this.#settle(text.slice(0, part.length), part);
      this.#settled += part.length - head.length;
    }
  }

  #settle(text, { kind, head }) {
    const env = { references: this.#references };
    const before = this.#block;
    const added = this.#append(parse(text, env), env);
    const element = before?.element ?? added[0];
    this.#block = kind ? { kind, head, element, inside: INSIDE[kind](element) } : null;
    if (before && !kind) formatCode(before.element);
    if (kind !== "code") for (const node of added) formatCode(node);
    for (const parent of [this.#element, this.#block?.inside]) {
      while (parent?.childElementCount > MOST_PARTS) {
        parent.firstElementChild.remove();
        this.#element.setAttribute("data-shortened", "");
      }
    }
  }

  /** Appends rendered blocks, the first of them to the block that goes on, if any. Returns the appended nodes. */
  #append(tokens, env) {
    const blocks = [...render(tokens, env).children];
    const parts = this.#block && blocks.length ? this.#partsOf(blocks.shift()) : [];
    this.#block?.inside.append(...parts);
    this.#element.append(...blocks);
    const added = [...parts, ...blocks];
    for (const node of added) {
      addCopyButtons(node);
      formatMath(node);
    }
    return added;
  }

  #partsOf(block) {
    const inside = INSIDE[this.#block.kind](block);
    if (this.#block.kind !== "code") return [...(inside?.children ?? [])];
    // Lines that are a box of their own are not laid out again with those after them.
    return [Object.assign(document.createElement("span"), { className: "lines", textContent: inside.textContent })];
  }
}

export function AnswerText({ text }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const env = {};
    box.current.replaceChildren(render(parse(text, env), env));
    for (const format of [addCopyButtons, formatMath, formatCode]) format(box.current);
  }, [text]);
  return html`<div class="markdown" ref=${box}></div>`;
}

export function GrowingAnswerText({ text }) {
  const box = useRef(null);
  const growing = useRef(null);
  useLayoutEffect(() => {
    growing.current ??= new GrowingText(box.current);
    growing.current.show(text);
  }, [text]);
  return html`<div class="markdown" ref=${box}></div>`;
}
