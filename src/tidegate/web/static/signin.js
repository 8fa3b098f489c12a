// Signing in with a one-time code. The code is removed from the address bar before any request, is sent only in the body
// of one POST, and is not stored. It is exchanged for a cookie that no script can read and a page token that no other
// origin can read.

import { pageToken, post } from "./api.js";
import { html, useEffect, useRef, useState } from "./ui.js";

/** Returns the code in the URL's fragment and removes it from the URL and the history. */
export function takeCode() {
  const found = /^#code=(.+)$/.exec(window.location.hash);
  if (!found) return null;
  window.history.replaceState(null, "", window.location.pathname);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

export async function signIn(code) {
  const { page_token } = await post("/api/login", { code, browser: browserName(navigator.userAgent) });
  pageToken.set(page_token);
}

const PROGRAMS = { "Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari" };
const SYSTEMS = { Android: "Android", iPhone: "iPhone", iPad: "iPad", Windows: "Windows", "Mac OS": "macOS", CrOS: "ChromeOS", Linux: "Linux" };

/** The name shown for this browser in the list. The order of the tables matters. */
export function browserName(agent) {
  const [program, system] = [PROGRAMS, SYSTEMS].map((names) => Object.entries(names).find(([word]) => agent.includes(word))?.[1]);
  return [program ?? "Browser", system].filter(Boolean).join(" on ");
}

/** Accepts the code or the complete link that contains it. */
function codeIn(text) {
  return text.trim().replace(/^.*#code=/, "");
}

export function SignIn({ problem, onSignedIn }) {
  const [message, setMessage] = useState(problem);
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  useEffect(() => setMessage(problem), [problem]);
  const submit = async (event) => {
    event.preventDefault();
    const code = codeIn(field.current.value);
    if (!code) return;
    setBusy(true);
    try {
      await signIn(code);
      onSignedIn();
    } catch (error) {
      setMessage(error.message);
      field.current.value = "";
      field.current.focus();
    } finally {
      setBusy(false);
    }
  };
  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <div class="brand"><img src="/static/favicon.svg" alt="" width="28" height="28" /><h1>Tidegate</h1></div>
      <p>Open the one-time link that <code>tidegate up</code> printed, or paste its code here.${" "}
        <code>tidegate status --link</code> prints a new link.</p>
      ${message && html`<p class="note error" role="alert" id="sign-in-problem">${message}</p>`}
      <label for="code">One-time code</label>
      <input id="code" ref=${field} type="password" autocomplete="off" spellcheck="false" required aria-describedby=${message ? "sign-in-problem" : null} />
      <button type="submit" class="send" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}
