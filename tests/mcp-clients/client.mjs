// Uses a bot through an official TypeScript client and prints what it sees, one JSON document a line.
//
// Arguments: the URL, the key, and the package: `client` (the newest revision) or `sdk` (initialize).

import { createInterface } from "node:readline";

const [url, key, kind] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (step, values) => console.log(JSON.stringify({ step, ...values }));

let Client, StreamableHTTPClientTransport;
if (kind === "client") {
  ({ Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client"));
} else {
  ({ Client } = await import("@modelcontextprotocol/sdk/client/index.js"));
  ({ StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js"));
}

let changed;
const change = new Promise((resolve) => (changed = resolve));
const options = {
  listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => changed() } },
  versionNegotiation: { mode: "auto" },
};
const client = new Client({ name: "test", version: "1.0.0" }, options);
const requestInit = { headers: { Authorization: `Bearer ${key}` } };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
await client.connect(transport);
const server = client.getServerVersion();
tell("connected", { revision: transport.protocolVersion, name: server.name, title: server.title });

const list = async () => (await client.listTools(undefined, { cacheMode: "refresh" })).tools.map((tool) => tool.name);
tell("listed", { tools: await list() });

const call = async (tool, args) => {
  const result = await client.callTool({ name: tool, arguments: args });
  const texts = result.content.map((block) => block.text);
  tell("call", { tool, error: result.isError ?? false, texts, structured: result.structuredContent ?? null });
};
await call("test_echo_run", { repo: "acme/site" });
await call("test_echo_write", { kind: "feature" });
await call("test_echo_mismatch", { repo: "acme/site" });
await call("absent", {});

tell("waiting");
const abort = new AbortController();
const held = { name: "test_echo_fetch", arguments: { path: "/user" } };
const callOptions = { signal: abort.signal };
const pending = kind === "client"
  ? client.callTool(held, callOptions)
  : client.callTool(held, undefined, callOptions);
await lines.next();
abort.abort();
await pending.catch(() => undefined);
tell("cancelled");

tell("listening");
await change;
tell("changed", { tools: await list() });

await client.close();
process.exit(0);
