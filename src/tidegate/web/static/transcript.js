// Draws a conversation's record: rows, tools, notes, the growing answer, what is pending. Guarantee: a row is drawn
// again only when it changed; very long texts are drawn in part until they are asked for; the reader's place is kept
// unless he was at the end, where new text keeps him.

import { Markdown } from "./markdown.js";
import { MediaOf } from "./media.js";
import { Question } from "./questions.js";
import { acknowledgement, stateOf } from "./record.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const LONGEST_DRAWN = 60_000; // characters of one text; the rest is one press away
const DRAFT_TAIL = 30_000; // characters drawn of an answer that grows beyond the above
const NEAR_END = 48; // pixels from the end that still count as "at the end"
const LONGEST_ANNOUNCED = 2_000; // characters read aloud of an answer

// -- texts ----------------------------------------------------------------------------------------------------------

function Long({ text, draw }) {
  const [whole, setWhole] = useState(false);
  if (whole || text.length <= LONGEST_DRAWN) return draw(text);
  const hidden = Math.ceil((text.length - LONGEST_DRAWN) / 1000);
  return html`${draw(text.slice(0, LONGEST_DRAWN))}
    <button type="button" class="quiet more" onClick=${() => setWhole(true)}>Show the other ${hidden} thousand characters</button>`;
}

const asMarkdown = (text) => html`<${Markdown} text=${text} />`;
const asWritten = (text) => html`<p class="plain">${text}</p>`;

// -- tools ----------------------------------------------------------------------------------------------------------

function summary(text) {
  const line = (text ?? "").replace(/\s+/g, " ").trim();
  return line.length > 80 ? `${line.slice(0, 80)}…` : line;
}

function pretty(text) {
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object") {
      const pairs = Object.entries(value).map(([name, entry]) => `${name}: ${typeof entry === "string" ? entry : JSON.stringify(entry)}`);
      return pairs.join(", ");
    }
  } catch {
    // The model's own text is kept verbatim, and not every model writes JSON: then it is shown as it is.
  }
  return text ?? "";
}

const STATES = { running: "running", done: "done", failed: "failed", interrupted: "interrupted", none: "no result" };

/** What a running tool puts out, its newest lines in sight. */
function Progress({ text }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return html`<pre class="progress" ref=${box} tabindex="0" aria-label="Output so far">${text}</pre>`;
}

const Tool = memo(({ call, row, session, live, waits }) => {
  const result = row?.message;
  const state = result ? stateOf(result) : (live?.state ?? "none");
  const excerpt = result?.text ?? live?.excerpt ?? "";
  return html`<details class="tool" data-state=${state}>
    <summary><span class="dot" aria-hidden="true"></span><span class="tool-name">${call.name}</span>
      <span class="tool-words">${summary(pretty(call.arguments))}</span>
      <span class="tool-state">${state === "running" && waits ? "waits for you" : STATES[state]}</span></summary>
    ${call.arguments && call.arguments !== "{}" && html`<pre tabindex="0">${call.arguments}</pre>`}
    ${excerpt && html`<${Long} text=${excerpt} draw=${(text) => html`<pre tabindex="0">${text}</pre>`} />`}
  </details>
  ${result && html`<${MediaOf} session=${session} seq=${row.seq} media=${result.media} />`}
  ${state === "running" && live.progress && html`<${Progress} text=${live.progress} />`}`;
});

// -- rows -----------------------------------------------------------------------------------------------------------

const FINISHES = {
  length: "The answer reached its length limit here.",
  content_filter: "The model's provider cut this answer.",
  stopped: "Stopped here.",
};

const UNANSWERED = "Not answered: the conversation ended first. Send it again in a new one.";

const UserRow = memo(({ seq, message, session }) => {
  if (!message.text && !message.media?.length) return message.aside ? html`<p class="note">${message.aside}</p>` : null;
  return html`<article class="mine"><h3 class="unseen">You</h3>
    ${message.text && html`<${Long} text=${message.text} draw=${asWritten} />`}
    <${MediaOf} session=${session} seq=${seq} media=${message.media} />
    ${message.unanswered && html`<p class="finish">${UNANSWERED}</p>`}
  </article>`;
});

const AnswerRow = memo(({ message, tools }) => {
  if (!message.text && !tools) return null;
  return html`<article class="answer"><h3 class="unseen">Answer</h3>
    ${message.text && html`<${Long} text=${message.text} draw=${asMarkdown} />`}
    ${tools}
    ${FINISHES[message.finish] && html`<p class="finish">${FINISHES[message.finish]}</p>`}
  </article>`;
});

