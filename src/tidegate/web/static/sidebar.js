// The sidebar with the list of conversations. Shows the entries of `list.js`, newest first, and marks those that are
// running or waiting for an answer. Has no state of its own.

import { MOST } from "./list.js";
import { html } from "./ui.js";

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The time since `then`, which is in seconds, in a short form. */
export function ago(then, now = Date.now() / 1000) {
  const past = Math.max(0, now - then);
  if (past < MINUTE) return "now";
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (past < 7 * DAY) return `${Math.floor(past / DAY)} d`;
  return new Date(then * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export const titleOf = (session) => session.title || session.name || "Untitled conversation";

function Side({ session, isAsking }) {
  if (isAsking) return html`<span class="asking" title="Waiting for your answer">?<span class="unseen"> waiting for your answer</span></span>`;
  if (session.running) return html`<span class="running" title="Answering"><span class="unseen">running</span></span>`;
  return ago(session.active);
}

const BEFORE = 24; // characters of an excerpt before the first word that was searched for

/** The part of an excerpt that begins shortly before the first word of the query, with all of its words marked. */
function Excerpt({ text, query }) {
  const words = query.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  const pattern = words.length ? new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})`, "giu") : null;
  const first = pattern ? text.search(pattern) : -1;
  const from = first > BEFORE ? text.indexOf(" ", first - BEFORE) + 1 : 0;
  const shown = from && from <= first ? `…${text.slice(from)}` : text;
  const parts = pattern ? shown.split(pattern) : [shown]; // the words are at the odd places
  return html`<span class="entry-excerpt">${parts.map((part, place) => (place % 2 ? html`<mark>${part}</mark>` : part))}</span>`;
}

function Entry({ session, query, isCurrent, isAsking, onOpen }) {
  return html`<li>
    <a href=${`#/${session.id}`} aria-current=${isCurrent ? "page" : null} data-running=${session.running ? "yes" : null} data-ended=${session.ended ? "yes" : null}
      onClick=${(event) => { event.preventDefault(); onOpen(session.id); }}>
      <span class="entry-title">${titleOf(session)}</span>
      <span class="entry-side"><${Side} session=${session} isAsking=${isAsking} /></span>
      ${session.excerpt && html`<${Excerpt} text=${session.excerpt} query=${query} />`}
    </a></li>`;
}

function Search({ list, onSearched }) {
  const key = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // otherwise it would stop the running answer
    onSearched();
  };
  return html`<input type="search" id="search" class="search" placeholder="Search" aria-label="Search conversations" aria-keyshortcuts="Alt+S"
    title="Search conversations (Alt S)" maxlength="200" autocomplete="off" spellcheck="false" value=${list.query.value}
    onInput=${(event) => list.search(event.target.value)} onKeyDown=${key} />`;
}

function More({ sessions, onMore }) {
  if (sessions.length >= MOST) return html`<p class="hint">Use the search to find older conversations.</p>`;
  return html`<button type="button" class="quiet" onClick=${onMore}>Show older conversations</button>`;
}

export function Sidebar({ list, current, onOpen, onNew, onSearched, onBrowsers, onSignOut }) {
  const entry = (session) => html`<${Entry} key=${session.id} session=${session} query=${list.query.value} isCurrent=${session.id === current}
    isAsking=${list.asking.value.has(session.id)} onOpen=${onOpen} />`;
  const found = list.found.value;
  const sessions = list.sessions.value;
  const over = list.over.value;
  return html`<nav class="sidebar" id="sidebar" aria-label="Conversations">
    <div class="brand"><img src="/static/favicon.svg" alt="" width="22" height="22" /><h1>Tidegate</h1></div>
    <button type="button" id="new" class="new" onClick=${onNew} aria-keyshortcuts="Control+K Meta+K Alt+N">New conversation<kbd aria-hidden="true">Ctrl K</kbd></button>
    <${Search} list=${list} onSearched=${onSearched} />
    <div class="entries">
      ${found
        ? html`<ul>${found.map(entry)}</ul>
          <p class="hint" role="status">${!found.length ? "No matching conversations." : list.foundAll.value ? "" : "There may be more results; add words to narrow the search."}</p>`
        : html`<ul>${[...list.waiting.value, ...sessions].map(entry)}</ul>
          ${!sessions.length && html`<p class="hint">No conversations yet.</p>`}
          ${list.hasMore.value && html`<${More} sessions=${sessions} onMore=${() => list.more()} />`}
          <details class="over" onToggle=${(event) => event.target.open && !over.length && list.moreOver()}>
            <summary>Ended conversations</summary>
            <ul>${over.map(entry)}</ul>
            ${!over.length && html`<p class="hint">None.</p>`}
            ${list.overHasMore.value && html`<${More} sessions=${over} onMore=${() => list.moreOver()} />`}
          </details>`}
    </div>
    <div class="sign-out">
      <button type="button" class="quiet" onClick=${onSignOut}>Sign out</button>
      <button type="button" class="quiet" onClick=${onBrowsers}>Signed-in browsers</button>
    </div>
  </nav>`;
}
