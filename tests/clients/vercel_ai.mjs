// Vercel's AI SDK, with its provider for compatible servers and with OpenAI's own.

import { randomUUID } from "node:crypto";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, Output, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import * as $ from "./check.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const settings = { name: "tidegate", baseURL: $.BASE_URL, apiKey: $.KEY };
const compatible = createOpenAICompatible({ ...settings, includeUsage: true, supportsStructuredOutputs: true });
const official = createOpenAI(settings);
const named = () => ({ "X-Session-Id": randomUUID() });
const ask = (model, options) => generateText({ model: compatible(model), maxRetries: 0, ...options });

const add = tool({
  description: "Adds two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => a + b,
});
const stopWhen = isStepCount(5);
const town = z.object({ name: z.string(), people: z.number() });
const TOWN = { name: "Ely", people: 2 };
const SAY_TOWN = `As JSON. [say ${JSON.stringify(TOWN)}]`;

const one = ["main"];
const checks = {
  example: $.check(() => $.runExamples("Vercel AI SDK"), one),
  plain: $.check(async (agent) => {
    $.same((await ask(agent, { prompt: "hello" })).text, $.ANSWER);
    $.same((await generateText({ model: official.chat(agent), prompt: "hello" })).text, $.ANSWER);
  }),
  stream: $.check(async (agent) => {
    let text = "";
    for await (const part of streamText({ model: compatible(agent), prompt: "hello" }).textStream) text += part;
    $.same(text, $.ANSWER);
  }),
  usage: $.check(async (agent) => {
    $.holds((await ask(agent, { prompt: "hello" })).usage.totalTokens > 0);
    const running = streamText({ model: compatible(agent), prompt: "hello" });
    await running.text;
    $.holds((await running.usage).totalTokens > 0);
  }),
  turns: $.check(async (agent) => {
    const messages = [{ role: "user", content: "My name is Ada." }];
    messages.push(...(await ask(agent, { messages })).response.messages, { role: "user", content: "[say two]" });
    $.same((await ask(agent, { messages })).text, "two");
  }),
  session: $.check(async (agent) => {
    const headers = named();
    await ask(agent, { prompt: "My name is Ada.", headers });
    await ask(agent, { prompt: "Who am I?", headers });
    $.holds(JSON.stringify(await $.last()).includes("My name is Ada."));
  }),
  tools: $.check(async (agent) => {
    const { text, steps } = await ask(agent, { prompt: '[tool add {"a": 2, "b": 3}]', tools: { add }, stopWhen });
    $.same([text, steps.length, steps[0].toolResults[0].output], [$.ANSWER, 2, 5]);
  }),
  toolsStream: $.check(async (agent) => {
    const options = { model: compatible(agent), prompt: '[tool add {"a": 2, "b": 3}]', tools: { add }, stopWhen };
    const running = streamText(options);
    let text = "";
    for await (const part of running.textStream) text += part;
    $.same(text, $.ANSWER);
  }),
  toolsSession: $.check(async (agent) => {
    const prompt = '[tool clock {}] [tool add {"a": 2, "b": 3}]';
    $.same((await ask(agent, { prompt, tools: { add }, stopWhen, headers: named() })).text, $.ANSWER);
  }),
  parallel: $.check(async (agent) => {
    const prompt = '[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]';
    const { text, steps } = await ask(agent, { prompt, tools: { add }, stopWhen });
    $.same([text, steps[0].toolCalls.length], [$.ANSWER, 2]);
  }),
  ownTools: $.check(async (agent) => {
    $.same((await ask(agent, { prompt: "[tool clock {}]", tools: { add }, stopWhen })).text, $.ANSWER);
    await $.assertMerged();
  }),
  forcedTool: $.check(async (agent) => {
    const options = { tools: { add }, toolChoice: { type: "tool", toolName: "add" } };
    $.same((await ask(agent, { prompt: '[tool add {"a": 2, "b": 3}]', ...options })).toolResults[0].output, 5);
  }),
  schema: $.check(async (agent) => {
    await $.forget();
    $.same((await generateObject({ model: compatible(agent), schema: town, prompt: SAY_TOWN, maxRetries: 0 })).object, TOWN);
    $.holds($.hasSchema(await $.last()), "the model was not sent the schema");
    const output = Output.object({ schema: town });
    $.same((await ask(agent, { prompt: SAY_TOWN, output })).output, TOWN);
    $.same((await generateText({ model: official.chat(agent), prompt: SAY_TOWN, output, maxRetries: 0 })).output, TOWN);
  }),
  schemaStream: $.check(async (agent) => {
    const running = streamObject({ model: compatible(agent), schema: town, prompt: SAY_TOWN, maxRetries: 0 });
    for await (const _ of running.partialObjectStream);
    $.same(await running.object, TOWN);
  }),
  image: $.check(async (agent) => {
    const content = [
      { type: "text", text: "What?" },
      { type: "image", image: $.picture() },
    ];
    $.same((await ask(agent, { messages: [{ role: "user", content }] })).text, $.ANSWER);
    $.holds($.hasPicture(await $.last()));
  }),
  imageAlone: $.check(async (agent) => {
    const messages = [{ role: "user", content: [{ type: "image", image: $.picture() }] }];
    $.same((await ask(agent, { messages })).text, $.ANSWER);
  }),
  continued: $.check(async (agent) => {
    const messages = [
      { role: "user", content: "[say the level]" },
      { role: "assistant", content: "The gate keeps" },
    ];
    $.same((await ask(agent, { messages })).text, "the level");
  }, ["main", "responses"]),
  empty: $.check(async (agent) => {
    const messages = [
      { role: "user", content: "hello" },
      { role: "assistant", content: "" },
      { role: "user", content: "again" },
    ];
    $.same((await ask(agent, { messages })).text, $.ANSWER);
  }),
  fields: $.check(async () => {
    await $.forget();
    await ask("main", { prompt: "hello", seed: 7, presencePenalty: 0.25, frequencyPenalty: 0.5, topP: 0.5 });
    const { seed, presence_penalty, frequency_penalty, top_p } = await $.last();
    $.same([seed, presence_penalty, frequency_penalty, top_p], [7, 0.25, 0.5, 0.5]);
  }, one),
  unknownModel: $.check(() => $.fails(ask("no-such-agent", { prompt: "hello" }), /statusCode: 404[^]*model_not_found/), one),
  wrongKey: $.check(async (agent) => {
    const stranger = createOpenAICompatible({ ...settings, apiKey: "wrong" });
    const asked = generateText({ model: stranger(agent), prompt: "hello", maxRetries: 0 });
    await $.fails(asked, /statusCode: 401/);
  }, one),
  tooLong: $.check(
    (agent) => $.fails(ask(agent, { prompt: $.TOO_LONG }), /statusCode: 400[^]*context_length_exceeded/),
    [$.SMALL],
  ),
  rateLimit: $.check((agent) => $.fails(ask(agent, { prompt: "[status 429]" }), /statusCode: 429/)),
  retry: $.check(async (agent) => $.same((await ask(agent, { prompt: "[status 503 times=1]" })).text, $.ANSWER)),
  notOffered: $.check(
    () => $.fails(generateText({ model: official("main"), prompt: "hello", maxRetries: 0 }), /\/v1\/responses/),
    one,
  ),
};

await $.run(checks);
