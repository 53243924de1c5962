"""Runs litellm's proxy on 127.0.0.1 with a model that answers without an upstream, and prints the URL once it listens. The
argument is the file of its configuration. The proxy ends when its standard input is closed."""

import os
import socket
import sys
import threading
import time

from litellm.proxy.proxy_cli import run_server


def end_with_input():
    sys.stdin.buffer.read()
    os._exit(0)


def tell(port):
    # The proxy has no event for its start.
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    print(f"listening on http://127.0.0.1:{port}", flush=True)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
threading.Thread(target=end_with_input, daemon=True).start()
threading.Thread(target=tell, args=(port,), daemon=True).start()
run_server(["--config", sys.argv[1], "--host", "127.0.0.1", "--port", str(port)], standalone_mode=False)
