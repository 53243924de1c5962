// Gives the servers of the conformance suite URLs with the address 127.0.0.1. The suite calls them `localhost`, and
// Monstrum does not connect to names of the local machine, even if the resource permits their addresses.

import { registerHooks } from "node:module";

const SUITE = "/@modelcontextprotocol/conformance/dist/";

registerHooks({
  load(url, context, next) {
    const loaded = next(url, context);
    if (!url.includes(SUITE)) return loaded;
    const source = String(loaded.source);
    const changed = source.replaceAll("http://localhost:${", "http://127.0.0.1:${");
    if (changed === source) throw new Error(`${url} names no server`);
    return { ...loaded, source: changed };
  },
});
