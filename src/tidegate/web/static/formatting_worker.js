// Highlights code and converts TeX to MathML, outside the page's thread. Each library is loaded with its first job. The
// page ends this worker if a job takes too long, and sanitises every result.

const LIBRARIES = { code: "vendor/highlight.js", math: "vendor/temml.js" };
const MOST_EXPANSIONS = 500; // of macros in one formula: a formula that defines macros may not grow without limit
const loaded = new Set();

function highlighted({ text, language }) {
  return self.hljs.getLanguage(language) ? self.hljs.highlight(text, { language, ignoreIllegals: true }).value : null;
}

function mathml({ text, isDisplayed }) {
  const options = { displayMode: isDisplayed, throwOnError: true, trust: false, maxExpand: MOST_EXPANSIONS };
  // The content security policy refuses style attributes in markup. Temml escapes quotation marks in text, so only
  // attributes match.
  return self.temml.renderToString(text, options).replaceAll(' style="', ' data-style="');
}

self.onmessage = ({ data }) => {
  if (!loaded.has(data.kind)) {
    self.importScripts(LIBRARIES[data.kind]);
    loaded.add(data.kind);
  }
  let html = null;
  try {
    html = data.kind === "code" ? highlighted(data) : mathml(data);
  } catch {
    // Not every formula is valid TeX. It stays as it was written.
  }
  self.postMessage(html);
};
