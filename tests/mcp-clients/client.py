"""Uses a bot through the official Python client and prints what it sees, one JSON document a line.

Arguments: the URL, the key, and the generation of the protocol: `auto` (the newest revision) or `legacy` (initialize).
"""

import asyncio
import json
import sys

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client


def tell(step, **values):
    print(json.dumps({"step": step, **values}), flush=True)


async def call(client, tool, arguments, meta=None):
    result = await client.call_tool(tool, arguments, meta=meta)
    texts = [block.text for block in result.content]
    tell("call", tool=tool, error=bool(result.is_error), texts=texts, structured=result.structured_content)


async def main(url, key, mode):
    changed = asyncio.Event()

    async def on_message(message):
        if "list_changed" in str(getattr(message, "method", "")):
            changed.set()

    http_client = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False)
    transport = streamable_http_client(url, http_client=http_client)
    async with Client(transport, mode=mode, message_handler=on_message) as client:
        info = client.server_info
        tell("connected", revision=client.protocol_version, name=info.name, title=info.title)
        listed = await client.list_tools()
        tell("listed", tools=[tool.name for tool in listed.tools])
        await call(client, "test_echo_run", {"repo": "acme/site"})
        await call(client, "test_echo_write", {"kind": "feature"})
        await call(client, "test_echo_mismatch", {"repo": "acme/site"})
        await call(client, "absent", {})
        tell("waiting")
        held = asyncio.create_task(client.call_tool("test_echo_fetch", {"path": "/user"}))
        await asyncio.to_thread(sys.stdin.readline)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        tell("cancelled")
        if mode == "legacy":
            tell("listening")
            await asyncio.wait_for(changed.wait(), 60)
        else:
            async with client.listen(tools_list_changed=True) as subscription:
                tell("listening")
                async for _ in subscription:
                    break
        listed = await client.list_tools(cache_mode="refresh")
        tell("changed", tools=[tool.name for tool in listed.tools])


asyncio.run(main(*sys.argv[1:]))