/** The tools of each answer with the rows of their results: one belongs to the nearest call of its id before it. */
function resultsOf(rows) {
  const results = new Map();
  const calls = new Map();
  for (const row of rows) {
    const { message } = row;
    if (message.role === "assistant") for (const call of message.calls ?? []) calls.set(call.id, call);
    else if (message.role === "tool" && calls.has(message.call_id)) results.set(calls.get(message.call_id), row);
  }
  return results;
}

function drawRow({ seq, message }, results, session, { live, asked }) {
  if (message.role === "user") return html`<${UserRow} key=${`row-${seq}`} seq=${seq} message=${message} session=${session} />`;
  if (message.role !== "assistant") return null;
  const calls = message.calls ?? [];
  const tools = calls.length
    ? calls.map((call) => html`<${Tool} key=${call.id} call=${call} row=${results.get(call)} session=${session} live=${results.has(call) ? null : live[call.id]}
        waits=${asked.some((question) => (question.tool || "ask_user") === call.name)} />`)
    : null;
  return html`<${AnswerRow} key=${`row-${seq}`} message=${message} tools=${tools} />`;
}

// -- what is beside the rows ----------------------------------------------------------------------------------------

/** A command's reply. Replies are written for terminals: columns set with spaces become columns that can wrap, and a
 * line that only begins with spaces goes on in the second. Numbers stand to the right, a bar in letters of one width. */
function Reply({ text }) {
  const rows = text.split("\n").map((line) => (/^ {2,}\S/.test(line) ? ["", ...cellsOf(line)] : cellsOf(line)));
  const columns = Math.max(...rows.map((row) => row.length));
  if (columns === 1 && !text.includes("█")) return html`<p class="note reply plain" role="status">${text}</p>`;
  return html`<div class="note reply" role="status"><table><tbody>
    ${rows.map((row) => html`<tr>${row.map((cell, place) => {
      const kind = kindOf(cell);
      const isWide = place === row.length - 1 && kind !== "number";
      return html`<td class=${kind} colspan=${isWide ? columns - place : 1}>${cell}</td>`;
    })}</tr>`)}
  </tbody></table></div>`;
}

function cellsOf(line) {
  return line.trim().split(/ {2,}/);
}

function kindOf(cell) {
  if (/^\[[█·|]+\]$/.test(cell)) return "bar";
  return /^[\d,.]+ ?%?$/.test(cell) ? "number" : null;
}

function Note({ note, isLast, onRetry }) {
  if (note.kind === "unfinished") {
    return html`<article class="answer unfinished">${asWritten(note.text.slice(-LONGEST_DRAWN))}<p class="finish">Not finished, and not kept.</p></article>`;
  }
  if (note.kind === "reply") return html`<${Reply} text=${note.text} />`;
  const role = note.kind === "error" ? "alert" : null;
  return html`<p class=${`note ${note.kind}`} role=${role}>${note.text}
    ${note.retry && isLast && html` <button type="button" class="quiet" onClick=${onRetry}>Try again</button>`}</p>`;
}

function Pending({ item, onAgain, onDiscard }) {
  const told = acknowledgement(item);
  return html`<article class="mine pending" data-state=${item.state} data-how=${item.how}>
    <h3 class="unseen">You</h3>
    <p class="plain">${item.text}</p>
    ${told && html`<p class="ack" role="status">${told}
      ${item.state === "failed" && html` <button type="button" class="quiet" onClick=${() => onAgain(item.key)}>Send again</button>
        <button type="button" class="quiet" onClick=${() => onDiscard(item.key)}>Discard</button>`}</p>`}
  </article>`;
}

function Draft({ record }) {
  const { draft, reset, running } = record;
  if (!running) return null;
  const cut = draft.length > LONGEST_DRAWN;
  const busyTool = Object.values(record.live).some((tool) => tool.state === "running");
  return html`<article class="answer draft" aria-busy="true">
    <h3 class="unseen">Answer, being written</h3>
    ${reset && html`<p class="note">Begun again: ${reset}</p>`}
    ${cut && html`<p class="note">The beginning is shown when the answer is complete.</p>`}
    ${draft && html`<${Markdown} text=${cut ? draft.slice(-DRAFT_TAIL) : draft} />`}
    ${!draft && !busyTool && !record.asked.length && html`<p class="waiting"><span class="unseen">Waiting for the answer</span><i></i><i></i><i></i></p>`}
  </article>`;
}

/** Says a finished answer once to assistive technology; a text that grows word by word cannot be listened to. */
function Announcer({ record }) {
  const [said, setSaid] = useState("");
  const before = useRef(false);
  const last = record.rows.at(-1);
  useEffect(() => {
    if (record.running) {
      before.current = true;
      setSaid("Answering.");
    } else if (before.current) {
      const answer = last?.message.role === "assistant" && last.message.text;
      before.current = !answer; // its row may come after its end was known
      setSaid(answer ? `Answer: ${answer.slice(0, LONGEST_ANNOUNCED)}` : "Done.");
    }
  }, [record.running, last?.seq]);
  const asked = record.asked[0];
  useEffect(() => {
    if (asked) setSaid(`The agent asks: ${asked.summary.slice(0, LONGEST_ANNOUNCED)}. Alt Q goes there.`);
  }, [asked?.id]);
  return html`<div class="unseen" aria-live="polite" id="announcer">${said}</div>`;
}

