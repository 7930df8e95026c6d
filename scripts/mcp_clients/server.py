"""An MCP server with one tool that takes effect and then behaves badly; `make clients` counts the effects.

It is written by hand, because an SDK would not let it break off where it should. It speaks 2026-07-28 and 2025-11-25.
The first time that an order is asked for, it does what the argument `fault` says, after the effect; then it answers well.
"""

import argparse
import json
import os
import signal
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODERN, LEGACY = "2026-07-28", "2025-11-25"
SERVER = {"name": "shop", "version": "1.0.0"}
CREATE_ORDER = {
    "name": "create_order",
    "description": "Creates an order.",
    "inputSchema": {
        "type": "object",
        "required": ["order", "fault"],
        "properties": {"order": {"type": "string"}, "fault": {"type": "string"}},
    },
}
# Longer than a client and the gateway wait.
HANG_S, SLOW_S = 12, 3

arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int, required=True)
arguments.add_argument("--effects", type=Path, required=True, help="a file that gets a line for each effect")
arguments = arguments.parse_args()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in request:
            return self.empty(202)
        method, params = request["method"], request.get("params", {})
        modern = self.headers.get("mcp-protocol-version") == MODERN
        common = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
        if method == "tools/call":
            self.call(request["id"], params["arguments"], {"resultType": "complete"} if modern else {})
        elif method == "tools/list":
            self.result(request["id"], common | {"tools": [CREATE_ORDER]})
        elif method == "server/discover" and modern:
            self.result(request["id"], common | {"supportedVersions": [MODERN], "capabilities": {"tools": {}}})
        elif method == "initialize":
            told = {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": SERVER}
            self.result(request["id"], told)
        elif method == "ping":
            self.result(request["id"], {})
        else:
            unknown = {"code": -32601, "message": "no such method"}
            self.json(404 if modern else 200, {"jsonrpc": "2.0", "id": request["id"], "error": unknown})

    def do_GET(self):
        self.empty(405)

    do_DELETE = do_GET

    def call(self, id, asked, common):
        count = effect(asked["order"])
        fault = asked["fault"] if count == 1 else "none"
        if fault == "drop":
            self.begin_events()
            # The stream ends without the response.
            self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True
        elif fault == "cut":
            self.close_connection = True
        elif fault == "end":
            os._exit(1)
        elif fault == "503":
            self.empty(503)
        elif fault == "-32603":
            error = {"code": -32603, "message": "Internal error"}
            self.json(200, {"jsonrpc": "2.0", "id": id, "error": error})
        elif fault == "isError":
            text = "Error executing tool create_order: timed out while waiting for the warehouse"
            self.result(id, common | {"content": [{"type": "text", "text": text}], "isError": True})
        else:
            if fault in ("hang", "slow"):
                time.sleep(HANG_S if fault == "hang" else SLOW_S)
            order = {"order_id": f"o-{count}"}
            content = [{"type": "text", "text": json.dumps(order)}]
            self.result(id, common | {"content": content, "structuredContent": order, "isError": False})

    def begin_events(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def result(self, id, result):
        self.json(200, {"jsonrpc": "2.0", "id": id, "result": result})

    def json(self, status, message):
        body = json.dumps(message).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def empty(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def effect(order):
    """Takes effect; returns how often it has for this order. On disk, so that it outlives the process."""
    with open(arguments.effects, "a") as file:
        file.write(order + "\n")
    return arguments.effects.read_text().split("\n").count(order)


def serve(listener):
    server = ThreadingHTTPServer(listener.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


def main():
    listener = socket.create_server(("127.0.0.1", arguments.port), backlog=64)
    while True:
        # The server is a child, so that one that has ended is started again at once.
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(listener)

        def stop(*_):
            os.kill(child, signal.SIGKILL)
            os._exit(0)

        signal.signal(signal.SIGTERM, stop)
        os.waitpid(child, 0)


main()
