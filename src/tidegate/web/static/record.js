// The state of one conversation as an immutable value, and how each event changes it. Applying the same events twice, as
// happens when a stream reconnects, shows everything once. Rows, notes, questions, pending messages and the output of
// running tools are bounded. Nothing here uses the network or the document.

export const PAGE = 200; // rows per request
export const MOST_ROWS = 400; // rows kept and rendered; older ones are loaded again on request
const MOST_NOTES = 50;
const MOST_ENDED = 50;
const MOST_ASKED = 50;
const MOST_PROGRESS = 8_000; // characters of a running tool's output: the last ones

export const EMPTY = Object.freeze({
  rows: [], // {seq, message}, ascending
  earlier: false, // rows before the first one exist
  later: false, // rows after the last one exist: the window was moved back
  draft: "", // text of the model answer that is being written
  reset: "", // why the draft was restarted
  live: {}, // call id → {name, arguments, state, excerpt, progress}: tools of the running step
  asked: [], // {id, turn, kind, tool, summary, choices, expires, agent, for_owner, scopes}: open questions, the oldest first
  notes: [], // {id, after, kind, text, retry, turn}: texts beside the transcript; `turn` is the turn they belong to, if any
  pending: [], // {key, text, since, turn, how, ahead, state, error}: sent, not yet a row; `since` is the row before it
  running: null, // id of the running turn
  notices: 0, // notices received in the running turn; numbers them
  ended: [], // turns known to have ended
  head: 0, // highest row received
});

const trim = (list, most) => (list.length > most ? list.slice(list.length - most) : list);

/** The turns that have notes now, except the running one: the ones that `withoutUndone` may remove. */
export function notedTurns(record) {
  return new Set(record.notes.map((note) => note.turn).filter((turn) => turn && turn !== record.running));
}

/**
 * Removes the notes of turns that were undone: those among `noted`, read before the page was requested, that have no row
 * in the page although their position is in its range.
 */
export function withoutUndone(record, noted, rows, earlier) {
  const there = new Set(rows.map((row) => row.turn));
  const first = rows[0]?.seq ?? 0;
  const isUndone = ({ turn, after }) => turn && noted.has(turn) && !there.has(turn) && (!earlier || after >= first);
  return { ...record, notes: record.notes.filter((note) => !isUndone(note)) };
}

/** The turn of the last row if it has no answer: it is running, or it failed or was stopped before it had one. */
export function unanswered(rows) {
  const last = rows.at(-1);
  if (!last?.turn) return null;
  return last.message.role === "assistant" && !last.message.calls?.length ? null : last.turn;
}

/** Adds a note; one with the same id is added only once. */
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

/** Removes the pending message that became this row: sent before it, with the same text, preferably of the same turn. */
function withoutPending(record, seq, text) {
  const same = record.pending.filter((item) => item.since < seq && item.text.trim() === text.trim());
  if (!same.length) return record;
  const taken = same.find((item) => item.turn !== null && item.turn === record.running) ?? same[0];
  const rest = record.pending.filter((item) => item !== taken);
  // Another pending message with the same text must not be removed when this row is received again.
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

/** A pending message after its turn has ended: one that came too late to join it becomes a turn of its own. */
function settled(item, turn) {
  if (item.turn !== turn) return [item];
  return item.how === "steered" ? [{ ...item, turn: null, how: "queued", ahead: 1 }] : [];
}

/** Adds a question; the same one is added only once. */
function withAsked(record, { id, turn, kind, tool = "", summary, choices = [], expires = null, agent = "", for_owner = false, scopes = [] }) {
  if (record.asked.length >= MOST_ASKED || record.asked.some((question) => question.id === id)) return record;
  return { ...record, asked: [...record.asked, { id, turn, kind, tool, summary, choices, expires, agent, for_owner, scopes }] };
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
  // The text of a stopped turn is a row, which already shows that it was stopped.
  const isSaid = state === "stopped" && next.rows.at(-1)?.message.finish === "stopped";
  if (!error || isSaid) return next;
  const kind = state === "stopped" ? "notice" : "error";
  return withNote(next, { id: `${turn}:end`, kind, text: error.message, retry: state === "failed", turn });
}

/** The state of a tool call, from its result or its `tool_ended` event. */
export function stateOf({ failed, interrupted }) {
  if (interrupted) return "interrupted";
  return failed ? "failed" : "done";
}

/** The record after one event of the session's stream. Unknown events change nothing. */
export function apply(record, event) {
  switch (event.type) {
    case "turn_started": {
      const fresh = { ...record, running: event.turn, draft: "", reset: "", live: {}, notices: 0 };
      if (!event.resumed) return fresh;
      const text = "The gateway was restarted; the answer continues from its last completed step.";
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
      // A tool starts after the answer that calls it became a row, so any remaining draft is a repetition of that answer.
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

/** The stream was (re)opened: the events of the running turn will be repeated from its beginning. */
export function reopened(record) {
  return { ...record, draft: "", reset: "", live: {}, notices: 0 };
}

/** Replaces the rows with the newest page from the gateway. */
export function withLatest(record, rows, earlier) {
  const head = Math.max(record.head, rows.at(-1)?.seq ?? 0);
  let next = { ...record, rows, earlier, later: false, head };
  for (const { seq, message } of rows) {
    if (next.pending.length && message.role === "user") next = withoutPending(next, seq, message.text ?? "");
  }
  return next;
}

/** Adds the newest rows that were missed, unless there is a gap; then the stream delivers them in order. */
export function withMissing(record, rows) {
  const missing = rows.filter((row) => row.seq > record.head);
  const isNext = missing.length > 0 && (missing.length < rows.length || missing[0].seq === record.head + 1);
  return isNext ? missing.reduce((next, row) => added(next, row), record) : record;
}

/** Adds an older page in front, and drops the newest rows if there are too many. */
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

/** The status shown below a sent message, as the gateway reported it. */
export function acknowledgement({ state, how, ahead, error }) {
  if (state === "sending") return "Sending…";
  if (state === "failed") return error;
  switch (how) {
    case "queued":
      return ahead > 1 ? `Queued behind ${ahead} messages.` : "Queued; it will be answered next.";
    case "steered":
      return "Will join the current answer at its next step.";
    case "interrupting":
      return "Stopping the current answer first.";
    default:
      return "";
  }
}
