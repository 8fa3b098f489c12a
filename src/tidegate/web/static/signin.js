// Signing in with a one-time code. Guarantee: the code is taken out of the address bar before anything is sent, travels
// only in the body of one POST, and is kept nowhere. What it is exchanged for are a cookie that no script can read, and
// a page token that no other origin can.

import { pageToken, post } from "./api.js";
import { html, useEffect, useRef, useState } from "./ui.js";

/** The code in the address's fragment, which is removed from the address and from the history on the way. */
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

/** The name under which this browser is listed; the order of the tables matters. */
export function browserName(agent) {
  const [program, system] = [PROGRAMS, SYSTEMS].map((names) => Object.entries(names).find(([word]) => agent.includes(word))?.[1]);
  return [program ?? "Browser", system].filter(Boolean).join(" on ");
}

/** Accepts the code alone or the whole link that contains it. */
function codeIn(text) {
  return text.trim().replace(/^.*#code=/, "");
}

export function SignIn({ problem, onSignedIn }) {
  const [told, setTold] = useState(problem);
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  useEffect(() => setTold(problem), [problem]);
  const submit = async (event) => {
    event.preventDefault();
    const code = codeIn(field.current.value);
    if (!code) return;
    setBusy(true);
    try {
      await signIn(code);
      onSignedIn();
    } catch (error) {
      setTold(error.message);
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
        <code>tidegate status --link</code> prints a new one.</p>
      ${told && html`<p class="note error" role="alert" id="sign-in-problem">${told}</p>`}
      <label for="code">One-time code</label>
      <input id="code" ref=${field} type="password" autocomplete="off" spellcheck="false" required aria-describedby=${told ? "sign-in-problem" : null} />
      <button type="submit" class="send" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}
