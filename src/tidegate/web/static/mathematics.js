// A plugin of markdown-it for mathematics: $…$, $$…$$, \(…\) and \[…\]. Prices are not mathematics: an opening $ follows
// no letter or digit and is not followed by a space; a closing one follows no space and is not followed by a digit. The
// known plugins search for a closing delimiter again from each opening one, which takes quadratic time; here, each
// delimiter is searched for once, and a formula has a bounded number of lines.

const LONGEST = 5_000; // characters of a formula
const MOST_LINES = 100;
const CLOSING = { "$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]" };

/** The next place of a delimiter in the text of a paragraph. Remembered, so that all searches together are linear. */
function nextPlace(state, delimiter, from) {
  const known = (state.delimiterPlaces ??= {});
  if (!(known[delimiter] >= from)) {
    const found = state.src.indexOf(delimiter, from);
    known[delimiter] = found < 0 ? Number.POSITIVE_INFINITY : found;
  }
  return known[delimiter];
}

function opening(text, at) {
  if (text[at] === "$") return text[at + 1] === "$" ? "$$" : "$";
  const both = text.slice(at, at + 2);
  return both === "\\(" || both === "\\[" ? both : null;
}

function isPrice(text, start, end) {
  const isOpened = !/[\p{L}\p{N}$]/u.test(text[start - 1] ?? "") && !/\s/.test(text[start + 1]);
  const isClosed = !/\s/.test(text[end - 1]) && !/[\d$]/.test(text[end + 1] ?? "");
  return !isOpened || !isClosed;
}

function inlineFormula(state, silent) {
  const { src: text, pos: start } = state;
  const delimiter = opening(text, start);
  if (!delimiter) return false;
  const from = start + delimiter.length;
  const end = nextPlace(state, CLOSING[delimiter], from);
  if (end + delimiter.length > state.posMax || end - from > LONGEST || !text.slice(from, end).trim()) return false;
  if (delimiter === "$" && isPrice(text, start, end)) return false;
  const past = end + delimiter.length;
  if (!silent) push(state, "math_inline", text.slice(start, past), delimiter);
  state.pos = past;
  return true;
}

/** $$ or \[ at the beginning of a line, up to the line that ends with the closing delimiter. */
function blockFormula(state, startLine, endLine, silent) {
  const start = state.bMarks[startLine] + state.tShift[startLine];
  const delimiter = state.src.slice(start, start + 2);
  if ((delimiter !== "$$" && delimiter !== "\\[") || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const last = Math.min(endLine, startLine + MOST_LINES);
  for (let line = startLine; line < last; line += 1) {
    if (line > startLine && state.sCount[line] < state.blkIndent && !state.isEmpty(line)) return false;
    const text = state.src.slice(line === startLine ? start + 2 : state.bMarks[line], state.eMarks[line]);
    const place = text.indexOf(CLOSING[delimiter]);
    if (place < 0) continue;
    if (text.slice(place + 2).trim()) return false; // text after the formula: it is a part of a paragraph
    const source = state.getLines(startLine, line + 1, state.tShift[startLine], false).trim();
    if (source.length <= 4 || source.length > LONGEST || !source.slice(2, -2).trim()) return false;
    if (silent) return true;
    Object.assign(push(state, "math_block", source, delimiter), { block: true, map: [startLine, line + 1] });
    state.line = line + 1;
    return true;
  }
  return false;
}

function push(state, type, content, markup) {
  return Object.assign(state.push(type, "math", 0), { content, markup });
}

/** Renders each formula as its source in an element of the `math` class; formatting.js replaces it. */
export function mathematics(markdown) {
  const { escapeHtml } = markdown.utils;
  markdown.inline.ruler.before("escape", "mathematics", inlineFormula);
  markdown.block.ruler.after("blockquote", "mathematics", blockFormula, { alt: ["paragraph", "reference", "blockquote", "list"] });
  markdown.renderer.rules.math_inline = (tokens, at) => {
    const isDisplayed = tokens[at].markup === "$$" || tokens[at].markup === "\\[";
    return `<span class="math${isDisplayed ? " display" : ""}" dir="ltr">${escapeHtml(tokens[at].content)}</span>`;
  };
  markdown.renderer.rules.math_block = (tokens, at) => `<div class="math display" dir="ltr">${escapeHtml(tokens[at].content)}</div>`;
}
