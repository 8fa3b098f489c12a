// The official JavaScript client, in Node and in a page.

import { randomUUID } from "node:crypto";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";
import OpenAI from "openai";
import * as $ from "./check.mjs";

const client = new OpenAI({ baseURL: $.BASE_URL, apiKey: $.KEY, maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const named = () => ({ headers: { "X-Session-Id": randomUUID() } });
const ask = async (model, messages, options = {}, request = {}) =>
  (await client.chat.completions.create({ model, messages, ...options }, request)).choices[0];
const said = async (...given) => (await ask(...given)).message.content;

const ADD = {
  type: "function",
  function: {
    name: "add",
    description: "Adds two numbers.",
    parameters: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } } },
  },
};
const tools = [ADD];
const TOWN = {
  type: "json_schema",
  json_schema: {
    name: "town",
    strict: true,
    schema: {
      type: "object",
      properties: { name: { type: "string" }, people: { type: "integer" } },
      required: ["name", "people"],
      additionalProperties: false,
    },
  },
};

const result = (call) => {
  const { a, b } = JSON.parse(call.function.arguments);
  return { role: "tool", tool_call_id: call.id, content: String(a + b) };
};

async function loop(agent, text, request = {}) {
  const messages = user(text);
  for (;;) {
    const { message } = await ask(agent, messages, { tools }, request);
    if (!message.tool_calls?.length) return message.content;
    messages.push(message, ...message.tool_calls.map(result));
  }
}

