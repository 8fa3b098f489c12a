// Renders a conversation's record: rows, tools, notes, the growing answer and pending messages. A row is rendered again
// only when it changes. Very long texts are shown in part until the user expands them. The scroll position is kept; a
// user at the end stays at the end when text is added.

import { AnswerText, GrowingAnswerText } from "./answer_text.js";
import { MediaOf } from "./media.js";
import { Question } from "./questions.js";
import { acknowledgement, stateOf } from "./record.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const LONGEST_DRAWN = 60_000; // characters of one text; a button shows the rest
const NEAR_END = 48; // pixels from the end that still count as "at the end"
const LONGEST_ANNOUNCED = 2_000; // characters read aloud of an answer

// -- texts ----------------------------------------------------------------------------------------------------------

function Long({ text, draw }) {
  const [whole, setWhole] = useState(false);
  if (whole || text.length <= LONGEST_DRAWN) return draw(text);
  const hidden = Math.ceil((text.length - LONGEST_DRAWN) / 1000);
  return html`${draw(text.slice(0, LONGEST_DRAWN))}
    <button type="button" class="quiet more" onClick=${() => setWhole(true)}>Show ${hidden} thousand more characters</button>`;
}

const asMarkdown = (text) => html`<${AnswerText} text=${text} />`;
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
    // Not every model writes valid JSON; other text is shown unchanged.
  }
  return text ?? "";
}

const STATES = { running: "running", done: "done", failed: "failed", interrupted: "interrupted", none: "no result" };

/** The output of a running tool, scrolled to its newest lines. */
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
      <span class="tool-state">${state === "running" && waits ? "waiting for you" : STATES[state]}</span></summary>
    ${call.arguments && call.arguments !== "{}" && html`<pre tabindex="0">${call.arguments}</pre>`}
    ${excerpt && html`<${Long} text=${excerpt} draw=${(text) => html`<pre tabindex="0">${text}</pre>`} />`}
  </details>
  ${result && html`<${MediaOf} session=${session} seq=${row.seq} media=${result.media} />`}
  ${state === "running" && live.progress && html`<${Progress} text=${live.progress} />`}`;
});

// -- rows -----------------------------------------------------------------------------------------------------------

const FINISHES = {
  length: "The answer reached its length limit.",
  content_filter: "The provider's content filter ended this answer.",
  stopped: "Stopped.",
};

const UNANSWERED = "Not answered because the conversation ended. Send it again in a new conversation.";

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

/** The rows of tool results by their calls. A result belongs to the nearest call with its id before it. */
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

// -- notes, drafts and pending messages -----------------------------------------------------------------------------

/** A command's reply. Replies are formatted for terminals: columns aligned with spaces become table cells that can wrap,
 * and an indented line continues in the second column. Numbers are right-aligned; bars use a monospaced font. */
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
    return html`<article class="answer unfinished">${asWritten(note.text.slice(-LONGEST_DRAWN))}<p class="finish">Unfinished; not saved.</p></article>`;
  }
  if (note.kind === "reply") return html`<${Reply} text=${note.text} />`;
  const role = note.kind === "error" ? "alert" : null;
  return html`<p class=${`note ${note.kind}`} role=${role}>${note.text}
    ${note.retry && isLast && html` <button type="button" class="quiet" title="Retry the last message" onClick=${onRetry}>Try again</button>`}</p>`;
}

function Pending({ item, onAgain, onDiscard }) {
  const status = acknowledgement(item);
  return html`<article class="mine pending" data-state=${item.state} data-how=${item.how}>
    <h3 class="unseen">You</h3>
    <p class="plain">${item.text}</p>
    ${status && html`<p class="ack" role="status">${status}
      ${item.state === "failed" && html` <button type="button" class="quiet" onClick=${() => onAgain(item.key)}>Send again</button>
        <button type="button" class="quiet" onClick=${() => onDiscard(item.key)}>Discard</button>`}</p>`}
  </article>`;
}

function Draft({ record }) {
  const { draft, reset, running } = record;
  if (!running) return null;
  const busyTool = Object.values(record.live).some((tool) => tool.state === "running");
  return html`<article class="answer draft" aria-busy="true">
    <h3 class="unseen">Answer, being written</h3>
    ${reset && html`<p class="note">Restarted: ${reset}</p>`}
    ${draft && html`<${GrowingAnswerText} text=${draft} />`}
    ${!draft && !busyTool && !record.asked.length && html`<p class="waiting"><span class="unseen">Waiting for the answer</span><i></i><i></i><i></i></p>`}
  </article>`;
}

/** Announces a finished answer once to assistive technology; text that grows word by word cannot be followed. */
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
      before.current = !answer; // its row may arrive after its end
      setSaid(answer ? `Answer: ${answer.slice(0, LONGEST_ANNOUNCED)}` : "Done.");
    }
  }, [record.running, last?.seq]);
  const asked = record.asked[0];
  useEffect(() => {
    if (asked) setSaid(`The agent asks: ${asked.summary.slice(0, LONGEST_ANNOUNCED)}. Press Alt+Q to answer.`);
  }, [asked?.id]);
  return html`<div class="unseen" aria-live="polite" id="announcer">${said}</div>`;
}

// -- the transcript -------------------------------------------------------------------------------------------------

function timeline(record, results, session, onRetry) {
  const drawn = [];
  const notes = [...record.notes];
  const first = record.rows[0]?.seq ?? 0;
  const notesUpTo = (seq) => {
    while (notes.length && notes[0].after <= seq) {
      const note = notes.shift();
      // Only the last turn can be retried, so earlier failures have no button.
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
    // A user who sends a message wants to see it, whatever the scroll position.
    if (record.pending.length > sent.current) following.current = true;
    sent.current = record.pending.length;
    if (following.current) follow();
  });
  useEffect(() => {
    // The message box or a banner may take space: a user at the end stays there.
    const watcher = new ResizeObserver(() => {
      if (!box.current) return;
      height.current = box.current.clientHeight;
      if (following.current) follow();
    });
    watcher.observe(box.current);
    watcher.observe(box.current.firstElementChild); // a formula may grow when it is rendered
    return () => watcher.disconnect();
  }, []);
  const toEnd = () => {
    following.current = true;
    setAway(false);
    if (record.later) conversation.reload();
    else follow();
  };
  const scrolled = () => {
    if (!box.current) return; // scroll events arrive late, when the conversation may already be closed
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    const lowest = scrollHeight - clientHeight;
    const resized = clientHeight !== height.current;
    // A change of size scrolls no further than to the lowest position; a position above that is the user's choice.
    if (resized && scrollTop >= Math.min(top.current, lowest) - 1) return;
    top.current = scrollTop;
    following.current = !record.later && lowest - scrollTop < NEAR_END;
    setAway(!following.current);
  };
  const earlier = () => {
    following.current = false;
    // Browsers keep the scroll position when content is added above it, except at the very top.
    if (box.current.scrollTop === 0) box.current.scrollTop = 1;
    conversation.loadEarlier();
  };

  const results = resultsOf(record.rows);
  const now = record.pending.filter((item) => !record.running || item.turn === record.running || item.turn === null);
  const queued = record.pending.filter((item) => !now.includes(item));
  const pending = (item) => html`<${Pending} key=${item.key} item=${item} onAgain=${onAgain} onDiscard=${(key) => conversation.discard(key)} />`;
  const answer = (...details) => conversation.answer(...details);
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
    ${(away || record.later) && !isEmpty && html`<button type="button" class="to-end" onClick=${toEnd}>Jump to latest</button>`}
    <${Announcer} record=${record} />
  </div>`;
}
