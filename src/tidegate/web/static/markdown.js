// Renders Markdown as models write it. Text stays text: nothing is parsed as HTML, nothing is fetched (an image becomes
// a link), and only absolute http and https URLs become links. The time is linear in the text for every input, and
// nesting is bounded.

import { html, memo, useState } from "./ui.js";

const DEEPEST = 6; // levels of lists, quotes and emphasis; deeper ones are shown as plain text

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:-[ \t]*){3,}$|^ {0,3}(?:\*[ \t]*){3,}$|^ {0,3}(?:_[ \t]*){3,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)/;
const TABLE_RULE = /^ {0,3}\|?(?:\s*:?-+:?\s*\|)+\s*(?::?-+:?\s*)?$/;

/** The URL to link to, or null when it is not a plain http or https one. */
export function safeAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const address = new URL(text);
    const web = address.protocol === "http:" || address.protocol === "https:";
    // A user name in front of the host is a common way to disguise another host.
    return web && !address.username && !address.password ? address.href : null;
  } catch {
    return null;
  }
}

// -- inline ---------------------------------------------------------------------------------------------------------

const LINK = /!?\[([^[\]\n]{0,500})\]\(\s{0,5}([^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?)(?:\s+"[^"\n]{0,200}")?\s{0,5}\)/y;
const BARE = /https?:\/\/[^\s<>"'`*]{1,2000}/iy;
const SPECIAL = /[\\`*_[!h~]/g;

function closing(text, marker, from) {
  for (let at = text.indexOf(marker, from); at >= 0; at = text.indexOf(marker, at + 1)) {
    const before = text[at - 1];
    const after = text[at + marker.length] ?? "";
    if (/\s/.test(before) || before === "\\") continue;
    if (marker[0] === "_" && /\w/.test(after)) continue;
    if (marker.length === 1 && (after === marker || before === marker)) continue;
    if (at > from) return at;
  }
  return -1;
}

/** Parses inline markup to a list of strings and `{kind, …}` nodes. */
export function inline(text, depth = 0) {
  const nodes = [];
  const hopeless = new Set(); // markers without a closing partner: searched for once, so that the time stays linear
  let from = 0;
  let at = 0;
  const put = (node, end) => {
    if (at > from) nodes.push(text.slice(from, at));
    nodes.push(node);
    from = at = end;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) break;
    at = found.index;
    const sign = text[at];
    if (sign === "\\" && /[\\`*_{}[\]()#+\-.!~|<>]/.test(text[at + 1] ?? "")) {
      put(text[at + 1], at + 2);
    } else if (sign === "`") {
      const fence = /`+/y;
      fence.lastIndex = at;
      const marker = fence.exec(text)[0];
      const start = at + marker.length;
      let end = hopeless.has(marker) ? -1 : text.indexOf(marker, start);
      while (end >= 0 && text[end + marker.length] === "`") {
        let past = end;
        while (text[past] === "`") past += 1;
        end = text.indexOf(marker, past);
      }
      if (end < 0) {
        hopeless.add(marker);
        at = start;
      } else put({ kind: "code", text: text.slice(start, end).replace(/^ (.*) $/s, "$1") }, end + marker.length);
    } else if (sign === "*" || sign === "_" || sign === "~") {
      let length = 1;
      while (length < 3 && text[at + length] === sign) length += 1;
      const marker = sign.repeat(sign === "~" ? Math.min(length, 2) : length);
      const start = at + marker.length;
      const inWord = sign === "_" && at > 0 && /\w/.test(text[at - 1]);
      const opens = !inWord && depth < DEEPEST && marker !== "~" && /\S/.test(text[start] ?? " ");
      const end = opens && !hopeless.has(marker) ? closing(text, marker, start) : -1;
      if (end >= 0) put(emphasis(marker, inline(text.slice(start, end), depth + 1)), end + marker.length);
      else {
        if (opens) hopeless.add(marker);
        at = start;
      }
    } else if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
      LINK.lastIndex = at;
      const link = LINK.exec(text);
      const address = link && safeAddress(link[2]);
      if (address) put({ kind: "link", address, nodes: depth < DEEPEST ? label(link, depth) : [link[1]] }, LINK.lastIndex);
      else at += 1;
    } else if (sign === "h") {
      BARE.lastIndex = at;
      const bare = at > 0 && /\w/.test(text[at - 1]) ? null : BARE.exec(text);
      const shown = bare && trimmed(bare[0]);
      const address = shown && safeAddress(shown);
      if (address) put({ kind: "link", address, nodes: [shown] }, at + shown.length);
      else at += bare ? bare[0].length : 1;
    } else at += 1;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

function emphasis(marker, nodes) {
  if (marker === "~~") return { kind: "struck", nodes };
  if (marker.length === 1) return { kind: "em", nodes };
  return { kind: "strong", nodes: marker.length === 2 ? nodes : [{ kind: "em", nodes }] };
}

function label(link, depth) {
  const words = link[1].trim() || link[2];
  // A bare URL inside a label would become a link inside a link.
  return /https?:\/\//i.test(words) ? [words] : inline(words, depth + 1).filter((node) => node.kind !== "link");
}

function trimmed(address) {
  let end = address.length;
  while (end > 0 && /[.,;:!?\])}_]/.test(address[end - 1])) {
    if (address[end - 1] === ")" && address.slice(0, end).includes("(")) break;
    end -= 1;
  }
  return address.slice(0, end);
}