// -- the whole ------------------------------------------------------------------------------------------------------

function timeline(record, results, session, onRetry) {
  const drawn = [];
  const notes = [...record.notes];
  const first = record.rows[0]?.seq ?? 0;
  const notesUpTo = (seq) => {
    while (notes.length && notes[0].after <= seq) {
      const note = notes.shift();
      // What is tried again is the last turn, so that an earlier failure offers nothing.
      const isLast = note.after >= record.head && !record.running && !record.pending.length;
      if (note.after >= first - 1 || !record.earlier) drawn.push(html`<${Note} key=${`note-${note.id}`} note=${note} isLast=${isLast} onRetry=${onRetry} />`);
    }
  };
  for (const row of record.rows) {
    notesUpTo(row.seq - 1);
    drawn.push(drawRow(row, results, session, record));
  }
  if (!record.later) notesUpTo(Number.POSITIVE_INFINITY);
  return drawn;
}

export function Transcript({ conversation, onCommand, onAgain, empty }) {
  const record = conversation.record.value;
  const loading = conversation.loading.value;
  const box = useRef(null);
  const following = useRef(true);
  const height = useRef(0);
  const top = useRef(0);
  const [away, setAway] = useState(false);

  const follow = () => {
    box.current.scrollTop = box.current.scrollHeight;
    top.current = box.current.scrollTop;
  };
  const sent = useRef(0);
  useLayoutEffect(() => {
    // Who sends something wants to see it, wherever he was reading.
    if (record.pending.length > sent.current) following.current = true;
    sent.current = record.pending.length;
    if (following.current) follow();
  });
  useEffect(() => {
    // The writer's box or a banner may take room: who was at the end stays there.
    const watcher = new ResizeObserver(() => {
      if (!box.current) return;
      height.current = box.current.clientHeight;
      if (following.current) follow();
    });
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const toEnd = () => {
    following.current = true;
    setAway(false);
    if (record.later) conversation.reload();
    else follow();
  };
  const scrolled = () => {
    if (!box.current) return; // the browser tells of a scroll a moment later, when the conversation may be closed
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    const lowest = scrollHeight - clientHeight;
    const resized = clientHeight !== height.current;
    // A change of size moves the text no further than to the lowest place; a place above that is the reader's choice.
    if (resized && scrollTop >= Math.min(top.current, lowest) - 1) return;
    top.current = scrollTop;
    following.current = !record.later && lowest - scrollTop < NEAR_END;
    setAway(!following.current);
  };
  const earlier = () => {
    following.current = false;
    // Browsers keep the reader's place when something is put in front of it, except at the very top.
    if (box.current.scrollTop === 0) box.current.scrollTop = 1;
    conversation.loadEarlier();
  };

  const results = resultsOf(record.rows);
  const now = record.pending.filter((item) => !record.running || item.turn === record.running || item.turn === null);
  const queued = record.pending.filter((item) => !now.includes(item));
  const pending = (item) => html`<${Pending} key=${item.key} item=${item} onAgain=${onAgain} onDiscard=${(key) => conversation.discard(key)} />`;
  const answer = (...given) => conversation.answer(...given);
  const question = (asked) => html`<${Question} key=${asked.id} question=${asked} onAnswer=${answer} />`;
  const isEmpty = !record.rows.length && !record.pending.length && !record.notes.length && !record.asked.length && !record.running && !loading;
  return html`<div class="transcript-frame">
    <div class="transcript" ref=${box} onScroll=${scrolled} role="log" aria-live="off" aria-label="Conversation" tabindex="0">
      <div class="column">
        ${record.earlier && html`<button type="button" class="quiet more" disabled=${loading} onClick=${earlier}>Show earlier messages</button>`}
        ${isEmpty && empty}
        ${timeline(record, results, conversation.id.value, () => onCommand("/retry"))}
        ${!record.later && [...now.map(pending), html`<${Draft} key="draft" record=${record} />`, ...record.asked.map(question), ...queued.map(pending)]}
        ${loading && !record.rows.length && html`<p class="note">Loading…</p>`}
      </div>
    </div>
    ${(away || record.later) && !isEmpty && html`<button type="button" class="to-end" onClick=${toEnd}>To the latest</button>`}
    <${Announcer} record=${record} />
  </div>`;
}
