// One open conversation: its record, its event stream and the user's actions. Opening starts one stream and closing ends
// it. A message with an unknown outcome keeps its key, so that sending it again cannot duplicate it. The user's text is
// never lost: it is accepted, or stays in the page to be sent again. Owned by `app.js`.

import { get, post } from "./api.js";
import * as records from "./record.js";
import { follow } from "./stream.js";
import { batch, newKey, signal } from "./ui.js";

const DRAW_EVERY = 40; // milliseconds between renderings of a growing answer: looks smooth and costs little
const DRAW_LONG_EVERY = 200; // the same for a long answer, which costs more to render
const LONG = 20_000; // characters
const ASK_AFTER = 1_000; // milliseconds until the state of a sent message's turn is requested, if the stream does not report it; …
const ASK_EVERY = 15_000; // … the pause doubles up to this
const HIDDEN_FOR = 60_000; // a hidden, idle page closes its connection: a browser has only six per host

const LIST_EVENTS = new Set(["turn_started", "turn_ended", "asked", "answered"]); // events that change the list's entry

const COMMAND = /^\/\p{L}+(?:\s|$)/u; // a slash and a word, as in the gateway: `/usr/bin` is a path, not a command

const questionPath = (id) => `/api/approvals/${encodeURIComponent(id)}`;

export class Conversation {
  /** `id` is null for a new conversation; `on` has the callbacks of the page around it. */
  constructor(id, on) {
    this.id = signal(id);
    this.record = signal(records.EMPTY);
    this.connection = signal(id ? "connecting" : "idle"); // idle | connecting | open | lost | gone
    this.view = signal(null); // the session as the gateway shows it
    this.loading = signal(Boolean(id));
    this.problem = signal("");
    this.on = on;
    this.life = new AbortController();
    this.stream = null;
    this.text = ""; // of the draft, not rendered yet
    this.lastStarted = null; // the last turn that the stream reported
    this.unanswered = null; // a turn without an answer that may end before the stream opens
    this.timer = 0;
    this.hiding = 0;
  }

