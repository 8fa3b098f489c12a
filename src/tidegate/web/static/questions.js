// Draws what an agent asks: an action to approve or deny, or a question to answer. Guarantee: what is asked about is
// shown whole, as text; nothing is answered by a key that was meant for something else, since keys count only while the
// card itself has the focus; an answer is sent once, and what was written stays until the gateway has taken it.

import { html, useRef, useState } from "./ui.js";

const MOST_KEYS = 9; // choices that have a key of their own

/** Goes to the first question, if there is one; whether there is. */
export function goToQuestion() {
  const card = document.querySelector(".question");
  card?.focus();
  return Boolean(card);
}

function until(expires) {
  if (!expires) return "";
  const time = new Date(expires * 1000);
  const isToday = time.toDateString() === new Date().toDateString();
  return time.toLocaleString(undefined, isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

/** A box for words, and what sends them. */
function Words({ label, button, kind, needed, busy, onSend }) {
  const box = useRef(null);
  const [text, setText] = useState("");
  const send = () => (text.trim() || !needed ? onSend(text.trim()) : box.current.focus());
  return html`<form class="words" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <input ref=${box} type="text" aria-label=${label} placeholder=${label} maxlength="4000" autocomplete="off"
      value=${text} onInput=${(event) => setText(event.target.value)} />
    <button type="submit" class=${kind} disabled=${busy}>${button}</button>
  </form>`;
}

export function Question({ question, onAnswer }) {
  const { id, kind, summary, choices, expires, agent, for_owner: forOwner } = question;
  const [busy, setBusy] = useState(false);
  const isApproval = kind === "approval";
  const answer = async (decision, text = "") => {
    if (busy) return;
    setBusy(true);
    if (!(await onAnswer(id, decision, text))) setBusy(false);
    else document.getElementById("composer")?.focus();
  };
  const key = (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // or it would stop the turn that asks
      document.getElementById("composer")?.focus();
      return;
    }
    if (event.target !== event.currentTarget || event.altKey || event.ctrlKey || event.metaKey) return;
    const place = Number(event.key) - 1;
    if (isApproval && event.key.toLowerCase() === "y") answer("approved");
    else if (isApproval && event.key.toLowerCase() === "n") answer("denied");
    else if (place < MOST_KEYS && choices[place] !== undefined) answer("answered", choices[place]);
    else return;
    event.preventDefault();
  };
  const keys = isApproval ? "Y approves, N denies" : choices.length ? `1 to ${Math.min(choices.length, MOST_KEYS)} answer` : "";
  return html`<section class="question" role="group" tabindex="0" data-kind=${kind} aria-busy=${busy} aria-keyshortcuts="Alt+Q"
    aria-labelledby=${`asks-${id}`} aria-describedby=${`about-${id}`} onKeyDown=${key}>
    <h3 id=${`asks-${id}`}>${`The agent${agent ? ` ${agent}` : ""} asks${isApproval ? ` for ${forOwner ? "the owner's" : "your"} approval` : ""}`}</h3>
    <pre id=${`about-${id}`} class=${isApproval ? "action" : "asked"}>${summary}</pre>
    ${isApproval
      ? html`<div class="choices"><button type="button" class="send approve" disabled=${busy} onClick=${() => answer("approved")}>Approve</button>
          <${Words} label="Why not, if you like" button="Deny" kind="stop deny" busy=${busy} onSend=${(text) => answer("denied", text)} /></div>`
      : choices.length
        ? html`<div class="choices">${choices.map((choice, place) => html`<button type="button" key=${place} disabled=${busy}
            onClick=${() => answer("answered", choice)}>${place < MOST_KEYS && html`<kbd aria-hidden="true">${place + 1}</kbd> `}${choice}</button>`)}</div>`
        : html`<${Words} label="Your answer" button="Answer" kind="send" needed busy=${busy} onSend=${(text) => answer("answered", text)} />`}
    <p class="hint">${["Alt+Q comes here", keys, until(expires) && `until ${until(expires)}`].filter(Boolean).join(" · ")}</p>
  </section>`;
}
