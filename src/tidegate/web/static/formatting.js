// Copy buttons, highlighted code and mathematics for rendered text. The libraries run in a worker, which is started when
// a text needs it. Until a result is there, and if there is none, the source is shown. A job that takes too long ends
// the worker; after a few of these, the rest of the page's text stays unformatted.

import { sanitized } from "./markdown.js";

const LONGEST_CODE = 50_000; // characters that are highlighted
const JOB_LIMIT = 5_000; // milliseconds for one job, including loading its library
const MOST_FAILURES = 3;
const MOST_KEPT = 200; // results kept, so that text that is rendered again looks the same at once
const LONGEST_KEPT = 10_000; // characters of a source whose result is kept

// Properties that formulas set. Temml writes them as style attributes, which the content security policy refuses.
const STYLES = new Set([
  "background-color", "border", "border-bottom", "border-color", "border-left", "border-right", "border-top", "color", "display",
  "font-family", "font-style", "font-weight", "height", "justify-content", "margin", "margin-left", "margin-right", "math-depth",
  "math-style", "padding", "padding-bottom", "padding-left", "padding-right", "padding-top", "text-align", "vertical-align",
  "white-space", "width",
]);

const kept = new Map();
let worker = null;
let failures = 0;
let last = Promise.resolve();

function once(job) {
  return new Promise((resolve) => {
    worker ??= new Worker("/static/formatting_worker.js");
    const end = (html) => {
      clearTimeout(timer);
      resolve(html);
    };
    const fail = () => {
      worker.terminate();
      worker = null;
      failures += 1;
      end(null);
    };
    const timer = setTimeout(fail, JOB_LIMIT);
    worker.onmessage = ({ data }) => end(data);
    worker.onerror = fail;
    worker.postMessage(job);
  });
}

/** One job after another: the time limit is for one. */
function result(job) {
  last = last.then(() => (failures < MOST_FAILURES ? once(job) : null));
  return last;
}

/** Replaces the content of an element with the formatted one, now if the same source was formatted before. */
async function replace(element, job, toNodes) {
  const key = JSON.stringify(job);
  let nodes = kept.get(key);
  if (!nodes) {
    const html = await result(job);
    if (html === null) return;
    nodes = toNodes(html);
    if (job.text.length <= LONGEST_KEPT) kept.set(key, nodes);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  element.replaceChildren(nodes.cloneNode(true));
  element.dataset.formatted = "";
  if (job.kind === "math") applyStyles(element);
}

function applyStyles(element) {
  for (const styled of element.querySelectorAll("[data-style]")) {
    for (const declaration of styled.dataset.style.split(";")) {
      const [property, value] = declaration.split(":", 2).map((part) => part.trim());
      if (STYLES.has(property) && !/[(\\]/.test(value)) styled.style.setProperty(property, value);
    }
    styled.removeAttribute("data-style");
  }
}

function loadMathStyle() {
  if (document.getElementById("math-style")) return;
  const link = Object.assign(document.createElement("link"), { id: "math-style", rel: "stylesheet", href: "/static/vendor/temml.css" });
  document.head.append(link);
}

function addCopyButton(block) {
  if (!navigator.clipboard) return; // the page is not in a secure context
  const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "Copy" });
  button.setAttribute("aria-label", "Copy code");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
    button.setAttribute("aria-label", "Code copied");
  });
  block.querySelector(".code-bar").append(button);
}

/** The elements that match, including the outermost one. */
function matching(root, selector) {
  return root.matches(selector) ? [root, ...root.querySelectorAll(selector)] : root.querySelectorAll(selector);
}

/** Formats the mathematics in an element. */
export function formatMath(root) {
  for (const element of matching(root, ".math:not([data-formatted])")) {
    const source = element.textContent;
    const width = source.startsWith("$") && !source.startsWith("$$") ? 1 : 2;
    const job = { kind: "math", text: source.slice(width, -width), isDisplayed: element.classList.contains("display") };
    loadMathStyle();
    replace(element, job, (html) => sanitized(html, { math: true }));
  }
}

/** Formats the code in an element, which is complete. */
export function formatCode(root) {
  for (const element of matching(root, "code[class]:not([data-formatted])")) {
    const text = element.textContent;
    if (text.length > LONGEST_CODE) continue;
    replace(element, { kind: "code", text, language: element.className.slice("language-".length) }, (html) => sanitized(html));
  }
}

/** Adds a button to each block of code. */
export function addCopyButtons(root) {
  for (const block of matching(root, ".code")) if (!block.querySelector("button")) addCopyButton(block);
}
