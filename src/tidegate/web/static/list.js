// The conversations that the page lists: the live ones, the ended ones once they are asked for, and what a search found.
// Guarantee: each list is what the gateway said last, an answer that comes late never replaces a newer one, and what is
// left out can be asked for. Owned by the page's `app.js`.

import { get } from "./api.js";
import { batch, signal } from "./ui.js";

const AT_A_TIME = 50; // conversations
export const MOST = 500; // as many as one answer of the gateway holds; a search finds those beyond
const REFRESH_AFTER = 150; // milliseconds: changes that come together, and letters typed together, cost one request

/** Conversations that wait and are not listed, as entries of the list, the oldest question first. */
function unlisted(approvals, sessions) {
  const found = new Map();
  for (const { conversation, tool } of approvals) {
    if (found.has(conversation) || sessions.some(({ id }) => id === conversation)) continue;
    found.set(conversation, { id: conversation, title: `Asks for ${tool || "an answer"}` });
  }
  return [...found.values()];
}

export class List {
  #limit = AT_A_TIME;
  #overLimit = 0; // 0: nobody has asked for ended ones
  #timer = 0;
  #asked = 0; // requests so far, by which a late answer is known
  #wanted = false; // a person waits for the next answer

  /** `on.failed(error, isWanted)` is told what went wrong, and whether a person had asked. */
  constructor(on) {
    this.on = on;
    this.sessions = signal([]);
    this.hasMore = signal(false);
    this.over = signal([]);
    this.overHasMore = signal(false);
    this.query = signal("");
    this.found = signal(null); // null: nothing is searched for
    this.foundAll = signal(true);
    this.asking = signal(new Set()); // ids of conversations that wait for an answer, listed or not
    this.waiting = signal([]); // those of them that are not among the listed: older ones, and other people's
  }

  /** What a person sees, in its order. */
  get shown() {
    return this.found.value ?? this.sessions.value;
  }

  clear() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#asked += 1;
    this.#limit = AT_A_TIME;
    this.#overLimit = 0;
    this.#wanted = false;
    batch(() => {
      this.sessions.value = this.over.value = this.waiting.value = [];
      this.asking.value = new Set();
      this.query.value = "";
      this.found.value = null;
    });
  }

  soon() {
    if (!this.#timer) this.#timer = setTimeout(() => this.refresh(), REFRESH_AFTER);
  }

  more() {
    this.#limit = Math.min(this.#limit + AT_A_TIME, MOST);
    this.#wanted = true;
    return this.refresh();
  }

  /** The ended ones, or more of them. */
  moreOver() {
    this.#overLimit = Math.min(this.#overLimit + AT_A_TIME, MOST);
    this.#wanted = true;
    return this.refresh();
  }

  search(text) {
    this.query.value = text;
    this.#wanted = Boolean(text.trim());
    if (this.#wanted) this.soon();
    else this.found.value = null;
  }

  async refresh() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const asked = (this.#asked += 1);
    const query = this.query.value.trim();
    try {
      const wanted = [page(this.#limit), get("/api/approvals"), this.#overLimit && page(this.#overLimit, "&ended=true"), query && search(query)];
      const [live, open, over, found] = await Promise.all(wanted);
      if (asked !== this.#asked) return;
      this.#wanted = false;
      batch(() => {
        this.sessions.value = live.sessions;
        this.asking.value = new Set(open.approvals.map(({ conversation }) => conversation));
        this.waiting.value = unlisted(open.approvals, live.sessions);
        this.hasMore.value = live.next !== null;
        this.over.value = over ? over.sessions : [];
        this.overHasMore.value = Boolean(over?.next);
        if (query !== this.query.value.trim()) return; // typed on meanwhile: the answer to that is on its way
        this.found.value = found ? found.sessions : null;
        this.foundAll.value = found ? found.all : true;
      });
    } catch (error) {
      if (asked !== this.#asked) return;
      this.on.failed(error, this.#wanted);
      this.#wanted = false;
    }
  }
}

const page = (limit, more = "") => get(`/api/sessions?limit=${limit}${more}`);

/** Live ones first; `all` is false when there may be more than were given. */
async function search(query) {
  const words = `&q=${encodeURIComponent(query)}`;
  const [live, over] = await Promise.all([page(AT_A_TIME, words), page(AT_A_TIME, `${words}&ended=true`)]);
  const all = live.sessions.length < AT_A_TIME && over.sessions.length < AT_A_TIME;
  return { sessions: [...live.sessions, ...over.sessions], all };
}
