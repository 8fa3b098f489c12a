// Requests to the gateway that serves this page. Every request carries this browser's page token, without which the
// cookie is useless, and has a deadline. Every failure is thrown as a `Refusal` whose message can be shown to the user.
// Secrets are never put into a URL.

const DEADLINE = 20_000; // milliseconds; sending waits until the message is accepted, not for its answer
const DOWNLOAD_DEADLINE = 600_000; // for an image, a sound or a document of many megabytes

export class Refusal extends Error {
  /** `status` is 0 when the gateway could not be reached; then it is unknown whether the request took effect. */
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const SENTENCES = {
  401: "You are signed out; sign in with a new link.",
  403: "You are not allowed to do that.",
  404: "Not found, or you are not allowed to see it.",
  413: "The message is too large.",
  429: "The gateway is busy; try again in a moment.",
  502: "The model could not be reached; try again in a moment.",
  503: "The gateway is temporarily unavailable; try again in a moment.",
  504: "The model took too long; try again in a moment.",
};

/** The refusal for an unsuccessful response. The gateway's own error bodies have OpenAI's format. */
export async function refusalOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy in between may send its own error page; the status is enough then.
  }
  const sentence = error.message || SENTENCES[response.status] || `The gateway answered with status ${response.status}.`;
  return new Refusal(sentence, response.status, error.code ?? "");
}

/** The page token, shared by the tabs of this origin. Unlike a cookie, it is not sent to other ports of this host. */
export const pageToken = {
  key: "tidegate.page-token",
  get: () => window.localStorage.getItem(pageToken.key),
  set: (token) => window.localStorage.setItem(pageToken.key, token),
  clear: () => window.localStorage.removeItem(pageToken.key),
};

/** `fetch` with the page token. A request refused because another tab has signed in is retried once. */
export async function send(path, request = {}) {
  const once = (token) => fetch(path, { ...request, cache: "no-store", headers: { ...request.headers, ...(token && { "X-Page-Token": token }) } });
  const token = pageToken.get();
  const response = await once(token);
  const now = pageToken.get();
  return response.status === 401 && now && now !== token ? once(now) : response;
}

/** Sends one request and returns its JSON (or the result of `read`), or throws a `Refusal`. */
export async function call(method, path, { body, headers = {}, within = DEADLINE, read = (response) => response.json() } = {}) {
  const request = { method, headers: { ...headers }, signal: AbortSignal.timeout(within) };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  try {
    const response = await send(path, request);
    if (!response.ok) throw await refusalOf(response);
    return response.status === 204 ? null : await read(response);
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal("Cannot reach the gateway; check that it is running and try again.", 0);
  }
}

export const get = (path) => call("GET", path);
export const getBlob = (path) => call("GET", path, { within: DOWNLOAD_DEADLINE, read: (response) => response.blob() });
export const del = (path) => call("DELETE", path);
export const post = (path, body, headers) => call("POST", path, { body, headers });
