// Markdown as models write it, parsed by markdown-it and sanitised by DOMPurify. HTML in a text stays text, except <br>.
// Nothing is fetched: an image becomes a link. Only absolute http, https and mailto addresses become links. The time
// grows at most linearly with the text: nesting, cells, and the length of a paragraph that is parsed are bounded.

import { mathematics } from "./mathematics.js";
import MarkdownIt from "./vendor/markdown-it.js";
import { tasklist } from "./vendor/tasklist.js";
import "./vendor/purify.js"; // sets the global DOMPurify

const DEEPEST = 20; // levels of nested lists, quotes and brackets
const LONGEST_INLINE = 10_000; // characters of one paragraph or cell; a longer one is shown without inline markup
const SPARE_CELLS = 100; // cells that a table may lack before it ends; each of them takes memory but no text

/** The URL to link to, or null if it is not an absolute http, https or mailto one. */
export function safeAddress(text) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    const address = new URL(text);
    // A user name in front of the host is a common way to disguise another host.
    return ["http:", "https:", "mailto:"].includes(address.protocol) && !address.username && !address.password ? address.href : null;
  } catch {
    return null;
  }
}

// -- parsing --------------------------------------------------------------------------------------------------------

const markdown = new MarkdownIt({ html: false, breaks: true, linkify: true, maxNesting: DEEPEST });
const { escapeHtml } = markdown.utils;
markdown.validateLink = (url) => safeAddress(url) !== null;
markdown.use(mathematics).use(tasklist, { label: false });

markdown.core.ruler.disable("linkify"); // bare addresses with a scheme are found by the inline rule, in linear time

const parseInline = markdown.inline.parse.bind(markdown.inline);
markdown.inline.parse = (text, parser, env, tokens) => {
  if (text.length <= LONGEST_INLINE) return parseInline(text, parser, env, tokens);
  tokens.push({ type: "text", content: text, level: 0, nesting: 0 });
};

markdown.inline.ruler.before("autolink", "line_break", (state, silent) => {
  if (state.src[state.pos] !== "<") return false;
  const tag = /<br {0,5}\/?>/iy;
  tag.lastIndex = state.pos;
  if (!tag.test(state.src)) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos = tag.lastIndex;
  return true;
});

/** The line at which a table ends at the latest: rows that lack cells may not make it much larger than its text. */
function tableEnd(state, start, end) {
  const columns = state.getLines(start, start + 1, 0, false).split("|").length;
  let spare = SPARE_CELLS;
  for (let line = start + 2; line < end; line += 1) {
    spare += state.eMarks[line] - state.bMarks[line] + 1 - columns;
    if (spare < 0) return line;
  }
  return end;
}

/** A rule of markdown-it's block parser. It has no method that returns one, so it is found by disabling it. */
function blockRule(name) {
  const all = markdown.block.ruler.getRules("");
  markdown.block.ruler.disable(name);
  const others = markdown.block.ruler.getRules("");
  markdown.block.ruler.enable(name);
  return all.find((rule) => !others.includes(rule));
}

const table = blockRule("table");
const boundedTable = (state, start, end, silent) => {
  if (!table(state, start, end, true)) return false;
  return silent || table(state, start, tableEnd(state, start, end), false);
};
markdown.block.ruler.at("table", boundedTable, { alt: ["paragraph", "reference"] });

// -- rendering ------------------------------------------------------------------------------------------------------

markdown.core.ruler.push("headings", ({ tokens }) => {
  // The heading of the answer itself is at level 3.
  for (const token of tokens) if (token.type.startsWith("heading_")) token.tag = `h${Math.min(Number(token.tag[1]) + 3, 6)}`;
});

const { rules } = markdown.renderer;
const plain = (tokens, at, options, env, renderer) => renderer.renderToken(tokens, at, options);
const LINK = 'target="_blank" rel="noopener noreferrer nofollow"';

