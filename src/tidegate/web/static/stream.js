// The event stream of a session, for as long as its conversation is open. After any interruption (a restarted gateway, a
// lost network, a sleeping machine) the stream reconnects and resumes after the last row it received. When its
// signal is aborted, it ends and leaves no connection and no timer.

import { refusalOf, send } from "./api.js";

const SILENCE = 45_000; // the gateway sends a comment every 15 s; three missing ones mean that the connection is dead
const FIRST_PAUSE = 250; // milliseconds before the first reconnection attempt; doubled up to …
const LONGEST_PAUSE = 4_000; // … this, so that the page reconnects to a restarted gateway within seconds
const STEADY = 5_000; // after a connection that lasted this long, the next pause is short again
const LONGEST_EVENT = 64 * 1024 * 1024; // characters; far above the largest message a gateway accepts

/** Parses the text of an event stream into `{id, data}`. Call the result with each piece as it arrives. */
export function eventParser(onEvent) {
  let rest = "";
  let id = null;
  let data = [];
  const line = (text) => {
    if (text === "") {
      if (data.length) onEvent({ id, data: data.join("\n") });
      id = null;
      data = [];
      return;
    }
    const colon = text.indexOf(":");
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "id") id = value;
  };
  return (piece) => {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    if (rest.length > LONGEST_EVENT) throw new Error("an event is too long for the page");
    for (const text of lines) line(text.endsWith("\r") ? text.slice(0, -1) : text);
  };
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      document.removeEventListener("visibilitychange", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    window.addEventListener("online", done);
    document.addEventListener("visibilitychange", done);
    signal.addEventListener("abort", done);
  });
}

async function once({ path, last, onOpen, onEvents, signal }) {
  const connection = new AbortController();
  const drop = () => connection.abort();
  signal.addEventListener("abort", drop);
  let timer = setTimeout(drop, SILENCE);
  try {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(last()) };
    const response = await send(path, { headers, signal: connection.signal });
    if (!response.ok) throw await refusalOf(response);
    onOpen();
    let events = [];
    const parse = eventParser((event) => events.push(JSON.parse(event.data)));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(drop, SILENCE);
      parse(value);
      if (events.length) onEvents(events);
      events = [];
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", drop);
    connection.abort();
  }
}

/**
 * Follows the stream until `signal` is aborted, the session has ended, or the gateway refuses it permanently.
 * `last()` returns the highest row received. `onOpen()`, `onLost()` and `onRefused(refusal)` report the connection's
 * state. `isOver()` is called when an open stream has ended: either the gateway is stopping or the session has ended.
 */
export async function follow({ path, last, onOpen, onEvents, onLost, onRefused, isOver, signal }) {
  let wait = FIRST_PAUSE;
  while (!signal.aborted) {
    const since = performance.now();
    let opened = false;
    const open = () => {
      opened = true;
      onOpen();
    };
    try {
      await once({ path, last, onOpen: open, onEvents, signal });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403 || error.status === 404) {
        onRefused(error);
        return;
      }
    }
    if (opened && (await isOver())) return;
    if (signal.aborted) return;
    onLost();
    if (performance.now() - since > STEADY) wait = FIRST_PAUSE;
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, LONGEST_PAUSE);
  }
}
