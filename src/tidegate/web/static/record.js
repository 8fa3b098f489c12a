// What the page knows of one conversation, as one immutable value, and how each event changes it. Guarantee: applying
// the same events twice, as happens when a stream is taken up again, shows everything once; the number of rows, notes,
// questions and pending messages kept is bounded, and so is what is kept of a running tool's output. Nothing here
// touches the network or the document.

export const PAGE = 200; // rows asked for at a time
export const MOST_ROWS = 400; // rows kept and drawn; older ones are fetched again when asked for
const MOST_NOTES = 50;
const MOST_ENDED = 50;
const MOST_ASKED = 50;
const MOST_PROGRESS = 8_000; // characters of what a running tool puts out: the last ones

export const EMPTY = Object.freeze({
  rows: [], // {seq, message}, ascending
  earlier: false, // rows before the first one exist
  later: false, // rows after the last one exist: the window was moved back
  draft: "", // text of the model answer that is in flight
  reset: "", // why the draft was begun again
  live: {}, // call id → {name, arguments, state, excerpt, progress}: tools of the running step
  asked: [], // {id, turn, kind, tool, summary, choices, expires, agent, for_owner}: what waits for a person's answer, the oldest first
  notes: [], // {id, after, kind, text, retry, turn}: what is told beside the transcript; `turn` is whose it is, if any
  pending: [], // {key, text, since, turn, how, ahead, state, error}: sent, not yet a row; `since` is the row before it
  running: null, // id of the running turn
  notices: 0, // notices seen in the running turn, which numbers them
  ended: [], // turns known to be over
  head: 0, // highest row seen
});

const trim = (list, most) => (list.length > most ? list.slice(list.length - most) : list);

/** The turns that have notes, or had ended, by the time of asking: what `withoutUndone` may judge. */
export function notedTurns(record) {
  return new Set(record.notes.map((note) => note.turn).filter((turn) => turn && turn !== record.running));
}

/**
 * Takes away the notes of turns that were undone: those among `noted`, noted before the page was asked for, that have no
 * row in it although their place is in its range.
 */
export function withoutUndone(record, noted, rows, earlier) {
  const there = new Set(rows.map((row) => row.turn));
  const first = rows[0]?.seq ?? 0;
  const isUndone = ({ turn, after }) => turn && noted.has(turn) && !there.has(turn) && (!earlier || after >= first);
  return { ...record, notes: record.notes.filter((note) => !isUndone(note)) };
}

/** The turn of the last row if it has left no answer there: it runs, or has failed or was stopped before it had one. */
export function unanswered(rows) {
  const last = rows.at(-1);
  if (!last?.turn) return null;
  return last.message.role === "assistant" && !last.message.calls?.length ? null : last.turn;
}

/** Adds a note once: the same id again changes nothing. */
export function withNote(record, note) {
  if (record.notes.some((other) => other.id === note.id)) return record;
  return { ...record, notes: trim([...record.notes, { after: record.head, retry: false, ...note }], MOST_NOTES) };
}

function withRow(record, seq, message) {
  const head = Math.max(record.head, seq);
  const known = record.rows.findIndex((row) => row.seq === seq);
  if (known >= 0) return { ...record, head };
  const last = record.rows.at(-1)?.seq ?? 0;
  if (record.later && seq > last) return { ...record, head };
  const rows = seq > last ? [...record.rows, { seq, message }] : [...record.rows, { seq, message }].sort((a, b) => a.seq - b.seq);
  if (rows.length <= MOST_ROWS) return { ...record, rows, head };
  return { ...record, rows: rows.slice(rows.length - MOST_ROWS), earlier: true, head };
}

/** Takes the pending message away that this row is: sent since, of the same text, of its own turn if there is a choice. */
function withoutPending(record, seq, text) {
  const same = record.pending.filter((item) => item.since < seq && item.text.trim() === text.trim());
  if (!same.length) return record;
  const taken = same.find((item) => item.turn !== null && item.turn === record.running) ?? same[0];
  const rest = record.pending.filter((item) => item !== taken);
  // An equal text that still waits must not be taken for this row when it is told again.
  return { ...record, pending: rest.map((item) => (same.includes(item) ? { ...item, since: seq } : item)) };
}

function without(live, ids) {
  const rest = { ...live };
  for (const id of ids) delete rest[id];
  return rest;
}

function added(record, { seq, message }) {
  let next = withRow(record, seq, message);
  if (message.role === "assistant") {
    const calls = (message.calls ?? []).map((call) => call.id);
    next = { ...next, draft: "", reset: "", live: without(next.live, calls) };
  } else if (message.role === "tool") {
    next = { ...next, live: without(next.live, [message.call_id]) };
  } else if (message.role === "user") next = withoutPending(next, seq, message.text ?? "");
  return next;
}

/** What is left of a pending message when a turn has ended: steered too late, it becomes a turn of its own. */
function settled(item, turn) {
  if (item.turn !== turn) return [item];
  return item.how === "steered" ? [{ ...item, turn: null, how: "queued", ahead: 1 }] : [];
}

/** Adds a question once; told again, it changes nothing. */
function withAsked(record, { id, turn, kind, tool = "", summary, choices = [], expires = null, agent = "", for_owner = false }) {
  if (record.asked.length >= MOST_ASKED || record.asked.some((question) => question.id === id)) return record;
  return { ...record, asked: [...record.asked, { id, turn, kind, tool, summary, choices, expires, agent, for_owner }] };
}