const one = ["main"];
const checks = {
  example: $.check(() => $.runExamples("openai (JavaScript)"), one),
  models: $.check(async () => {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    $.same(ids.sort(), [...$.AGENTS, $.SMALL].sort());
  }, one),
  plain: $.check(async (agent) => $.same(await said(agent, user("hello")), $.ANSWER)),
  stream: $.check(async (agent) => {
    let text = "";
    const chunks = await client.chat.completions.create({ model: agent, messages: user("hello"), stream: true });
    for await (const chunk of chunks) text += chunk.choices[0]?.delta.content ?? "";
    $.same(text, $.ANSWER);
  }),
  usage: $.check(async (agent) => {
    const options = { model: agent, messages: user("hello"), stream: true, stream_options: { include_usage: true } };
    let usage;
    for await (const chunk of await client.chat.completions.create(options)) usage = chunk.usage ?? usage;
    $.holds(usage.total_tokens > 0);
  }),
  system: $.check(async (agent) => $.same(await said(agent, [{ role: "system", content: "Greet." }]), $.ANSWER)),
  turns: $.check(async (agent) => {
    const { message } = await ask(agent, user("hello"));
    $.same(await said(agent, [...user("hello"), message, ...user("[say two]")]), "two");
  }),
  session: $.check(async (agent) => {
    const request = named();
    await ask(agent, user("My name is Ada."), {}, request);
    await ask(agent, user("Who am I?"), {}, request);
    $.holds(JSON.stringify(await $.last()).includes("My name is Ada."));
  }),
  tools: $.check(async (agent) => $.same(await loop(agent, '[tool add {"a": 2, "b": 3}]'), $.ANSWER)),
  toolsStream: $.check(async (agent) => {
    const runner = client.chat.completions.runTools({
      model: agent,
      messages: user('[tool add {"a": 2, "b": 3}]'),
      stream: true,
      tools: [{ ...ADD, function: { ...ADD.function, parse: JSON.parse, function: ({ a, b }) => String(a + b) } }],
    });
    $.same(await runner.finalContent(), $.ANSWER);
  }),
  toolsSession: $.check(async (agent) =>
    $.same(await loop(agent, '[tool clock {}] [tool add {"a": 2, "b": 3}]', named()), $.ANSWER),
  ),
  parallel: $.check(async (agent) =>
    $.same(await loop(agent, '[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]'), $.ANSWER),
  ),
  ownTools: $.check(async (agent) => {
    $.same(await said(agent, user("[tool clock {}]"), { tools }), $.ANSWER);
    await $.assertMerged();
  }),
  schema: $.check(async (agent) => {
    await $.forget();
    const messages = user('[say {"name": "Ely", "people": 2}]');
    const parsed = await client.chat.completions.parse({ model: agent, messages, response_format: TOWN });
    $.same(parsed.choices[0].message.parsed, { name: "Ely", people: 2 });
    $.holds($.hasSchema(await $.last()), "the model was not sent the schema");
  }),
  image: $.check(async (agent) => {
    const content = [
      { type: "text", text: "What?" },
      { type: "image_url", image_url: { url: $.pictureUrl() } },
    ];
    $.same(await said(agent, user(content)), $.ANSWER);
    $.holds($.hasPicture(await $.last()));
  }),
  imageAlone: $.check(async (agent) => {
    const content = [
      { type: "text", text: "" },
      { type: "image_url", image_url: { url: $.pictureUrl() } },
    ];
    $.same(await said(agent, user(content)), $.ANSWER);
  }),
  continued: $.check(async (agent) => {
    const messages = [...user("[say the level]"), { role: "assistant", content: "The gate keeps" }];
    $.same(await said(agent, messages), "the level");
  }, ["main", "responses"]),
  empty: $.check(async (agent) => {
    const messages = [...user("hello"), { role: "assistant", content: "" }, ...user("again")];
    $.same(await said(agent, messages), $.ANSWER);
  }),
  unknownModel: $.check(() => $.fails(said("no-such-agent", user("hello")), /status: 404[^]*model_not_found/), one),
  wrongKey: $.check(async (agent) => {
    const stranger = new OpenAI({ baseURL: $.BASE_URL, apiKey: "wrong", maxRetries: 0 });
    const asked = stranger.chat.completions.create({ model: agent, messages: user("hello") });
    await $.fails(asked, /status: 401[^]*invalid_api_key/);
  }, one),
  tooLong: $.check((agent) => $.fails(said(agent, user($.TOO_LONG)), /status: 400[^]*context_length_exceeded/), [$.SMALL]),
  rateLimit: $.check((agent) => $.fails(said(agent, user("[status 429]")), /RateLimitError/)),
  retry: $.check(async (agent) => $.same(await said(agent, user("[status 503 times=1]")), $.ANSWER)),
  retries: $.check(async (agent) => {
    await $.forget();
    const patient = new OpenAI({ baseURL: $.BASE_URL, apiKey: $.KEY });
    await $.fails(patient.chat.completions.create({ model: agent, messages: user("[status 503]") }), /status: 50/);
    const requests = (await $.sent()).length;
    $.holds(requests < 12, `${requests} requests to the model`);
  }),
  page: $.check(inPage, one),
};

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const FLAGS = [
  ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
  ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
];
// Bundled like the program of a page.
const PROGRAM = `import OpenAI from "openai";
const tell = (found) => fetch("/found", { method: "POST", body: JSON.stringify(found) });
try {
  const settings = { baseURL: ${JSON.stringify($.BASE_URL)}, apiKey: ${JSON.stringify($.KEY)}, maxRetries: 0 };
  const client = new OpenAI({ ...settings, dangerouslyAllowBrowser: true });
  const messages = [{ role: "user", content: "hello" }];
  const headers = { "X-Session-Id": "page", "X-My-Own": "yes" };
  const text = await client.chat.completions.stream({ model: "main", messages }, { headers }).finalContent();
  const refused = await client.chat.completions.create({ model: "none", messages }).catch((error) => error.status);
  const { request_id } = await client.chat.completions.create({ model: "main", messages }).withResponse();
  const identified = typeof request_id === "string";
  await tell({ text, refused, identified });
} catch (error) {
  await tell({ failure: String(error) });
}`;

/** A page of an allowed origin: the browser first asks which headers it may send. */
async function inPage() {
  if (!CHROMIUM) throw new $.Skipped("no Chromium is installed");
  let tell;
  const found = new Promise((resolve) => (tell = resolve));
  const stdin = { contents: PROGRAM, resolveDir: import.meta.dirname ?? new URL(".", import.meta.url).pathname };
  const built = await build({ stdin, bundle: true, write: false, format: "esm", platform: "browser", logLevel: "error" });
  const page = `<meta charset="utf-8"><script type="module">${built.outputFiles[0].text}</script>`;
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", () => {
      if (request.url === "/found") tell(JSON.parse(body));
      response.setHeader("Content-Type", "text/html").end(page);
    });
  });
  await new Promise((ready) => server.listen(Number(process.env.PAGE_PORT), "127.0.0.1", ready));
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const address = `http://127.0.0.1:${process.env.PAGE_PORT}/`;
  const browser = spawn(CHROMIUM, [...FLAGS, `--user-data-dir=${profile}`, "--remote-debugging-port=0", address], {
    stdio: "ignore",
    env: { PATH: process.env.PATH, HOME: profile },
  });
  try {
    $.same(await found, { text: $.ANSWER, refused: 404, identified: true });
  } finally {
    browser.kill("SIGKILL");
    server.close();
  }
}

await $.run(checks);
