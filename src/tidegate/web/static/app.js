// The page: sign-in, the list of conversations, the open conversation, and the global keyboard shortcuts. One
// conversation is open at a time; opening another closes it and its stream. The URL contains the id of the open
// conversation and no secret, so reloading shows the conversation again.

import { get, pageToken, post } from "./api.js";
import { Browsers } from "./browsers.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { List } from "./list.js";
import { goToQuestion } from "./questions.js";
import { Sidebar, titleOf } from "./sidebar.js";
import { SignIn, signIn, takeCode } from "./signin.js";
import { Transcript } from "./transcript.js";
import { batch, effect, html, render, signal } from "./ui.js";

const REFRESH_EVERY = 15_000; // milliseconds, while the page is visible: another device may have started something
const MOST_DRAFTS = 20; // unsent texts kept while moving between conversations

const phase = signal("starting"); // starting | out | in
const problem = signal("");
const agents = signal([]);
const agent = signal("");
const commands = signal([]);
const open = signal(null);
const drawer = signal(false);
const browsers = signal(false); // whether the list of signed-in browsers is shown
const list = new List({ failed });

/** Unsent texts by conversation. Bounded: the oldest is dropped. */
class Unsent {
  #texts = new Map();

  get = (conversation) => this.#texts.get(conversation.id.value);

