// The message box. The text stays in the box until the gateway has accepted or refused it. Enter sends, Shift+Enter
// inserts a line break, Tab completes a command. The focus is never trapped: Tab is handled only while the list of
// commands is open.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

/** The commands that match a text; none once it has more than one word. */
export function matching(commands, text) {
  const typed = /^\/(\S*)$/.exec(text);
  if (!typed) return [];
  const word = typed[1].toLowerCase();
  const named = commands.filter((command) => bare(command.name).startsWith(word));
  const also = commands.filter((command) => !named.includes(command) && command.aliases.some((name) => bare(name).startsWith(word)));
  return [...named, ...also];
}

const bare = (name) => name.replace(/^\//, "");

function Suggestions({ found, chosen, onPick }) {
  const list = useRef(null);
  useEffect(() => list.current.children[chosen]?.scrollIntoView({ block: "nearest" }), [chosen]);
  return html`<ul ref=${list} class="suggestions" id="suggestions" role="listbox" aria-label="Commands">
    ${found.map((command, place) => html`<li key=${command.name} id=${`suggestion-${place}`} role="option" aria-selected=${place === chosen}
      onMouseDown=${(event) => { event.preventDefault(); onPick(command); }}>
      <b>/${bare(command.name)}</b> ${command.arguments && html`<i>${command.arguments}</i>`}
      <span>${command.help}</span>${command.cost && html`<span class="cost">${command.cost}</span>`}</li>`)}
  </ul>`;
}

const BUSY = [
  ["queue", "Answer next"],
  ["steer", "Add to this answer"],
  ["interrupt", "Interrupt this answer"],
];

function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

export function Composer({ conversation, commands, agents, agent, onAgent, keep }) {
  const box = useRef(null);
  const written = useRef("");
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const [hidden, setHidden] = useState(false);
  const [busy, setBusy] = useState("queue");
  const [sending, setSending] = useState(false);
  const running = Boolean(conversation.record.value.running);
  const found = hidden ? [] : matching(commands, text);
  const isOpen = found.length > 0;

  const put = (value) => {
    box.current.value = written.current = value;
    setText(value);
    setChosen(0);
    grow(box.current);
  };
  // Before the page is painted: text typed from then on belongs to this conversation and must not be replaced.
  useLayoutEffect(() => {
    put(keep.get(conversation) ?? "");
    if (window.matchMedia("(pointer: fine)").matches) box.current.focus();
    return () => keep.set(conversation, written.current);
  }, [conversation]);

  const pick = (command) => put(`/${bare(command.name)} `);
  const send = async () => {
    const value = box.current.value;
    if (!value.trim() || sending) return;
    put("");
    setSending(true);
    const taken = await conversation.send(value, { busy: running ? busy : undefined, agent });
    setSending(false);
    if (!taken && box.current && !box.current.value) put(value);
  };
  const key = (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (isOpen && step) setChosen((chosen + step + found.length) % found.length);
    else if (isOpen && event.key === "Escape") {
      setHidden(true);
      event.stopPropagation();
    } else if (isOpen && event.key === "Tab" && !event.shiftKey) pick(found[chosen]);
    else if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey) {
      const typed = bare(text.trim()).toLowerCase();
      const exact = found.some((command) => [command.name, ...command.aliases].some((name) => bare(name) === typed));
      if (isOpen && !exact) pick(found[chosen]);
      else send();
    } else return;
    event.preventDefault();
  };
  const input = (event) => {
    written.current = event.target.value;
    setText(event.target.value);
    setChosen(0);
    setHidden(false);
    grow(event.target);
  };

  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${isOpen && html`<${Suggestions} found=${found} chosen=${chosen} onPick=${pick} />`}
    <div class="box">
      <textarea ref=${box} rows="1" id="composer" aria-label="Message" placeholder="Type a message, or / for commands"
        aria-autocomplete="list" aria-controls=${isOpen ? "suggestions" : null} aria-activedescendant=${isOpen ? `suggestion-${chosen}` : null}
        enterkeyhint="send" autocomplete="off" onInput=${input} onKeyDown=${key}></textarea>
      <div class="actions">
        ${!conversation.id.value && agents.length > 1 && html`<label><span class="unseen">Agent</span>
          <select value=${agent} onChange=${(event) => onAgent(event.target.value)}>
            ${agents.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
        ${running && html`<label class="busy"><span class="unseen">While the agent is answering</span>
          <select id="busy" value=${busy} onChange=${(event) => setBusy(event.target.value)}>
            ${BUSY.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select></label>`}
        <span class="hint" aria-hidden="true">${running ? "Esc to stop" : "Enter to send, Shift+Enter for a new line"}</span>
        ${running && html`<button type="button" id="stop" class="stop" onClick=${() => conversation.stop()}>Stop</button>`}
        <button type="submit" id="send" class="send" disabled=${!text.trim()}>Send</button>
      </div>
    </div>
  </form>`;
}
