// Signing in with a one-time code. Guarantee: the code is taken out of the address bar before anything is sent, travels
// only in the body of one POST, and is kept nowhere.

import { post } from "./api.js";
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
  await post("/api/login", { code });
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
      <p>Open the one-time link that <code>tidegate up</code> printed, or paste its code here.
        <code>tidegate status --link</code> prints a new one.</p>
      ${told && html`<p class="note error" role="alert" id="sign-in-problem">${told}</p>`}
      <label for="code">One-time code</label>
      <input id="code" ref=${field} type="password" autocomplete="off" spellcheck="false" required aria-describedby=${told ? "sign-in-problem" : null} />
      <button type="submit" class="send" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}
