// Helpers for the checks of a JavaScript client: check.py's counterpart, with the same results on standard output. It is
// copied next to the client's packages, so it uses only Node's own modules.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { deflateSync, crc32 as nodeCrc32 } from "node:zlib";
import { inspect } from "node:util";

export const URL = process.env.TIDEGATE;
export const BASE_URL = `${URL}/v1`;
export const KEY = process.env.TIDEGATE_KEY;
export const MODEL_URL = process.env.SCRIPTED_MODEL;
export const AGENTS = ["main", "responses", "anthropic"];
export const SMALL = "small";
export const ANSWER = "The tide comes in, the gate keeps the level.";
export const TOO_LONG = "word ".repeat(4096 * 4);
const WITHIN = 60_000;
const LONGEST = 600;

export class Skipped extends Error {}

/** Run the checks, an object of functions by name, or those named on the command line. */
export async function run(checks) {
  const named = process.argv.slice(2);
  for (const [key, { agents, body }] of Object.entries(checks)) {
    const name = key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    if (named.length && !named.includes(name)) continue;
    for (const agent of agents) console.log(JSON.stringify({ check: name, agent, ...(await outcome(body, agent)) }));
  }
  process.exit(0); // Open connections would keep the process alive.
}

/** A check for each of `agents`. */
export const check = (body, agents = AGENTS) => ({ body, agents });

async function outcome(body, agent) {
  let timer;
  const expired = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end within ${WITHIN / 1000} s`)), WITHIN);
  });
  try {
    await Promise.race([body(agent), expired]);
    return { ok: true, why: "" };
  } catch (error) {
    if (error instanceof Skipped) return { ok: null, why: error.message };
    console.error(error);
    const said = `${error?.name}: ${error?.message ?? inspect(error)}`.replace(/\s+/g, " ");
    return { ok: false, why: said.slice(0, LONGEST) };
  } finally {
    clearTimeout(timer);
  }
}

export const same = (found, wanted) => assert.deepEqual(found, wanted);
export const holds = (value, why) => assert.ok(value, why);

/** The promise fails, and the error or what caused it matches the pattern. */
export async function fails(promise, pattern) {
  let found;
  try {
    await promise;
  } catch (error) {
    found = inspect(error, { depth: 6 });
  }
  assert.ok(found !== undefined, `no failure that says ${pattern}`);
  assert.match(found, pattern);
}

export async function sent() {
  const recorded = await (await fetch(`${MODEL_URL}/requests`)).json();
  return recorded.map((one) => JSON.parse(one.body));
}

export const last = async () => (await sent()).at(-1);
export const forget = () => fetch(`${MODEL_URL}/reset`, { method: "POST" });

/** The model was last offered the agent's tool and the caller's `add`. */
export async function assertMerged() {
  const offered = ((await last()).tools ?? []).map((tool) => tool.name ?? tool.function.name);
  same(offered, ["clock", "add"]);
}

export const hasPicture = (request) => /"image_url"|"input_image"|"type":"image"/.test(JSON.stringify(request));
export const hasSchema = (request) => /"json_schema"|"output_config"|"output_format"/.test(JSON.stringify(request));

/** Run the `js` blocks below a heading of docs/clients.md, with the address of the gateway under test. */
export function runExamples(title) {
  const section = readFileSync(process.env.CLIENTS_PAGE, "utf8")
    .split(/^## /m)
    .find((part) => part.startsWith(`${title}\n`));
  const blocks = [...(section ?? "").matchAll(/^```js\n(.*?)^```/gms)];
  holds(blocks.length, `docs/clients.md has no example below ${title}`);
  for (const [, block] of blocks) {
    const file = new globalThis.URL("./example.mjs", import.meta.url).pathname;
    writeFileSync(file, block.replaceAll("http://127.0.0.1:8420", URL));
    const done = spawnSync("node", [file], { encoding: "utf8", timeout: WITHIN });
    holds(done.stdout.includes(ANSWER), `an example printed ${done.stdout}${done.stderr}`);
  }
}

/** A red PNG of 16 by 16. */
export function picture() {
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const size = Buffer.alloc(4);
    size.writeUInt32BE(data.length);
    const sum = Buffer.alloc(4);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([size, body, sum]);
  };
  const header = Buffer.from([0, 0, 0, 16, 0, 0, 0, 16, 8, 2, 0, 0, 0]);
  const row = Buffer.concat([Buffer.from([0]), Buffer.alloc(48, Buffer.from([255, 0, 0]))]);
  const rows = Buffer.concat(Array(16).fill(row));
  const begin = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  return Buffer.concat([begin, chunk("IHDR", header), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

export const pictureUrl = () => `data:image/png;base64,${picture().toString("base64")}`;

function crc32(data) {
  if (nodeCrc32) return nodeCrc32(data);
  let sum = ~0;
  for (const byte of data) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (0xedb88320 & -(sum & 1));
  }
  return ~sum >>> 0;
}
