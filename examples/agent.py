#!/usr/bin/env python3
"""A remote agent: offers two tools to the bots of a Monstrum server.

    pip install 'websockets>=15'
    MONSTRUM_URL=http://127.0.0.1:8080 MONSTRUM_AGENT_KEY=mk_... python3 agent.py

The file is a complete client of the protocol `monstrum.agent.v1`, which docs/agents.md describes. It needs Python 3.11.
Copy it and replace the tools. Nothing else needs to change: the client reconnects after failures, runs a bounded number
of calls, stops calls that the server cancels, and finishes its calls when the server or this process stops.
"""

import asyncio
import json
import os
import platform
import random
import signal
import sys
import time
import uuid

import websockets

PROTOCOL = "monstrum.agent.v1"
# The number of calls that run at once. The server sends no more.
CONCURRENCY = 8
# The library pings the server and expects an answer. A socket can look open although the connection is dead.
PING_S = {"ping_interval": 20, "ping_timeout": 25}
# The waiting time before a new connection doubles from the first value to the second.
RECONNECT_S = (1, 60)
# The time for which calls may continue after this process was asked to stop.
FINISH_S = 20
# The longest message about the progress of a call.
PROGRESS_BYTES = 1024
# Closing codes after which another attempt cannot succeed: the key was deleted or rotated, or another agent serves.
FINAL_CODES = {4401, 4409}


# ---- the tools: replace this part -------------------------------------------------------------------------------
#
# A tool is an async function of the parameters, which the server has checked against `input_schema`, and of the call.
# What it returns must be JSON; what it raises becomes the error that the model reads. A function that blocks must run
# in a thread: `await asyncio.to_thread(function, argument)`.


async def disk_usage(params, call):
    """Returns the size and the free space of the file system of a folder."""
    info = os.statvfs(params["path"])
    return {"total_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize}


async def count_down(params, call):
    """Waits some seconds, and reports progress each second."""
    for left in range(params["seconds"], 0, -1):
        await call.progress(f"{left} s left")
        await asyncio.sleep(1)
    return {"host": platform.node(), "seconds": params["seconds"]}


TOOLS = {
    "disk_usage": (
        disk_usage,
        {
            "description": "Returns the size and the free space of the file system that contains a folder.",
            "input_schema": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "An absolute path"}},
                "required": ["path"],
                "additionalProperties": False,
            },
            "effect": "read",
        },
    ),
    "count_down": (
        count_down,
        {
            "description": "Waits for a number of seconds.",
            "input_schema": {
                "type": "object",
                "properties": {"seconds": {"type": "integer", "minimum": 1, "maximum": 50}},
                "required": ["seconds"],
                "additionalProperties": False,
            },
            "effect": "read",
        },
    ),
}


# ---- the client -------------------------------------------------------------------------------------------------


class ScopeViolation(Exception):
    """Raised by a tool whose parameters name something that the bot may not use."""


class Call:
    """A running call. `frame` has `id`, `bot`, `task_id`, `locale`, `deadline_ms` and perhaps `chat`."""

    def __init__(self, agent, frame):
        self.agent = agent
        self.frame = frame
        self.reported_at = 0.0

    async def progress(self, message):
        """Reports progress. The server accepts one message a second, so others are left out."""
        now = time.monotonic()
        if now - self.reported_at >= 1:
            self.reported_at = now
            message = message.encode()[:PROGRESS_BYTES].decode(errors="ignore")
            await self.agent.send({"type": "progress", "id": self.frame["id"], "message": message})


def text_of(frame):
    """Returns a frame as JSON. NaN and infinity are not JSON, and the server would close the connection."""
    return json.dumps(frame, allow_nan=False)