  set = (conversation, text) => {
    this.#texts.delete(conversation.id.value);
    if (text) this.#texts.set(conversation.id.value, text);
    if (this.#texts.size > MOST_DRAFTS) this.#texts.delete(this.#texts.keys().next().value);
  };
}
const unsent = new Unsent();

/** The list keeps its entries; the conversation itself shows that the connection is lost. */
function failed(error, isWanted) {
  if (error.status === 401) signedOut(error.message);
  else if (isWanted && open.value) open.value.problem.value = error.message;
}

function refreshSoon() {
  if (phase.value === "in") list.soon();
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
    back: () => loadCatalogue().catch(() => {}), // lost again: the next reconnection retries
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

function startSearch() {
  drawer.value = document.getElementById("menu").checkVisibility(); // on a narrow screen the list is in the drawer
  requestAnimationFrame(() => document.getElementById("search")?.focus());
}

function endSearch() {
  drawer.value = false;
  list.search("");
  document.getElementById("composer")?.focus();
}

function neighbour(step) {
  const ids = list.shown.map((session) => session.id);
  const at = ids.indexOf(open.value?.id.value);
  const next = ids[at < 0 ? 0 : at + step];
  if (next) show(next);
}

// -- signing in and out ---------------------------------------------------------------------------------------------

/** Loads the agents and commands. A restarted gateway may have different ones. */
async function loadCatalogue() {
  const [listed, available] = await Promise.all([get("/api/agents"), get("/api/commands")]);
  const names = listed.agents.map(({ name }) => name);
  batch(() => {
    agents.value = listed.agents;
    agent.value = [agent.value, "main"].find((name) => names.includes(name)) ?? names[0] ?? "";
    commands.value = available.commands;
  });
}

async function enter() {
  try {
    await loadCatalogue();
    batch(() => {
      problem.value = "";
      phase.value = "in";
    });
    show(addressed(), { push: false });
    list.refresh();
  } catch (error) {
    batch(() => {
      // A user who was never signed in sees no error.
      if (error.status !== 401 || error.code === "signed_out") problem.value ||= error.message;
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
      // Opening a link twice is harmless for a user who is already signed in: `enter` finds out.
      problem.value = error.message;
    }
  }
  await enter();
}

function signedOut(why = "") {
  if (phase.value === "out") return;
  open.value?.close();
  batch(() => {
    open.value = null;
    browsers.value = false;
    list.clear();
    problem.value = why;
    phase.value = "out";
  });
}

/** Signs out this browser's tabs; the others notice that the token is gone. */
function leave(why) {
  pageToken.clear();
  signedOut(why);
}

async function signOut() {
  try {
    await post("/api/logout", {});
    leave();
  } catch (error) {
    if (open.value) open.value.problem.value = error.message;
  }
}

/** Another tab signed in or out. */
function tokenChanged({ key, newValue }) {
  if (key !== pageToken.key && key !== null) return;
  if (!newValue) signedOut();
  else if (phase.value === "out") enter();
}

// -- keys -----------------------------------------------------------------------------------------------------------

function pressed(event) {
  if (phase.value !== "in" || event.defaultPrevented) return;
  const letter = event.key.toLowerCase();
  const isNew = (letter === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey) || (event.code === "KeyN" && event.altKey);
  if (isNew) startNew();
  else if (event.code === "KeyS" && event.altKey) startSearch();
  else if (event.code === "KeyQ" && event.altKey) goToQuestion();
  else if (event.altKey && event.key === "ArrowUp") neighbour(-1);
  else if (event.altKey && event.key === "ArrowDown") neighbour(1);
  else if (event.key === "Escape" && drawer.value) drawer.value = false;
  else if (event.key === "Escape" && open.value?.record.value.running) open.value.stop();
  else return;
  event.preventDefault();
}

// -- rendering ------------------------------------------------------------------------------------------------------

function Banner({ conversation }) {
  const lost = conversation.connection.value === "lost";
  const text = lost ? "Connection lost. Reconnecting…" : conversation.problem.value;
  return html`<div class="banner" role="status" data-shown=${text ? "yes" : null}>
    ${text && html`<p class=${lost ? "note" : "note error"}>${text}
      ${!lost && html` <button type="button" class="quiet" onClick=${() => { conversation.problem.value = ""; }}>Close</button>`}</p>`}
  </div>`;
}

const empty = html`<div class="empty">
  <h3>How can I help?</h3>
  <p>Type a message and press Enter. Type <code>/</code> to see the commands; <code>/help</code> lists them all.</p>
  <p>Try: <q>what time is it?</q> or <q>what can you do?</q></p>
</div>`;

/** A line that tells the user that the demo model answers. */
function Demo({ model }) {
  return html`<p class="hint demo">You are using the demo model. To use a real one, set <code>[models.${model}]</code> in <code>tidegate.toml</code>.</p>`;
}

function Chat({ conversation }) {
  const id = conversation.id.value;
  const view = conversation.view.value;
  const session = list.sessions.value.find((other) => other.id === id) ?? view;
  const title = session ? titleOf(session) : id ? "Conversation" : "New conversation";
  const asking = list.asking.value.size; // conversations that wait for an answer: shown in the title of a hidden page too
  document.title = `${asking ? `(${asking}) ` : ""}${id ? `${title.replace(/\p{Bidi_C}/gu, "")} · Tidegate` : "Tidegate"}`;
  const options = { agent: agent.value };
  const answering = id ? (view ?? session) : agents.value.find(({ name }) => name === agent.value);
  const waiting = Math.max(0, (session?.waiting ?? 0) - conversation.record.value.pending.length);
  return html`<main class="chat">
    <header>
      <button type="button" id="menu" class="quiet" aria-expanded=${drawer.value} aria-controls="sidebar"
        onClick=${() => { drawer.value = !drawer.value; }}>Conversations</button>
      <h2>${title}</h2>
      ${session && agents.value.length > 1 && html`<span class="hint">${session.agent}</span>`}
    </header>
    <${Transcript} key=${conversation} conversation=${conversation} empty=${empty}
      onCommand=${(line) => conversation.send(line, options)} onAgain=${(key) => conversation.retry(key, options)} />
    <${Banner} conversation=${conversation} />
    ${waiting > 0 && html`<p class="note waiting-count">${waiting === 1 ? "1 more message is" : `${waiting} more messages are`} waiting to be answered.</p>`}
    ${view?.ended
      ? html`<p class="note ended">This conversation has ended and is read-only. <button type="button" class="quiet" onClick=${startNew}>New conversation</button></p>`
      : html`<${Composer} conversation=${conversation} commands=${commands.value} agents=${agents.value} agent=${agent.value}
          onAgent=${(name) => { agent.value = name; }} keep=${unsent} />
        ${answering?.demo && html`<${Demo} model=${answering.model} />`}`}
  </main>`;
}

function App() {
  if (phase.value === "starting") return html`<p class="starting">Loading…</p>`;
  if (phase.value === "out") return html`<${SignIn} problem=${problem.value} onSignedIn=${enter} />`;
  return html`<div class="layout" data-drawer=${drawer.value ? "open" : null}>
    <${Sidebar} list=${list} current=${open.value.id.value} onOpen=${(id) => show(id)} onNew=${startNew}
      onSearched=${endSearch} onBrowsers=${() => { browsers.value = true; }} onSignOut=${signOut} />
    <div class="shade" onClick=${() => { drawer.value = false; }}></div>
    <${Chat} conversation=${open.value} />
    ${browsers.value && html`<${Browsers} onClose=${() => { browsers.value = false; }} onLeft=${leave} />`}
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
window.addEventListener("storage", tokenChanged);
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
