// Requests to the gateway that serves this page. Guarantee: every request has a deadline, and whatever goes wrong comes
// back as one `Refusal` whose message is a sentence for a person. Nothing secret is ever put into an address.

const DEADLINE = 20_000; // milliseconds; sending waits only until the message is accepted, never for its answer

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

/** Sends one request and returns its JSON, or throws a `Refusal`. */
export async function call(method, path, { body, headers = {} } = {}) {
  const request = { method, headers: { ...headers }, signal: AbortSignal.timeout(DEADLINE), cache: "no-store" };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
    if (!response.ok) throw await refusalOf(response);
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal("The gateway cannot be reached; check that it runs, then try again.", 0);
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body, headers) => call("POST", path, { body, headers });