class Agent:
    """One connection to the server."""

    def __init__(self, socket):
        self.socket = socket
        self.calls = {}
        self.is_stopping = False

    async def send(self, frame):
        await self.socket.send(text_of(frame))

    async def say_hello(self, instance):
        tools = [{"name": name, **definition} for name, (_, definition) in TOOLS.items()]
        await self.send(
            {
                "type": "hello",
                "protocol": 1,
                "name": platform.node() or "agent",
                "version": "1.0",
                "instance": instance,
                "concurrency": CONCURRENCY,
                "tools": tools,
            }
        )

    async def serve(self):
        """Processes frames until the connection ends."""
        async for text in self.socket:
            frame = json.loads(text)
            kind = frame["type"]
            if kind == "welcome":
                for tool in frame["tools"]:
                    reason = f": {tool['reason']}" if "reason" in tool else ""
                    print(f"{tool['name']} as {tool.get('as')}: {tool['status']}{reason}", flush=True)
            elif kind == "call":
                self.start(frame)
            elif kind == "cancel":
                if task := self.calls.get(frame["id"]):
                    task.cancel()
            elif kind == "bye":
                # The server stops. Running calls may finish; it closes the connection afterwards.
                print("the server stops; running calls continue", flush=True)
            elif kind == "error":
                print(f"error {frame['code']}: {frame['message']}", file=sys.stderr, flush=True)

    def start(self, frame):
        print(f"running {frame['tool']}", flush=True)
        task = asyncio.create_task(self.run(frame))
        self.calls[frame["id"]] = task
        task.add_done_callback(lambda _: self.calls.pop(frame["id"], None))

    async def run(self, frame):
        """Runs one call and sends its result. A cancelled call sends nothing."""
        head = {"type": "result", "id": frame["id"]}
        try:
            if self.is_stopping:
                raise RuntimeError("the agent stops; try again later")
            function, _ = TOOLS[frame["tool"]]
            async with asyncio.timeout(frame["deadline_ms"] / 1000):
                data = await function(frame["params"], Call(self, frame))
            text = text_of({**head, "status": "success", "data": data})
        except ScopeViolation as violation:
            text = text_of({**head, "status": "scope_violation", "message": str(violation)})
        except Exception as error:  # The model reads the message. A result that is not JSON is an error too.
            text = text_of({**head, "status": "error", "message": f"{type(error).__name__}: {error}"})
        try:
            await self.socket.send(text)
        except websockets.ConnectionClosed:
            print(f"the connection ended before the result of {frame['tool']}", file=sys.stderr, flush=True)

    async def finish(self):
        """Waits for the running calls, and cancels those that take too long. New calls are refused."""
        self.is_stopping = True
        if self.calls:
            await asyncio.wait(list(self.calls.values()), timeout=FINISH_S)
        for task in list(self.calls.values()):
            task.cancel()


async def connect(url, key, instance, stop):
    """Serves one connection. Returns the closing code and its reason; the code is None if this process stops."""
    headers = {"Authorization": f"Bearer {key}"}
    # Without `proxy=None`, the library would read proxies from the environment. Frames may have more than 1 MiB.
    async with websockets.connect(
        url, additional_headers=headers, subprotocols=[PROTOCOL], max_size=2 << 20, proxy=None, **PING_S
    ) as socket:
        agent = Agent(socket)
        await agent.say_hello(instance)
        serving = asyncio.create_task(agent.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if stop.is_set():
            await agent.finish()
            serving.cancel()
            return None, ""
        for task in list(agent.calls.values()):
            task.cancel()
        try:
            await serving
        except websockets.ConnectionClosed:
            pass
        return socket.close_code, socket.close_reason


async def main():
    base, key = os.environ.get("MONSTRUM_URL", "").rstrip("/"), os.environ.get("MONSTRUM_AGENT_KEY")
    if not base.startswith(("http://", "https://")) or not key:
        print("set MONSTRUM_URL to the URL of the server, and MONSTRUM_AGENT_KEY to an agent key", file=sys.stderr)
        return 2
    url = base.replace("http", "ws", 1) + "/ws/agent"
    # The same instance replaces its old connection, even if the server has not noticed that it is dead.
    instance = str(uuid.uuid4())
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    wait_s = RECONNECT_S[0]
    while not stop.is_set():
        began = time.monotonic()
        try:
            code, reason = await connect(url, key, instance, stop)
        except websockets.InvalidStatus as refused:
            status = refused.response.status_code
            print(f"the server refused the connection: HTTP {status}", file=sys.stderr, flush=True)
            if status in (401, 403, 404, 426):
                return 1
            code, reason = None, ""
        except (OSError, TimeoutError, websockets.WebSocketException) as error:
            print(f"cannot connect: {error}", file=sys.stderr, flush=True)
            code, reason = None, ""
        if stop.is_set():
            break
        if code is not None:
            print(f"the connection was closed with {code}: {reason}", file=sys.stderr, flush=True)
        if code in FINAL_CODES:
            return 1
        # A connection that lasted resets the waiting time. The jitter spreads agents that lost the same server.
        wait_s = RECONNECT_S[0] if time.monotonic() - began > 60 else min(wait_s * 2, RECONNECT_S[1])
        pause = random.uniform(wait_s / 2, wait_s)
        try:
            await asyncio.wait_for(stop.wait(), pause)
        except TimeoutError:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
