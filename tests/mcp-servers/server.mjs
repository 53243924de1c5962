// An MCP server that is written with @modelcontextprotocol/server. It has the same tools as `server.py`, speaks
// revision 2026-07-28 and earlier ones, and listens on a port of 127.0.0.1 that it prints.
//
// Tools: `add` has a structured result, `fail` reports a failure, `media` returns content blocks of all types, `count`
// reports progress before its result, and `describe` changes the description of the tool `note` and says so.

import { once } from "node:events";
import { createServer } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

import { createMcpHandler, McpServer } from "@modelcontextprotocol/server";
import { z } from "zod";

const state = { description: "Returns a note" };

const bytes = (text) => Buffer.from(text).toString("base64");
const media = [
  { type: "text", text: "one", annotations: { audience: ["user"], priority: 0.5 } },
  { type: "image", data: bytes("image"), mimeType: "image/png" },
  { type: "audio", data: bytes("audio"), mimeType: "audio/wav" },
  { type: "resource", resource: { uri: "test://text", mimeType: "text/plain", text: "embedded" } },
  { type: "resource", resource: { uri: "test://blob", mimeType: "application/gzip", blob: bytes("blob") } },
  { type: "resource_link", uri: "test://link", name: "link", title: "A link", description: "Linked", size: 5 },
];

// The SDK creates a server for each request.
const factory = () => {
  const capabilities = { tools: { listChanged: true } };
  const server = new McpServer({ name: "typescript", version: "1.0.0" }, { capabilities });
  server.registerTool(
    "add",
    {
      description: "Adds two numbers",
      inputSchema: z.object({ a: z.int(), b: z.int() }),
      outputSchema: z.object({ sum: z.int() }),
    },
    async ({ a, b }) => ({ content: [{ type: "text", text: `${a + b}` }], structuredContent: { sum: a + b } }),
  );
  server.registerTool("fail", { description: "Fails", inputSchema: z.object({ why: z.string() }) }, async ({ why }) => {
    throw new Error(why);
  });
  server.registerTool("media", { description: "Returns content blocks of all types" }, async () => ({ content: media }));
  server.registerTool(
    "count",
    { description: "Counts", inputSchema: z.object({ steps: z.int() }) },
    async ({ steps }, { mcpReq }) => {
      // Monstrum requests no progress. These notifications come before the result all the same.
      for (let progress = 1; progress <= steps; progress += 1) {
        const params = { progressToken: mcpReq.id, progress, total: steps };
        await mcpReq.notify({ method: "notifications/progress", params });
      }
      return { content: [{ type: "text", text: `counted to ${steps}` }] };
    },
  );
  server.registerTool("note", { description: state.description }, async () => {
    return { content: [{ type: "text", text: "noted" }] };
  });
  server.registerTool(
    "describe",
    { description: "Changes the description of `note`", inputSchema: z.object({ text: z.string() }) },
    async ({ text }) => {
      state.description = text;
      handler.notify.toolsChanged();
      return { content: [{ type: "text", text: "changed" }] };
    },
  );
  return server;
};
const handler = createMcpHandler(factory);

const server = createServer(async (request, response) => {
  const ended = new AbortController();
  response.on("close", () => ended.abort());
  const { method, headers } = request;
  const body = method === "POST" ? Readable.toWeb(request) : undefined;
  const url = new URL(request.url, "http://127.0.0.1");
  const answer = await handler.fetch(new Request(url, { method, headers, body, duplex: "half", signal: ended.signal }));
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (!answer.body) return response.end();
  // A client may close the stream of an answer.
  return pipeline(Readable.fromWeb(answer.body), response).catch(() => undefined);
});
server.listen(0, "127.0.0.1");
await once(server, "listening");
console.log(`listening on http://127.0.0.1:${server.address().port}`);
// The standard input ends when the process that started this server ends.
process.stdin.resume().on("end", () => process.exit(0));