rules.link_open = (tokens, at) => `<a href="${escapeHtml(tokens[at].attrGet("href"))}" ${LINK}>`;
rules.image = (tokens, at, options, env, renderer) => {
  const { children } = tokens[at];
  const address = tokens[at].attrGet("src");
  const words = escapeHtml(renderer.renderInlineAsText(children, options, env).trim() || address);
  const isLinked = tokens.slice(0, at).reduce((depth, { type }) => depth + (type === "link_open") - (type === "link_close"), 0) > 0;
  return isLinked ? words : `<a href="${escapeHtml(address)}" ${LINK}>${words}</a>`;
};
rules.table_open = (...token) => `<div class="table" tabindex="0" role="group" aria-label="Table">${plain(...token)}`;
rules.table_close = (...token) => `${plain(...token)}</div>`;
rules.th_open = (tokens, at) => `<th scope="col"${alignment(tokens[at])}>`;
rules.td_open = (tokens, at) => `<td${alignment(tokens[at])}>`;
rules.checkbox_input = (tokens, at) => {
  const done = tokens[at].attrGet("checked") !== null;
  return `<input type="checkbox" disabled${done ? " checked" : ""} aria-label="${done ? "Done" : "Not done"}">`;
};
rules.fence = (tokens, at) => codeBlock(tokens[at].content, tokens[at].info.trim().split(/\s/, 1)[0]);
rules.code_block = (tokens, at) => codeBlock(tokens[at].content, "");

function alignment(token) {
  const side = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "")?.[1];
  return side ? ` class="${side}"` : "";
}

function codeBlock(text, info) {
  const language = /^[\w+#.-]{1,30}$/.test(info) ? info : "";
  return `<div class="code" dir="ltr"><div class="code-bar"><span>${language || "text"}</span></div>
    <pre tabindex="0" role="group" aria-label="Code${language && `, ${language}`}"><code${language && ` class="language-${language}"`}>${escapeHtml(text)}</code></pre></div>`;
}

// -- sanitising -----------------------------------------------------------------------------------------------------

const TEXT = {
  ALLOWED_TAGS: [
    "p", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "pre", "code", "em", "strong", "s", "a",
    "div", "span", "table", "thead", "tbody", "tr", "th", "td", "input",
  ],
  ALLOWED_ATTR: ["href", "target", "rel", "dir", "class", "start", "scope", "tabindex", "role", "aria-label", "type", "disabled", "checked"],
};
const MATHEMATICS = {
  ALLOWED_TAGS: [
    "math", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts",
    "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover",
    "none",
  ],
  ALLOWED_ATTR: [
    "accent", "accentunder", "class", "columnalign", "columnlines", "columnspacing", "columnspan", "data-style", "depth", "dir", "display",
    "displaystyle", "fence", "form", "height", "largeop", "linethickness", "lspace", "mathcolor", "mathsize", "mathvariant",
    "maxsize", "minsize", "movablelimits", "notation", "rowlines", "rowspacing", "rowspan", "rspace", "scriptlevel", "separator",
    "stretchy", "symmetric", "voffset", "width",
  ],
};
const ALWAYS = {
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOW_SELF_CLOSE_IN_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** HTML as a fragment of the elements and attributes that answers consist of. */
export function sanitized(html, { math = false } = {}) {
  const { ALLOWED_TAGS, ALLOWED_ATTR } = math ? MATHEMATICS : TEXT;
  // `body` is the root that DOMPurify parses into; if it were not allowed, everything in it would be copied.
  const allowed = { ALLOWED_TAGS: ["body", ...ALLOWED_TAGS], ALLOWED_ATTR, ADD_URI_SAFE_ATTR: ALLOWED_ATTR.filter((name) => name !== "href") };
  return globalThis.DOMPurify.sanitize(html, { ...allowed, ...ALWAYS });
}

/** Parses a text to the tokens of markdown-it. `env` keeps link definitions for later parts of the same text. */
export function parse(text, env = {}) {
  return markdown.parse(text, env);
}

/** Renders tokens, each block of the outermost level to one element. */
export function render(tokens, env = {}) {
  const fragment = sanitized(markdown.renderer.render(tokens, markdown.options, env));
  for (const node of [...fragment.childNodes]) {
    if (node.nodeType !== Node.ELEMENT_NODE) node.remove(); // a line break between blocks
    // While HTML is parsed, the direction would be determined anew for each text that is added, in quadratic time.
    else if (!node.dir) node.dir = "auto";
  }
  return fragment;
}
