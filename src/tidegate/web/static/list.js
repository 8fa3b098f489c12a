// The lists of conversations: the active ones, the ended ones once they are requested, and search results. Each list is
// the latest one from the gateway; a late response never replaces a newer one. Further entries can be requested. Owned
// by `app.js`.

import { get } from "./api.js";
import { batch, signal } from "./ui.js";

const AT_A_TIME = 50; // conversations
export const MOST = 500; // the most that one response contains; a search finds older ones
const REFRESH_AFTER = 150; // milliseconds: changes that occur together, and letters typed quickly, cause one request

/** Conversations that wait for an answer and are not listed, as entries of the list, the oldest question first. */
function unlisted(approvals, sessions) {
  const found = new Map();
  for (const { conversation, tool } of approvals) {
    if (found.has(conversation) || sessions.some(({ id }) => id === conversation)) continue;
    found.set(conversation, { id: conversation, title: tool ? `Approval for ${tool}` : "Question" });
  }
  return [...found.values()];
}

export class List {
  #limit = AT_A_TIME;
  #overLimit = 0; // 0: ended ones were not requested
  #timer = 0;
  #asked = 0; // requests so far; identifies late responses
  #wanted = false; // the user waits for the next response

  /** `on.failed(error, isWanted)` is called with each error, and whether the user made the request. */
  constructor(on) {
    this.on = on;
    this.sessions = signal([]);
    this.hasMore = signal(false);
    this.over = signal([]);
    this.overHasMore = signal(false);
    this.query = signal("");
    this.found = signal(null); // null: no search
    this.foundAll = signal(true);
    this.asking = signal(new Set()); // ids of conversations that wait for an answer, listed or not
    this.waiting = signal([]); // those of them that are not listed: older ones, and those of other users
  }

  /** The visible entries, in order. */
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

  /** Loads the ended conversations, or more of them. */
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
        if (query !== this.query.value.trim()) return; // the query has changed: its own response will follow
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

/** Active ones first. `all` is false when there may be more. */
async function search(query) {
  const words = `&q=${encodeURIComponent(query)}`;
  const [live, over] = await Promise.all([page(AT_A_TIME, words), page(AT_A_TIME, `${words}&ended=true`)]);
  const all = live.sessions.length < AT_A_TIME && over.sessions.length < AT_A_TIME;
  return { sessions: [...live.sessions, ...over.sessions], all };
}
