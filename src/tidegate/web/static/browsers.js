// The dialog of signed-in browsers: lists them and signs out one of them, or all of the user's own. The list is always
// the latest one from the gateway. Keys pressed in the dialog have no effect outside it.

import { del, get } from "./api.js";
import { ago } from "./sidebar.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

function since(seconds) {
  const past = ago(seconds);
  return past === "now" ? "just now" : /^\d+ (min|h|d)$/.test(past) ? `${past} ago` : past;
}

function Browser({ browser, isShared, onSignOut }) {
  const { name, current, created, used } = browser;
  return html`<li>
    <span class="browser"><b>${browser.browser}</b>${isShared && ` · ${name}`}${current && " · this browser"}
      <span class="hint">Signed in ${since(created)}, last used ${since(used ?? created)}</span></span>
    <button type="button" class="quiet" aria-label=${`Sign out ${browser.browser} of ${name}`} onClick=${onSignOut}>Sign out</button>
  </li>`;
}

/** `onClose()` is called when the dialog was closed, `onLeft(why)` when this browser itself was signed out. */
export function Browsers({ onClose, onLeft }) {
  const [browsers, setBrowsers] = useState(null);
  const [problem, setProblem] = useState("");
  const dialog = useRef(null);
  const attempt = async (act) => {
    try {
      await act();
      setProblem("");
    } catch (error) {
      if (error.status === 401) onLeft(error.message);
      else setProblem(error.message);
    }
  };
  const load = async () => setBrowsers((await get("/api/browsers")).browsers);
  const signOut = ({ id, current }) => attempt(async () => {
    await del(`/api/browsers/${encodeURIComponent(id)}`);
    if (current) onLeft();
    else await load();
  });
  const signOutEverywhere = () => attempt(async () => {
    await del("/api/browsers");
    onLeft();
  });
  useLayoutEffect(() => dialog.current.showModal(), []);
  useEffect(() => void attempt(load), []);
  const isShared = new Set(browsers?.map(({ principal }) => principal)).size > 1;
  return html`<dialog class="browsers" ref=${dialog} aria-labelledby="browsers-title" onClose=${onClose} onKeyDown=${(event) => event.stopPropagation()}>
    <h2 id="browsers-title">Signed-in browsers</h2>
    ${problem && html`<p class="note error" role="alert">${problem}</p>`}
    ${browsers
      ? html`<ul>${browsers.map((browser) => html`<${Browser} key=${browser.id} browser=${browser} isShared=${isShared} onSignOut=${() => signOut(browser)} />`)}</ul>`
      : html`<p class="hint">Loading…</p>`}
    <footer>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button>
      <button type="button" class="stop" onClick=${signOutEverywhere}>Sign out everywhere</button>
    </footer>
    <p class="hint">“Sign out everywhere” signs out all of your browsers, including this one. API keys keep working.</p>
  </dialog>`;
}
