// The list of conversations. Guarantee: it shows what the gateway said last, newest first, and marks what runs; it holds
// nothing of its own.

import { html } from "./ui.js";

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long ago a time in seconds was, in few words. */
export function ago(then, now = Date.now() / 1000) {
  const past = Math.max(0, now - then);
  if (past < MINUTE) return "now";
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (past < 7 * DAY) return `${Math.floor(past / DAY)} d`;
  return new Date(then * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export const titleOf = (session) => session.title || session.name || "Untitled conversation";

function Entry({ session, isCurrent, onOpen }) {
  return html`<li>
    <a href=${`#/${session.id}`} aria-current=${isCurrent ? "page" : null} data-running=${session.running ? "yes" : null} data-ended=${session.ended ? "yes" : null}
      onClick=${(event) => { event.preventDefault(); onOpen(session.id); }}>
      <span class="entry-title">${titleOf(session)}</span>
      <span class="entry-side">${session.running ? html`<span class="running" title="An answer is being written"><span class="unseen">running</span></span>` : ago(session.active)}</span>
    </a></li>`;
}

export function Sidebar({ sessions, over, current, hasMore, onMore, onOver, onOpen, onNew, onSignOut }) {
  const entry = (session) => html`<${Entry} key=${session.id} session=${session} isCurrent=${session.id === current} onOpen=${onOpen} />`;
  return html`<nav class="sidebar" id="sidebar" aria-label="Conversations">
    <div class="brand"><img src="/static/favicon.svg" alt="" width="22" height="22" /><h1>Tidegate</h1></div>
    <button type="button" id="new" class="new" onClick=${onNew} aria-keyshortcuts="Control+K Meta+K Alt+N">New conversation<kbd aria-hidden="true">Ctrl K</kbd></button>
    <div class="entries">
      <ul>${sessions.map(entry)}</ul>
      ${!sessions.length && html`<p class="hint">No conversations yet.</p>`}
      ${hasMore && html`<button type="button" class="quiet" onClick=${onMore}>Show older ones</button>`}
      <details class="over" onToggle=${(event) => event.target.open && onOver()}>
        <summary>Ended conversations</summary>
        <ul>${over.map(entry)}</ul>
        ${!over.length && html`<p class="hint">None.</p>`}
      </details>
    </div>
    <button type="button" class="quiet sign-out" onClick=${onSignOut}>Sign out</button>
  </nav>`;
}