function withoutAsked(record, isOver) {
  const asked = record.asked.filter((question) => !isOver(question));
  return asked.length === record.asked.length ? record : { ...record, asked };
}

function turnEnded(record, outcome) {
  const { turn, state, error } = outcome;
  let next = withoutAsked(record, (question) => question.turn === turn);
  if (next.running === turn) {
    if (state !== "answered" && next.draft) {
      next = withNote(next, { id: `${turn}:draft`, kind: "unfinished", text: next.draft, turn });
    }
    next = { ...next, running: null, draft: "", reset: "", live: {} };
  }
  next = { ...next, ended: trim([...next.ended.filter((id) => id !== turn), turn], MOST_ENDED) };
  next = { ...next, pending: next.pending.flatMap((item) => settled(item, turn)) };
  // What had been said when it was stopped is a row, under which that stands already.
  const isSaid = state === "stopped" && next.rows.at(-1)?.message.finish === "stopped";
  if (!error || isSaid) return next;
  const kind = state === "stopped" ? "notice" : "error";
  return withNote(next, { id: `${turn}:end`, kind, text: error.message, retry: state === "failed", turn });
}

/** How a tool's call ended, by its result or by the event that told of it. */
export function stateOf({ failed, interrupted }) {
  if (interrupted) return "interrupted";
  return failed ? "failed" : "done";
}

/** The record after one event of the session's stream. An event of a kind that is not known changes nothing. */
export function apply(record, event) {
  switch (event.type) {
    case "turn_started": {
      const fresh = { ...record, running: event.turn, draft: "", reset: "", live: {}, notices: 0 };
      if (!event.resumed) return fresh;
      const text = "The gateway was restarted; the answer goes on from its last finished step.";
      return withNote(fresh, { id: `${event.turn}:resumed`, kind: "notice", text, turn: event.turn });
    }
    case "text":
      return { ...record, draft: record.draft + event.text };
    case "text_reset":
      return { ...record, draft: "", reset: event.reason };
    case "message":
      return added(record, { seq: event.seq, message: event.message });
    case "tool_started": {
      const tool = { name: event.name, arguments: event.arguments, state: "running", excerpt: "", progress: "" };
      // A tool starts when the answer that asked for it is a row: what is left of a draft was that answer, told again.
      return { ...record, draft: "", live: { ...record.live, [event.call_id]: tool } };
    }
    case "tool_progress": {
      const before = record.live[event.call_id];
      if (before?.state !== "running") return record;
      const progress = (before.progress + event.text).slice(-MOST_PROGRESS);
      return { ...record, live: { ...record.live, [event.call_id]: { ...before, progress } } };
    }
    case "asked":
      return withAsked(record, event);
    case "answered":
      return withoutAsked(record, (question) => question.id === event.id);
    case "tool_ended": {
      const before = record.live[event.call_id] ?? { name: event.name, arguments: "" };
      const tool = { ...before, state: stateOf(event), excerpt: event.excerpt };
      return { ...record, live: { ...record.live, [event.call_id]: tool } };
    }
    case "notice": {
      const notices = record.notices + 1;
      const id = `${record.running}:notice-${notices}`;
      return withNote({ ...record, notices }, { id, kind: "notice", text: event.text, turn: record.running });
    }
    case "turn_ended":
      return turnEnded(record, event.outcome);
    default:
      return record;
  }
}

/** The stream was (re)opened: what was live will be told again from its beginning. */
export function reopened(record) {
  return { ...record, draft: "", reset: "", live: {}, notices: 0 };
}

/** The newest page of rows, as read from the gateway, replaces the window. */
export function withLatest(record, rows, earlier) {
  const head = Math.max(record.head, rows.at(-1)?.seq ?? 0);
  let next = { ...record, rows, earlier, later: false, head };
  for (const { seq, message } of rows) {
    if (next.pending.length && message.role === "user") next = withoutPending(next, seq, message.text ?? "");
  }
  return next;
}

/** The newest rows that were not heard of yet, if nothing lies between: then the stream tells them in their order. */
export function withMissing(record, rows) {
  const missing = rows.filter((row) => row.seq > record.head);
  const isNext = missing.length > 0 && (missing.length < rows.length || missing[0].seq === record.head + 1);
  return isNext ? missing.reduce((next, row) => added(next, row), record) : record;
}

/** An older page in front; the window then loses its newest rows if it has grown too long. */
export function withEarlier(record, rows, earlier) {
  const all = [...rows, ...record.rows];
  return { ...record, rows: all.slice(0, MOST_ROWS), earlier, later: record.later || all.length > MOST_ROWS };
}

export function withPending(record, key, text) {
  const item = { key, text, since: record.head, turn: null, how: "", ahead: 0, state: "sending", error: "" };
  return { ...record, pending: [...record.pending, item] };
}

export function changePending(record, key, change) {
  return { ...record, pending: record.pending.map((item) => (item.key === key ? { ...item, ...change } : item)) };
}

export function dropPending(record, key) {
  return { ...record, pending: record.pending.filter((item) => item.key !== key) };
}

/** What a person is told of a message that was accepted; it says what will happen, as the gateway said it. */
export function acknowledgement({ state, how, ahead, error }) {
  if (state === "sending") return "Sending…";
  if (state === "failed") return error;
  switch (how) {
    case "queued":
      return ahead > 1 ? `Queued: ${ahead} messages are answered before it.` : "Queued: it is answered next.";
    case "steered":
      return "Joins the running answer at its next step.";
    case "interrupting":
      return "Stops the running answer, then is answered.";
    default:
      return "";
  }
}
