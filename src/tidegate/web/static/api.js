// Requests to the gateway that serves this page. Guarantee: every request carries this browser's page token, without
// which the cookie is worth nothing; every request has a deadline, and whatever goes wrong comes back as one `Refusal`
// whose message is a sentence for a person. Nothing secret is ever put into an address.

const DEADLINE = 20_000; // milliseconds; sending waits only until the message is accepted, never for its answer
const DOWNLOAD_DEADLINE = 600_000; // for a picture, a sound or a document of many megabytes

export class Refusal extends Error {
  /** `status` is 0 when the gateway could not be reached at all: then it is unknown whether it acted. */
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const SENTENCES = {
  401: "You are signed out; sign in with a new link.",
  403: "You may not do that with this sign-in.",
  404: "That is not there, or not yours to see.",
  413: "That message is too large for this gateway.",
  429: "The gateway is busy; try again in a moment.",
  502: "The model could not be reached; try again in a moment.",
  503: "The gateway cannot do that just now; try again in a moment.",
  504: "The model took too long; try again in a moment.",
};

/** The refusal that an unsuccessful response stands for; its body is OpenAI-shaped when the gateway wrote it. */
export async function refusalOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy in between may answer with a page of its own: the status still says enough.
  }
  const sentence = error.message || SENTENCES[response.status] || `The gateway answered with status ${response.status}.`;
  return new Refusal(sentence, response.status, error.code ?? "");
}

/** The page token, shared by the tabs of this origin: unlike a cookie, other ports of this host cannot get it. */
export const pageToken = {
  key: "tidegate.page-token",
  get: () => window.localStorage.getItem(pageToken.key),
  set: (token) => window.localStorage.setItem(pageToken.key, token),
  clear: () => window.localStorage.removeItem(pageToken.key),
};

/** `fetch` with the page token. What is refused because another tab signed in meanwhile is sent once more. */
export async function send(path, request = {}) {
  const once = (token) => fetch(path, { ...request, cache: "no-store", headers: { ...request.headers, ...(token && { "X-Page-Token": token }) } });
  const token = pageToken.get();
  const response = await once(token);
  const now = pageToken.get();
  return response.status === 401 && now && now !== token ? once(now) : response;
}

/** Sends one request and returns its JSON (or what `read` makes of the response), or throws a `Refusal`. */
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
    throw new Refusal("The gateway cannot be reached; check that it runs, then try again.", 0);
  }
}

export const get = (path) => call("GET", path);
export const getBlob = (path) => call("GET", path, { within: DOWNLOAD_DEADLINE, read: (response) => response.blob() });
export const del = (path) => call("DELETE", path);
export const post = (path, body, headers) => call("POST", path, { body, headers });
