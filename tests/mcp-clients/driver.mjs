// Uses a bot through a TypeScript client, as the test tells it to. Commands and answers are JSON documents, one a line.
//
// Arguments: the URL, the key, and the client:
//   client           @modelcontextprotocol/client, by the newest revision
//   sdk              @modelcontextprotocol/sdk, which begins with initialize
//   ai, ai-initialize    @ai-sdk/mcp, by the newest revision and with initialize
//
// Commands: {"do": "list"}, {"do": "call", "tool", "arguments", "meta"?}, {"do": "begin", "tool", "arguments"} and
// {"do": "cancel"}, {"do": "listen"}. A call that a person must approve at a URL is told as {"asked": URL}, and goes on
// after the next line.

const [url, key, kind] = process.argv.slice(2);
// Only a line feed ends a line; readline would also split at the U+2028 of a text.
const lines = (async function* () {
  let rest = "";
  for await (const text of process.stdin.setEncoding("utf8")) {
    const whole = (rest + text).split("\n");
    rest = whole.pop();
    yield* whole;
  }
})();
const headers = { Authorization: `Bearer ${key}` };
const tell = (values) => console.log(JSON.stringify(values));

// The person opens the URL, decides, and returns to the client.
const visit = async (page) => {
  tell({ asked: page });
  await lines.next();
};

const official = async () => {
  let Client, StreamableHTTPClientTransport, request = "elicitation/create";
  if (kind === "client") {
    ({ Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client"));
  } else {
    ({ Client } = await import("@modelcontextprotocol/sdk/client/index.js"));
    ({ StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js"));
    ({ ElicitRequestSchema: request } = await import("@modelcontextprotocol/sdk/types.js"));
  }
  let changed = () => undefined;
  const client = new Client({ name: "test", version: "1.0.0" }, {
    capabilities: { elicitation: { url: {} } },
    listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => changed() } },
    versionNegotiation: { mode: "auto" },
  });
  client.setRequestHandler(request, async ({ params }) => {
    await visit(params.url);
    return { action: "accept" };
  });
  // Tells when the stream of changes is open, so that no change is missed.
  let opened;
  const open = new Promise((resolve) => (opened = resolve));
  const watched = async (input, init) => {
    const response = await fetch(input, init);
    if (response.ok && (init?.method === "GET" || String(init?.body).includes("subscriptions/listen"))) opened();
    return response;
  };
  const transport = new StreamableHTTPClientTransport(new URL(url), { fetch: watched, requestInit: { headers } });
  await client.connect(transport);
  const once = (params, options) =>
    kind === "client" ? client.callTool(params, options) : client.callTool(params, undefined, options);
  const call = async (params, options) => {
    try {
      return await once(params, options);
    } catch (error) {
      // Revision 2025-11-25 has an error in place of a request. The client calls again after the decision.
      if (error.code !== -32042) throw error;
      await visit(error.data.elicitations[0].url);
      return await once(params, options);
    }
  };
  return {
    revision: transport.protocolVersion,
    list: async () => (await client.listTools(undefined, { cacheMode: "refresh" })).tools,
    call,
    listen: async (onChange) => {
      changed = onChange;
      await open;
    },
  };
};

const ai = async () => {
  const { createMCPClient } = await import("@ai-sdk/mcp");
  const client = await createMCPClient({
    transport: { type: "http", url, headers },
    protocolVersionDiscovery: kind === "ai",
  });
  return {
    revision: client.initializeResult.protocolVersion,
    list: async () => (await client.listTools()).tools,
    call: ({ name, arguments: values }, options) => client.callTool({ name, arguments: values, options }),
  };
};

const client = await (kind.startsWith("ai") ? ai() : official());
tell({ revision: client.revision });

let abort, pending;
for await (const line of lines) {
  const command = JSON.parse(line);
  const params = { name: command.tool, arguments: command.arguments, _meta: command.meta };
  switch (command.do) {
    case "list":
      tell({ tools: (await client.list()).map((tool) => tool.name) });
      break;
    case "call": {
      const result = await client.call(params);
      const { content, isError, structuredContent } = result;
      const texts = content.map((block) => block.text);
      tell({ error: isError ?? false, texts, content, structured: structuredContent ?? null });
      break;
    }
    case "begin":
      abort = new AbortController();
      pending = client.call(params, { signal: abort.signal }).catch(() => undefined);
      break;
    case "cancel":
      abort.abort();
      await pending;
      tell({ cancelled: true });
      break;
    case "listen":
      await client.listen(() => tell({ changed: true }));
      tell({ listening: true });
      break;
    default:
      throw new Error(`unknown command ${line}`);
  }
}
process.exit(0);
