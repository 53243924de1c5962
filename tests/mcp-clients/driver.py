"""Uses a bot through the official Python client, as the test tells it to. Commands and answers are JSON documents, one a
line; `driver.mjs` describes them.

Arguments: the URL, the key, and the generation of the protocol: `auto` (the newest revision) or `legacy` (initialize).
"""

import asyncio
import json
import sys

import httpx2
from mcp import MCPError
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult


def tell(**values):
    print(json.dumps(values), flush=True)


async def next_line():
    return await asyncio.to_thread(sys.stdin.readline)


async def visit(page):
    """The person opens the URL, decides, and returns to the client."""
    tell(asked=page)
    await next_line()


async def on_request(_context, params):
    await visit(params.url)
    return ElicitResult(action="accept")


async def call(client, command):
    tool, arguments, meta = command["tool"], command["arguments"], command.get("meta")
    try:
        return await client.call_tool(tool, arguments, meta=meta)
    except MCPError as error:
        # Revision 2025-11-25 has an error in place of a request. The client calls again after the decision.
        if error.code != -32042:
            raise
        await visit(error.data["elicitations"][0]["url"])
        return await client.call_tool(tool, arguments, meta=meta)


def shown(result):
    content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    return {
        "error": bool(result.is_error),
        "texts": [block.get("text") for block in content],
        "content": content,
        "structured": result.structured_content,
    }


async def listen(client):
    async with client.listen(tools_list_changed=True) as subscription:
        tell(listening=True)
        async for _ in subscription:
            break
    tell(changed=True)


async def main(url, key, mode):
    is_open, listens = asyncio.Event(), asyncio.Event()

    async def on_message(message):
        if listens.is_set() and "tools/list_changed" in str(getattr(message, "method", "")):
            tell(changed=True)

    async def on_response(response):
        # The stream of changes is open, so no change is missed.
        if response.request.method == "GET" and response.is_success:
            is_open.set()

    http_client = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        trust_env=False,
        event_hooks={"response": [on_response]},
    )
    transport = streamable_http_client(url, http_client=http_client)
    async with Client(
        transport, mode=mode, message_handler=on_message, elicitation_callback=on_request
    ) as client:
        tell(revision=client.protocol_version)
        pending, listening = None, None
        while line := await next_line():
            command = json.loads(line)
            match command["do"]:
                case "list":
                    listed = await client.list_tools(cache_mode="refresh")
                    tell(tools=[tool.name for tool in listed.tools])
                case "call":
                    tell(**shown(await call(client, command)))
                case "begin":
                    pending = asyncio.create_task(call(client, command))
                case "cancel":
                    pending.cancel()
                    await asyncio.gather(pending, return_exceptions=True)
                    tell(cancelled=True)
                case "listen" if mode == "legacy":
                    await is_open.wait()
                    listens.set()
                    tell(listening=True)
                case "listen":
                    listening = asyncio.create_task(listen(client))
        if listening:
            listening.cancel()


asyncio.run(main(*sys.argv[1:]))
