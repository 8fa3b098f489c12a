// The page: sign-in, the list, the open conversation, and the keys that work everywhere. Guarantee: one conversation is
// open at a time and the one before is closed, stream and all; the address names the open conversation and nothing
// secret, so that reloading shows it again.

import { get, post } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Sidebar, titleOf } from "./sidebar.js";
import { SignIn, signIn, takeCode } from "./signin.js";
import { Transcript } from "./transcript.js";
import { batch, effect, html, render, signal } from "./ui.js";

const LISTED = 50; // conversations listed at a time
const MOST_LISTED = 500;
const REFRESH_AFTER = 150; // milliseconds: changes that come together cost one request
const REFRESH_EVERY = 15_000; // while the page is looked at: another device may have begun something
const MOST_KEPT = 20; // unsent texts remembered while moving between conversations

const phase = signal("starting"); // starting | out | in
const problem = signal("");
const sessions = signal([]);
const listed = signal(LISTED);
const hasMore = signal(false);
const over = signal([]); // ended conversations, once they are asked for
const agents = signal([]);
const agent = signal("");
const commands = signal([]);
const open = signal(null);
const drawer = signal(false);

/** Texts that were written and not sent, by conversation; bounded, the oldest is forgotten. */
class Unsent {
  #texts = new Map();

  get = (conversation) => this.#texts.get(conversation.id.value);