// -- blocks ---------------------------------------------------------------------------------------------------------

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** A heading's text without its closing signs. */
function title(words) {
  const text = words.trimEnd();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end < text.length && (end === 0 || text[end - 1] === " ") ? text.slice(0, end).trimEnd() : text;
}

function begins(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function takeFence(lines, at, marker, language) {
  const end = new RegExp(`^ {0,3}${marker[0]}{${marker.length},}\\s*$`);
  let last = at + 1;
  while (last < lines.length && !end.test(lines[last])) last += 1;
  return [{ kind: "pre", language, text: lines.slice(at + 1, last).join("\n") }, last + 1];
}

function takeList(lines, at, depth) {
  const [, indent, sign] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(sign);
  const items = [];
  let loose = null;
  while (at < lines.length) {
    const start = ITEM.exec(lines[at]);
    if (start && start[1].length <= indent.length + 1) {
      if (/\d/.test(start[2]) !== ordered || RULE.test(lines[at])) break;
      loose = { width: start[0].length, lines: [lines[at].slice(start[0].length)] };
      items.push(loose);
    } else if (lines[at].trim() === "") {
      const next = lines[at + 1] ?? "";
      if (!/^ {2,}\S/.test(next) && !ITEM.test(next)) break;
      loose.lines.push("");
    } else if (/^ {2,}/.test(lines[at])) {
      const spaces = /^ */.exec(lines[at])[0].length;
      loose.lines.push(lines[at].slice(Math.min(spaces, loose.width)));
    } else if (begins(lines[at]) || loose.lines.at(-1) === "") break;
    else loose.lines.push(lines[at]);
    at += 1;
  }
  const start = ordered ? Number.parseInt(sign, 10) : 1;
  return [{ kind: "list", ordered, start, items: items.map((item) => blocks(item.lines, depth + 1)) }, at];
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === "") {
      at += 1;
      continue;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    let block;
    if (fence) [block, at] = takeFence(lines, at, fence[1], fence[2]);
    else if (heading) [block, at] = [{ kind: "heading", level: heading[1].length, text: title(heading[2]) }, at + 1];
    else if (RULE.test(line)) [block, at] = [{ kind: "rule" }, at + 1];
    else if (QUOTE.test(line) && depth < DEEPEST) {
      const start = at;
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      block = { kind: "quote", blocks: blocks(lines.slice(start, at).map((row) => row.replace(QUOTE, "")), depth + 1) };
    } else if (ITEM.test(line) && depth < DEEPEST) [block, at] = takeList(lines, at, depth);
    else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) {
      const start = at;
      while (at < lines.length && lines[at].includes("|")) at += 1;
      block = { kind: "table", head: cells(line), rows: lines.slice(start + 2, at).map(cells) };
    } else {
      const start = at;
      do at += 1;
      while (at < lines.length && lines[at].trim() !== "" && !begins(lines[at]));
      block = { kind: "paragraph", text: lines.slice(start, at).join("\n") };
    }
    found.push(block);
  }
  return found;
}

/** Parses a text to blocks: plain values, no elements. */
export function parse(text) {
  return blocks(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), 0);
}

// -- rendering ------------------------------------------------------------------------------------------------------

function drawInline(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return node;
    if (node.kind === "code") return html`<code>${node.text}</code>`;
    if (node.kind === "strong") return html`<strong>${drawInline(node.nodes)}</strong>`;
    if (node.kind === "em") return html`<em>${drawInline(node.nodes)}</em>`;
    if (node.kind === "struck") return html`<s>${drawInline(node.nodes)}</s>`;
    return html`<a href=${node.address} target="_blank" rel="noopener noreferrer nofollow">${drawInline(node.nodes)}</a>`;
  });
}

function Code({ language, text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
  };
  return html`<div class="code">
    <div class="code-bar">
      <span>${language || "text"}</span>
      ${navigator.clipboard && html`<button type="button" class="quiet" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}
    </div>
    <pre tabindex="0"><code>${text}</code></pre>
  </div>`;
}

function draw(block) {
  switch (block.kind) {
    case "pre":
      return html`<${Code} language=${block.language} text=${block.text} />`;
    case "heading":
      // The page's own headings end at level 2, so those of an answer begin at 3.
      return html`<${`h${Math.min(block.level + 2, 6)}`}>${drawInline(inline(block.text))}<//>`;
    case "rule":
      return html`<hr />`;
    case "quote":
      return html`<blockquote>${block.blocks.map(draw)}</blockquote>`;
    case "list": {
      const items = block.items.map((item) => html`<li>${item.map(draw)}</li>`);
      return block.ordered ? html`<ol start=${block.start}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table":
      return html`<div class="table" tabindex="0"><table>
        <thead><tr>${block.head.map((cell) => html`<th scope="col">${drawInline(inline(cell))}</th>`)}</tr></thead>
        <tbody>${block.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${drawInline(inline(cell))}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    default:
      return html`<p>${drawInline(inline(block.text))}</p>`;
  }
}

const Block = memo(({ source }) => draw(JSON.parse(source)));

/** Renders a text. While it grows, only its last block is rendered again. */
export const Markdown = memo(({ text }) => {
  return html`<div class="markdown">${parse(text).map((block, place) => html`<${Block} key=${place} source=${JSON.stringify(block)} />`)}</div>`;
});
