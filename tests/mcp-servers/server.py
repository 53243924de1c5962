"""An MCP server that is written with PyPI `mcp`. It has the same tools as `server.mjs`, which describes them, and listens
on a port of 127.0.0.1 that it prints.
"""

import asyncio
import base64
import os
import socket
import sys
import threading
from typing import TypedDict

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)


class Sum(TypedDict):
    sum: int


server = MCPServer("python", version="1.0.0", warn_on_duplicate_tools=False)


@server.tool(description="Adds two numbers")
def add(a: int, b: int) -> Sum:
    return Sum(sum=a + b)


@server.tool(description="Fails", structured_output=False)
def fail(why: str) -> str:
    raise ToolError(why)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@server.tool(description="Returns content blocks of all types")
def media() -> CallToolResult:
    text = TextResourceContents(uri="test://text", mime_type="text/plain", text="embedded")
    blob = BlobResourceContents(uri="test://blob", mime_type="application/gzip", blob=encoded("blob"))
    return CallToolResult(
        content=[
            TextContent(text="one", annotations=Annotations(audience=["user"], priority=0.5)),
            ImageContent(data=encoded("image"), mime_type="image/png"),
            AudioContent(data=encoded("audio"), mime_type="audio/wav"),
            EmbeddedResource(resource=text),
            EmbeddedResource(resource=blob),
            ResourceLink(uri="test://link", name="link", title="A link", description="Linked", size=5),
        ]
    )


@server.tool(description="Counts", structured_output=False)
async def count(steps: int, ctx: Context) -> str:
    # Monstrum requests no progress. These notifications come before the result all the same.
    for step in range(1, steps + 1):
        await ctx.session.send_progress_notification(
            ctx.request_id, step, steps, related_request_id=ctx.request_id
        )
    return f"counted to {steps}"


def note() -> str:
    return "noted"


server.add_tool(note, description="Returns a note", structured_output=False)


@server.tool(description="Changes the description of `note`", structured_output=False)
async def describe(text: str, ctx: Context) -> str:
    server.remove_tool("note")
    server.add_tool(note, description=text, structured_output=False)
    await ctx.notify_tools_changed()
    return "changed"


def end_with_parent():
    """The standard input ends when the process that started this server ends."""
    sys.stdin.buffer.read()
    os._exit(0)


async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


asyncio.run(main())