  async open() {
    document.addEventListener("visibilitychange", () => this.#visibility(), { signal: this.life.signal });
    if (this.id.value) await this.reload();
  }

  close() {
    this.life.abort();
    this.stream?.abort();
    clearTimeout(this.timer);
    clearTimeout(this.hiding);
  }

  get closed() {
    return this.life.signal.aborted;
  }

  change(turn) {
    this.record.value = turn(this.record.value);
  }

  note(kind, text, extra = {}) {
    this.change((record) => records.withNote(record, { id: newKey(), kind, text, ...extra }));
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  /** Loads the newest rows (when opened, or after a command that may have changed them) and follows from there. */
  async reload() {
    this.loading.value = true;
    const noted = records.notedTurns(this.record.value);
    try {
      const [page, view] = await Promise.all([this.#page(null), get(this.#path())]);
      if (this.closed) return;
      batch(() => {
        this.view.value = view;
        this.change((record) => records.withLatest({ ...record, head: 0 }, page.rows, page.earlier));
        this.change((record) => records.withoutUndone(record, noted, page.rows, page.earlier));
        this.problem.value = "";
      });
      // The reason for a missing answer is not a row, and its event may have been missed, even if the turn was still
      // running just now: it may end before the stream opens.
      const turn = records.unanswered(page.rows);
      this.unanswered = turn;
      this.#follow();
      if (turn && turn !== view.running) this.#settle(turn);
    } catch (error) {
      this.#failed(error);
    } finally {
      this.loading.value = false;
    }
  }

  async loadEarlier() {
    const first = this.record.value.rows[0]?.seq;
    if (!first || this.loading.value) return;
    this.loading.value = true;
    try {
      const page = await this.#page(first);
      if (!this.closed) this.change((record) => records.withEarlier(record, page.rows, page.earlier));
    } catch (error) {
      this.#failed(error);
    } finally {
      this.loading.value = false;
    }
  }

  #path(rest = "") {
    return `/api/sessions/${encodeURIComponent(this.id.value)}${rest}`;
  }

  async #page(before) {
    const query = before === null ? "" : `&before=${before}`;
    const answer = await get(this.#path(`/messages?limit=${records.PAGE}${query}`));
    const rows = answer.messages.map(({ seq, message, turn }) => ({ seq, message, turn }));
    return { rows, earlier: answer.next !== null };
  }

  #failed(error) {
    if (this.closed) return;
    if (error.status === 401) this.on.signedOut(error.message);
    else this.problem.value = error.message;
  }

  // -- the stream ---------------------------------------------------------------------------------------------------

  #follow() {
    this.stream?.abort();
    const stream = (this.stream = new AbortController());
    const mine = (react) => (value) => {
      if (!stream.signal.aborted && !this.closed) react(value);
    };
    follow({
      path: this.#path("/events"),
      last: () => this.record.value.head,
      onOpen: mine(() => this.#opened()),
      onEvents: mine((events) => this.#take(events)),
      onLost: mine(() => {
        this.connection.value = "lost";
      }),
      onRefused: mine((refusal) => {
        this.connection.value = "gone";
        this.#failed(refusal);
      }),
      isOver: () => this.#isOver(),
      signal: stream.signal,
    });
  }

  /** Whether the session has ended; false if the gateway does not respond. */
  async #isOver() {
    try {
      this.view.value = await get(this.#path());
    } catch {
      return false; // it is stopping: the stream reconnects and finds out
    }
    if (this.view.value.ended === null) return false;
    batch(() => {
      this.connection.value = "idle";
      this.change((record) => ({ ...record, running: null, draft: "", live: {} }));
    });
    return true;
  }

  #opened() {
    const unsettled = this.record.value.running;
    if (this.connection.value === "lost") this.#back();
    this.text = "";
    batch(() => {
      this.connection.value = "open";
      this.problem.value = "";
      this.change(records.reopened);
    });
    const turns = new Set([unsettled, this.unanswered, ...this.record.value.pending.map((item) => item.turn)]);
    this.unanswered = null;
    for (const turn of turns) if (turn) this.#settle(turn);
    for (const question of this.record.value.asked) this.#ask(question.id);
    this.on.changed();
  }

  /** The gateway may have been restarted with a different configuration. */
  async #back() {
    this.on.back();
    try {
      this.view.value = await get(this.#path());
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Requests the outcome of a turn that may have ended while the stream was not connected. */
  async #settle(turn) {
    try {
      const outcome = await get(`/api/turns/${encodeURIComponent(turn)}`);
      const over = outcome.state !== "queued" && outcome.state !== "running";
      if (!over) return;
      // Its rows may have been missed too; all of them are stored now.
      const page = await this.#page(null);
      if (this.closed || this.record.value.ended.includes(turn)) return;
      this.change((record) => records.apply(records.withMissing(record, page.rows), { type: "turn_ended", outcome }));
    } catch (error) {
      // The gateway no longer knows this turn, so it is not running.
      if (error.status === 404 && this.record.value.running === turn) {
        this.change((record) => ({ ...record, running: null, draft: "", live: {} }));
      }
    }
  }

  #take(events) {
    batch(() => {
      for (const event of events) {
        if (event.type === "text") this.text += event.text;
        else {
          this.#flush();
          this.change((record) => records.apply(record, event));
          if (event.type === "turn_started") this.lastStarted = event.turn;
          if (LIST_EVENTS.has(event.type)) this.on.changed();
        }
      }
    });
    if (this.text && !this.timer) {
      const wait = this.record.value.draft.length > LONG ? DRAW_LONG_EVERY : DRAW_EVERY;
      this.timer = setTimeout(() => this.#flush(), wait);
    }
  }

  #flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const text = this.text;
    this.text = "";
    if (text) this.change((record) => records.apply(record, { type: "text", text }));
  }

  #visibility() {
    clearTimeout(this.hiding);
    if (!document.hidden) {
      if (this.connection.value === "idle" && this.view.value?.ended === null) this.#follow();
      return;
    }
    this.hiding = setTimeout(() => {
      if (this.record.value.running || this.record.value.pending.length) return;
      this.stream?.abort();
      this.connection.value = "idle";
    }, HIDDEN_FOR);
  }

  // -- actions ------------------------------------------------------------------------------------------------------

  /** Sends a message or a command. Resolves to false when it was refused and its text should return to the box. */
  async send(text, { busy, agent }) {
    if (COMMAND.test(text)) return this.#command(text.trim(), agent);
    const key = newKey();
    this.change((record) => records.withPending(record, key, text));
    return this.#deliver(key, { busy, agent });
  }

  async retry(key, options) {
    this.change((record) => records.changePending(record, key, { state: "sending", error: "" }));
    await this.#deliver(key, options);
  }

  discard(key) {
    this.change((record) => records.dropPending(record, key));
  }

  #body(text, agent, busy) {
    const body = { text };
    if (this.id.value) body.session = this.id.value;
    else if (agent) body.agent = agent;
    if (busy) body.busy = busy;
    return body;
  }

