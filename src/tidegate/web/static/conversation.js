// One open conversation: its record, its stream, and what a person does in it. Guarantee: opening starts one stream and
// closing ends it; a message whose fate is unknown keeps its key, so that sending it again cannot make it two; what a
// person wrote is never dropped, it is either accepted or still there to be sent again. Owned by the page's `app.js`.

import { get, post } from "./api.js";
import * as known from "./record.js";
import { follow } from "./stream.js";
import { batch, newKey, signal } from "./ui.js";

const DRAW_EVERY = 40; // milliseconds between drawings of a growing answer: smooth to the eye, cheap for the machine
const DRAW_LONG_EVERY = 200; // the same once the answer is long and a drawing costs more
const LONG = 20_000; // characters
const ASK_AFTER = 1_000; // milliseconds until a sent message's turn is asked after, if the stream says nothing of it; …
const ASK_EVERY = 15_000; // … the pause doubles up to this
const HIDDEN_FOR = 60_000; // a hidden, idle page gives its connection back: a browser has only six for one address

const TELLING = new Set(["turn_started", "turn_ended", "asked", "answered"]); // what the list shows of a conversation

const COMMAND = /^\/\p{L}+(?:\s|$)/u; // a slash and a word, as the gateway sees it: `/usr/bin` is a path, not a command

const questionPath = (id) => `/api/approvals/${encodeURIComponent(id)}`;

export class Conversation {
  /** `id` is null for one that has not begun; `on` is told of what concerns the page around it. */
  constructor(id, on) {
    this.id = signal(id);
    this.record = signal(known.EMPTY);
    this.connection = signal(id ? "connecting" : "idle"); // idle | connecting | open | lost | gone
    this.view = signal(null); // the session as the gateway shows it
    this.loading = signal(Boolean(id));
    this.problem = signal("");
    this.on = on;
    this.life = new AbortController();
    this.stream = null;
    this.text = ""; // of the draft, not drawn yet
    this.told = null; // the last turn that the stream told of
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
    this.change((record) => known.withNote(record, { id: newKey(), kind, text, ...extra }));
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  /** Reads the newest rows again (at opening, after a command that may have changed them) and follows from there. */
  async reload() {
    this.loading.value = true;
    const noted = known.notedTurns(this.record.value);
    try {
      const [page, view] = await Promise.all([this.#page(null), get(this.#path())]);
      if (this.closed) return;
      batch(() => {
        this.view.value = view;
        this.change((record) => known.withLatest({ ...record, head: 0 }, page.rows, page.earlier));
        this.change((record) => known.withoutUndone(record, noted, page.rows, page.earlier));
        this.problem.value = "";
      });
      this.#follow();
      // Why it has no answer is no row, and nobody may have been listening when it was told.
      const turn = known.unanswered(page.rows);
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
      if (!this.closed) this.change((record) => known.withEarlier(record, page.rows, page.earlier));
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
    const answer = await get(this.#path(`/messages?limit=${known.PAGE}${query}`));
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

  /** Whether the session has ended, as far as the gateway can be asked. */
  async #isOver() {
    try {
      this.view.value = await get(this.#path());
    } catch {
      return false; // it is stopping: the stream is tried again, and that tells more
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
      this.change(known.reopened);
    });
    const turns = new Set([unsettled, ...this.record.value.pending.map((item) => item.turn)]);
    for (const turn of turns) if (turn) this.#settle(turn);
    for (const question of this.record.value.asked) this.#ask(question.id);
    this.on.changed();
  }

  /** The gateway may be another one than before: its configuration too. */
  async #back() {
    this.on.back();
    try {
      this.view.value = await get(this.#path());
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Asks how a turn ended that may have ended while nobody listened. */
  async #settle(turn) {
    try {
      const outcome = await get(`/api/turns/${encodeURIComponent(turn)}`);
      const over = outcome.state !== "queued" && outcome.state !== "running";
      if (!over) return;
      // Its rows may not have been heard either; all of them are there now.
      const page = await this.#page(null);
      if (this.closed || this.record.value.ended.includes(turn)) return;
      this.change((record) => known.apply(known.withMissing(record, page.rows), { type: "turn_ended", outcome }));
    } catch (error) {
      // Gone from the gateway's memory: then nothing runs under this name any more.
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
          this.change((record) => known.apply(record, event));
          if (event.type === "turn_started") this.told = event.turn;
          if (TELLING.has(event.type)) this.on.changed();
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
    if (text) this.change((record) => known.apply(record, { type: "text", text }));
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

  // -- doing --------------------------------------------------------------------------------------------------------

  /** Sends a message or a command. Resolves to false when it was refused and its text should go back to the writer. */
  async send(text, { busy, agent }) {
    if (COMMAND.test(text)) return this.#command(text.trim(), agent);
    const key = newKey();
    this.change((record) => known.withPending(record, key, text));
    return this.#deliver(key, { busy, agent });
  }

  async retry(key, options) {
    this.change((record) => known.changePending(record, key, { state: "sending", error: "" }));
    await this.#deliver(key, options);
  }

  discard(key) {
    this.change((record) => known.dropPending(record, key));
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
      this.change((record) => known.changePending(record, key, { state: "failed", error: error.message }));
      return true;
    }
    this.#accepted(key, accepted);
    return true;
  }

  #accepted(key, { turn, how, ahead = 0, session }) {
    batch(() => {
      this.problem.value = "";
      this.change((record) => {
        const next = known.changePending(record, key, { state: "accepted", turn, how, ahead });
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

  /** A turn that is over before the stream looks is told by its rows alone: then its end is asked for. */
  async #watchOver(turn) {
    for (let wait = ASK_AFTER; !this.closed; wait = Math.min(2 * wait, ASK_EVERY)) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (this.closed || this.told === turn || this.record.value.ended.includes(turn)) return;
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

  /** A reply names the conversation where the person is now; none, after there was one, means that it has ended. */
  async #replied({ text, session = null }) {
    if (session !== this.id.value) {
      this.on.moved(session, text);
      return;
    }
    if (session) await this.reload();
    this.note("reply", text);
  }

  /** Answers what the agent asks. Whoever was first, the question is closed then; resolves to whether it is. */
  async answer(id, decision, text = "") {
    try {
      await post(questionPath(id), { decision, text });
    } catch (error) {
      this.#failed(error);
      if (error.status !== 404 && error.status !== 409) return false;
    }
    this.change((record) => known.apply(record, { type: "answered", id }));
    this.on.changed();
    return true;
  }

  /** A question may have been answered elsewhere while nobody listened. */
  async #ask(id) {
    try {
      if ((await get(questionPath(id))).state === "open") return;
    } catch (error) {
      if (error.status !== 404) return; // the next opening asks again
    }
    if (!this.closed) this.change((record) => known.apply(record, { type: "answered", id }));
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
