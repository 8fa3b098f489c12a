// The cards of approvals and questions. The action or question is shown completely, as text. Keys work only while the
// card itself has the focus, so that a key meant for something else answers nothing. An answer is sent once, and its
// text stays until the gateway has accepted it. What an approval for more than this call allows is stated beside its
// button; an approval for all conversations has no key.

import { html, useRef, useState } from "./ui.js";

const MOST_KEYS = 9; // choices that have a number key
const SCOPES = { conversation: "Allow in this conversation", always: "Always allow" };

/** Focuses the first question. Returns whether there is one. */
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

/** A text field with its button. */
function TextAnswer({ label, button, kind, needed, busy, onSend }) {
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
  const { id, kind, summary, choices, expires, agent, for_owner: forOwner, scopes } = question;
  const [busy, setBusy] = useState(false);
  const isApproval = kind === "approval";
  const further = scopes.filter(({ scope }) => SCOPES[scope]);
  const answer = async (decision, text = "", scope = "call") => {
    if (busy) return;
    setBusy(true);
    if (!(await onAnswer(id, decision, text, scope))) setBusy(false);
    else document.getElementById("composer")?.focus();
  };
  const key = (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // otherwise it would stop the turn
      document.getElementById("composer")?.focus();
      return;
    }
    if (event.target !== event.currentTarget || event.altKey || event.ctrlKey || event.metaKey) return;
    const place = Number(event.key) - 1;
    if (isApproval && event.key.toLowerCase() === "y") answer("approved");
    else if (isApproval && event.key.toLowerCase() === "n") answer("denied");
    else if (event.key.toLowerCase() === "c" && further.some(({ scope }) => scope === "conversation")) answer("approved", "", "conversation");
    else if (place < MOST_KEYS && choices[place] !== undefined) answer("answered", choices[place]);
    else return;
    event.preventDefault();
  };
  const keys = isApproval ? `Y to approve, ${further.length ? "C for this conversation, " : ""}N to deny` : choices.length ? `1–${Math.min(choices.length, MOST_KEYS)} to choose` : "";
  return html`<section class="question" role="group" tabindex="0" data-kind=${kind} aria-busy=${busy} aria-keyshortcuts="Alt+Q"
    aria-labelledby=${`asks-${id}`} aria-describedby=${`about-${id}`} onKeyDown=${key}>
    <h3 id=${`asks-${id}`}>${`The agent${agent ? ` ${agent}` : ""} asks${isApproval ? ` for ${forOwner ? "the owner's" : "your"} approval` : ""}`}</h3>
    <pre id=${`about-${id}`} class=${isApproval ? "action" : "asked"}>${summary}</pre>
    ${isApproval
      ? html`<div class="choices"><button type="button" class="send approve" disabled=${busy} onClick=${() => answer("approved")}>Approve</button>
          <${TextAnswer} label="Reason (optional)" button="Deny" kind="stop deny" busy=${busy} onSend=${(text) => answer("denied", text)} /></div>
        ${further.length > 0 && html`<div class="scopes">${further.map(({ scope, allows }) => html`<button type="button" key=${scope}
          disabled=${busy} aria-describedby=${`${scope}-${id}`} onClick=${() => answer("approved", "", scope)}>${SCOPES[scope]}</button>
          <p id=${`${scope}-${id}`}>${allows}</p>`)}</div>`}`
      : choices.length
        ? html`<div class="choices">${choices.map((choice, place) => html`<button type="button" key=${place} disabled=${busy}
            onClick=${() => answer("answered", choice)}>${place < MOST_KEYS && html`<kbd aria-hidden="true">${place + 1}</kbd> `}${choice}</button>`)}</div>`
        : html`<${TextAnswer} label="Your answer" button="Answer" kind="send" needed busy=${busy} onSend=${(text) => answer("answered", text)} />`}
    <p class="hint">${["Alt+Q to focus", keys, until(expires) && `expires ${until(expires)}`].filter(Boolean).join(" · ")}</p>
  </section>`;
}