  async #deliver(key, { busy, agent }) {
    const { text } = this.record.value.pending.find((item) => item.key === key);
    let accepted;
    try {
      accepted = await post("/api/messages", this.#body(text, agent, busy), { "Idempotency-Key": key });
    } catch (error) {
      if (this.closed) this.on.unsent(this, text);
      else if (error.status === 401) this.on.signedOut(error.message);
      if (error.status !== 0 && error.status < 500) {
        this.discard(key);
        this.problem.value = error.message;
        return false;
      }
      this.change((record) => records.changePending(record, key, { state: "failed", error: error.message }));
      return true;
    }
    this.#accepted(key, accepted);
    return true;
  }

  #accepted(key, { turn, how, ahead = 0, session }) {
    batch(() => {
      this.problem.value = "";
      this.change((record) => {
        const next = records.changePending(record, key, { state: "accepted", turn, how, ahead });
        const runs = how === "started" && !next.running && !next.ended.includes(turn);
        return runs ? { ...next, running: turn } : next;
      });
    });
    if (this.record.value.ended.includes(turn)) this.discard(key);
    if (this.id.value !== session && !this.closed) {
      this.id.value = session;
      this.on.begun(session);
      this.reload();
    }
    this.on.changed();
    this.#watchOver(turn);
  }

  /** A turn that ends before the stream connects is reported only by its rows, so its outcome is requested. */
  async #watchOver(turn) {
    for (let wait = ASK_AFTER; !this.closed; wait = Math.min(2 * wait, ASK_EVERY)) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (this.closed || this.lastStarted === turn || this.record.value.ended.includes(turn)) return;
      if (this.connection.value === "open") await this.#settle(turn);
    }
  }

  async #command(line, agent) {
    try {
      const answer = await post("/api/messages", this.#body(line, agent));
      if (!this.closed) await this.#replied(answer.reply);
      this.on.changed();
      return true;
    } catch (error) {
      this.#failed(error);
      return false;
    }
  }

  /** A reply names the current conversation. None, where there was one, means that it has ended. */
  async #replied({ text, session = null }) {
    if (session !== this.id.value) {
      this.on.moved(session, text);
      return;
    }
    if (session) await this.reload();
    this.note("reply", text);
  }

  /** Answers an approval or a question. Resolves to whether it is closed, by this answer or another one. */
  async answer(id, decision, text = "", scope = "call") {
    try {
      await post(questionPath(id), { decision, text, scope });
    } catch (error) {
      this.#failed(error);
      if (error.status !== 404 && error.status !== 409) return false;
    }
    this.change((record) => records.apply(record, { type: "answered", id }));
    this.on.changed();
    return true;
  }

  /** Checks a question, which may have been answered elsewhere while the stream was not connected. */
  async #ask(id) {
    try {
      if ((await get(questionPath(id))).state === "open") return;
    } catch (error) {
      if (error.status !== 404) return; // checked again at the next reconnection
    }
    if (!this.closed) this.change((record) => records.apply(record, { type: "answered", id }));
  }

  async stop() {
    if (!this.id.value || !this.record.value.running) return;
    try {
      await post(this.#path("/stop"), {});
    } catch (error) {
      this.#failed(error);
    }
  }
}