  set = (conversation, text) => {
    this.#texts.delete(conversation.id.value);
    if (text) this.#texts.set(conversation.id.value, text);
    if (this.#texts.size > MOST_KEPT) this.#texts.delete(this.#texts.keys().next().value);
  };
}
const unsent = new Unsent();

// -- the list -------------------------------------------------------------------------------------------------------

let refreshing = 0;

function refreshSoon() {
  if (!refreshing) refreshing = setTimeout(refresh, REFRESH_AFTER);
}

async function refresh() {
  clearTimeout(refreshing);
  refreshing = 0;
  if (phase.value !== "in") return;
  try {
    const answer = await get(`/api/sessions?limit=${listed.value}`);
    batch(() => {
      sessions.value = answer.sessions;
      hasMore.value = answer.next !== null && listed.value < MOST_LISTED;
    });
  } catch (error) {
    if (error.status === 401) signedOut();
    // Anything else: the list keeps what it showed, and the conversation itself tells that the connection is lost.
  }
}

async function loadOver() {
  try {
    over.value = (await get(`/api/sessions?ended=true&limit=${LISTED}`)).sessions;
  } catch (error) {
    if (error.status === 401) signedOut();
    else open.value.problem.value = error.message;
  }
}

// -- the open conversation ------------------------------------------------------------------------------------------

function show(id, { push = true, note = "" } = {}) {
  const before = open.value;
  if (before && id && before.id.value === id) {
    drawer.value = false;
    return;
  }
  const conversation = new Conversation(id, {
    begun: (session) => window.history.replaceState(null, "", `#/${session}`),
    changed: refreshSoon,
    moved: (session, text) => show(session, { note: text }),
    unsent: unsent.set,
    signedOut,
  });
  batch(() => {
    open.value = conversation;
    drawer.value = false;
  });
  before?.close();
  if (push) window.history.pushState(null, "", id ? `#/${id}` : window.location.pathname);
  conversation.open();
  if (note) conversation.note("reply", note);
}

function addressed() {
  return /^#\/([A-Za-z0-9_-]+)$/.exec(window.location.hash)?.[1] ?? null;
}

function startNew() {
  show(null);
  document.getElementById("composer")?.focus();
}

function neighbour(step) {
  const ids = sessions.value.map((session) => session.id);
  const at = ids.indexOf(open.value?.id.value);
  const next = ids[at < 0 ? 0 : at + step];
  if (next) show(next);
}

// -- signing in and out ---------------------------------------------------------------------------------------------

async function enter() {
  try {
    const [known, words] = await Promise.all([get("/api/agents"), get("/api/commands")]);
    batch(() => {
      agents.value = known.agents;
      agent.value = known.agents.find(({ name }) => name === "main")?.name ?? known.agents[0]?.name ?? "";
      commands.value = words.commands;
      problem.value = "";
      phase.value = "in";
    });
    show(addressed(), { push: false });
    refresh();
  } catch (error) {
    batch(() => {
      if (error.status !== 401) problem.value = error.message;
      phase.value = "out";
    });
  }
}

async function start() {
  const code = takeCode();
  if (code) {
    try {
      await signIn(code);
    } catch (error) {
      // A link opened twice is no trouble for somebody who is signed in already: `enter` finds out.
      problem.value = error.message;
    }
  }
  await enter();
}

function signedOut() {
  if (phase.value === "out") return;
  open.value?.close();
  batch(() => {
    open.value = null;
    sessions.value = [];
    over.value = [];
    problem.value = "You are signed out; sign in again with a new one-time link.";
    phase.value = "out";
  });
}

async function signOut() {
  try {
    await post("/api/logout", {});
    signedOut();
    problem.value = "";
  } catch (error) {
    if (open.value) open.value.problem.value = error.message;
  }
}

// -- keys -----------------------------------------------------------------------------------------------------------

function pressed(event) {
  if (phase.value !== "in" || event.defaultPrevented) return;
  const letter = event.key.toLowerCase();
  const isNew = (letter === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey) || (event.code === "KeyN" && event.altKey);
  if (isNew) startNew();
  else if (event.altKey && event.key === "ArrowUp") neighbour(-1);
  else if (event.altKey && event.key === "ArrowDown") neighbour(1);
  else if (event.key === "Escape" && drawer.value) drawer.value = false;
  else if (event.key === "Escape" && open.value?.record.value.running) open.value.stop();
  else return;
  event.preventDefault();
}

// -- drawing --------------------------------------------------------------------------------------------------------

function Banner({ conversation }) {
  const lost = conversation.connection.value === "lost";
  const told = lost ? "The connection to the gateway is lost; it is taken up again by itself." : conversation.problem.value;
  return html`<div class="banner" role="status" data-shown=${told ? "yes" : null}>
    ${told && html`<p class=${lost ? "note" : "note error"}>${told}
      ${!lost && html` <button type="button" class="quiet" onClick=${() => { conversation.problem.value = ""; }}>Close</button>`}</p>`}
  </div>`;
}

const empty = html`<div class="empty">
  <h3>What can I do for you?</h3>
  <p>Write below and press Enter. A slash shows what else can be said: <code>/help</code> lists it.</p>
  <p>Try: <q>what time is it?</q> or <q>what can you do?</q></p>
</div>`;

function Room({ conversation }) {
  const id = conversation.id.value;
  const view = conversation.view.value;
  const session = sessions.value.find((other) => other.id === id) ?? view;
  const title = session ? titleOf(session) : id ? "Conversation" : "New conversation";
  document.title = id ? `${title} · Tidegate` : "Tidegate";
  const options = { agent: agent.value };
  const waiting = Math.max(0, (session?.waiting ?? 0) - conversation.record.value.pending.length);
  return html`<main class="room">
    <header>
      <button type="button" id="menu" class="quiet" aria-expanded=${drawer.value} aria-controls="sidebar"
        onClick=${() => { drawer.value = !drawer.value; }}>Conversations</button>
      <h2>${title}</h2>
      ${session && agents.value.length > 1 && html`<span class="hint">${session.agent}</span>`}
    </header>
    <${Transcript} key=${conversation} conversation=${conversation} empty=${empty}
      onCommand=${(line) => conversation.send(line, options)} onAgain=${(key) => conversation.retry(key, options)} />
    <${Banner} conversation=${conversation} />
    ${waiting > 0 && html`<p class="note waiting-count">${waiting === 1 ? "One more message waits" : `${waiting} more messages wait`} to be answered.</p>`}
    ${view?.ended
      ? html`<p class="note ended">This conversation has ended and can be read only. <button type="button" class="quiet" onClick=${startNew}>New conversation</button></p>`
      : html`<${Composer} conversation=${conversation} commands=${commands.value} agents=${agents.value} agent=${agent.value}
          onAgent=${(name) => { agent.value = name; }} keep=${unsent} />`}
  </main>`;
}

function App() {
  if (phase.value === "starting") return html`<p class="starting">Opening…</p>`;
  if (phase.value === "out") return html`<${SignIn} problem=${problem.value} onSignedIn=${enter} />`;
  const more = () => {
    listed.value = Math.min(listed.value + LISTED, MOST_LISTED);
    refresh();
  };
  return html`<div class="house" data-drawer=${drawer.value ? "open" : null}>
    <${Sidebar} sessions=${sessions.value} current=${open.value.id.value} hasMore=${hasMore.value}
      over=${over.value} onOver=${loadOver} onMore=${more} onOpen=${(id) => show(id)} onNew=${startNew} onSignOut=${signOut} />
    <div class="shade" onClick=${() => { drawer.value = false; }}></div>
    <${Room} conversation=${open.value} />
  </div>`;
}

const root = document.getElementById("app");
root.replaceChildren();
effect(() => {
  document.documentElement.dataset.phase = phase.value;
});
render(html`<${App} />`, root);
window.addEventListener("keydown", pressed);
window.addEventListener("popstate", () => {
  if (phase.value === "in" && !window.location.hash.startsWith("#code=")) show(addressed(), { push: false });
});
window.addEventListener("hashchange", () => {
  if (window.location.hash.startsWith("#code=")) start();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshSoon();
});
setInterval(() => {
  if (!document.hidden) refreshSoon();
}, REFRESH_EVERY);
start();
