// Uses a bot through JavaScript clients of the OpenAI API, one after the other, and prints what each has got as JSON, one
// document a line. `clients.rs` says what is expected.
//
// The URL and the key are in OPENAI_BASE_URL and OPENAI_API_KEY. All else, such as how often a request is repeated, is as the
// clients have it by default.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const BOT = "tester";
const SYSTEM = "Be brief.";
const ASKED = "How many issues are there?";
const AGAIN = "Are you sure?";
const WEATHER = "How is the weather in Berlin and Paris?";
const COUNT = "Count the issues, as JSON.";
const DESCRIPTION = "Returns the weather in a city.";

const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const Count = z.object({ n: z.number().int() });

const weather = ({ city }) => `It rains in ${city}.`;
const user = (content) => ({ role: "user", content });
const tell = (client, what, values) => console.log(JSON.stringify({ client, what, ...values }));

const openaiChat = async () => {
  const [client, name] = [new OpenAI(), "openai chat"];
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  tell(name, "models", { text: ids.join(" ") });

  const messages = [{ role: "system", content: SYSTEM }, user(ASKED)];
  let answer = await client.chat.completions.create({ model: BOT, messages });
  tell(name, "whole", { text: answer.choices[0].message.content, tokens: answer.usage.total_tokens });
  messages.push(answer.choices[0].message, user(AGAIN));
  answer = await client.chat.completions.create({ model: BOT, messages });
  tell(name, "again", { text: answer.choices[0].message.content });

  let text = "";
  let tokens;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ model: BOT, messages: messages.slice(0, 2), ...options })) {
    tokens = chunk.usage?.total_tokens ?? tokens;
    text += chunk.choices[0]?.delta.content ?? "";
  }
  tell(name, "streamed", { text, tokens });

  // The library itself runs the tools and asks again.
  const run = { name: "get_weather", description: DESCRIPTION, parameters, parse: JSON.parse, function: weather };
  const tools = [{ type: "function", function: run }];
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({ model: BOT, messages: [user(WEATHER)], tools, stream });
    tell(name, stream ? "tools streamed" : "tools", { text: await runner.finalContent() });
  }

  const form = { model: BOT, messages: [user(COUNT)], response_format: zodResponseFormat(Count, "count") };
  tell(name, "form", { n: (await client.chat.completions.parse(form)).choices[0].message.parsed.n });
  const final = await client.chat.completions.stream(form).finalChatCompletion();
  tell(name, "form streamed", { n: final.choices[0].message.parsed.n });
};

const openaiResponses = async () => {
  const [client, name] = [new OpenAI(), "openai responses"];
  let answer = await client.responses.create({ model: BOT, instructions: SYSTEM, input: ASKED });
  tell(name, "whole", { text: answer.output_text, tokens: answer.usage.total_tokens });
  answer = await client.responses.create({ model: BOT, input: AGAIN, previous_response_id: answer.id });
  tell(name, "again", { text: answer.output_text });
  tell(name, "kept", { text: (await client.responses.retrieve(answer.id)).output_text });

  const stream = client.responses.stream({ model: BOT, instructions: SYSTEM, input: ASKED });
  let text = "";
  stream.on("response.output_text.delta", ({ delta }) => (text += delta));
  answer = await stream.finalResponse();
  tell(name, "streamed", { text, tokens: answer.usage.total_tokens });

  const tools = [{ type: "function", name: "get_weather", description: DESCRIPTION, parameters, strict: true }];
  for (const what of ["tools", "tools streamed", "tools without previous"]) {
    let [input, previous] = [[user(WEATHER)], undefined];
    for (;;) {
      // Without a previous response, the client keeps the conversation itself.
      const alone = what === "tools without previous";
      const options = { model: BOT, input, tools, ...(alone ? { store: false } : { previous_response_id: previous }) };
      answer = await (what === "tools streamed"
        ? client.responses.stream(options).finalResponse()
        : client.responses.create(options));
      const calls = answer.output.filter(({ type }) => type === "function_call");
      if (calls.length === 0) break;
      previous = answer.id;
      const results = calls.map((call) => ({
        type: "function_call_output",
        call_id: call.call_id,
        output: weather(JSON.parse(call.arguments)),
      }));
      input = alone ? [...input, ...answer.output, ...results] : results;
    }
    tell(name, what, { text: answer.output_text });
  }

  const form = { model: BOT, input: COUNT, text: { format: zodTextFormat(Count, "count") } };
  tell(name, "form", { n: (await client.responses.parse(form)).output_parsed.n });
};

const ai = async (name, model) => {
  let { text, usage, response } = await generateText({ model, instructions: SYSTEM, messages: [user(ASKED)] });
  tell(name, "whole", { text, tokens: usage.totalTokens });
  const messages = [user(ASKED), ...response.messages, user(AGAIN)];
  ({ text } = await generateText({ model, instructions: SYSTEM, messages }));
  tell(name, "again", { text });

  const streamed = async (options) => {
    const onError = ({ error }) => {
      throw error;
    };
    const result = streamText({ model, onError, ...options });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    return { text, tokens: (await result.usage).totalTokens, last: await result.text };
  };
  const { text: said, tokens } = await streamed({ instructions: SYSTEM, messages: [user(ASKED)] });
  tell(name, "streamed", { text: said, tokens });

  const inputSchema = z.object({ city: z.string() });
  const tools = { get_weather: tool({ description: DESCRIPTION, inputSchema, execute: weather }) };
  const options = { messages: [user(WEATHER)], tools, stopWhen: stepCountIs(5) };
  tell(name, "tools", { text: (await generateText({ model, ...options })).text });
  tell(name, "tools streamed", { text: (await streamed(options)).last });
  const { output } = await generateText({ model, prompt: COUNT, output: Output.object({ schema: Count }) });
  tell(name, "form", { n: output.n });
};

const openai = () => createOpenAI();
const compatible = () =>
  createOpenAICompatible({
    name: "monstrum",
    baseURL: process.env.OPENAI_BASE_URL,
    apiKey: process.env.OPENAI_API_KEY,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });

const CLIENTS = {
  "openai-chat": openaiChat,
  "openai-responses": openaiResponses,
  "ai-responses": () => ai("ai with openai responses", openai()(BOT)),
  "ai-chat": () => ai("ai with openai chat", openai().chat(BOT)),
  "ai-compatible": () => ai("ai with openai-compatible", compatible()(BOT)),
};

const wanted = process.argv.slice(2);
for (const client of wanted.length ? wanted : Object.keys(CLIENTS)) await CLIENTS[client]();
