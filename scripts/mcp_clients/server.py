"""An MCP server with one tool that takes effect and then behaves badly; `make clients` counts the effects.

It is written by hand, because an SDK would not let it break off where it should. It speaks 2026-07-28 and the older
revisions, over HTTP, or with no `--port` over standard input and output. The first time that an order is asked for, it does what the
argument `fault` says, after the effect; then it answers well.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODERN, LEGACY = "2026-07-28", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
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
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Order it?",
        "requestedSchema": {"type": "object", "required": ["sure"], "properties": {"sure": {"type": "boolean"}}},
    },
}
# Longer than a client and the gateway wait, and longer than a client waits.
HANG_S, SLOW_S = 12, 3.5

arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int)
arguments.add_argument("--slow", type=float, default=SLOW_S, help="seconds until a slow order is answered")
arguments.add_argument("--effects", type=Path, required=True, help="a file that gets a line for each effect")
arguments = arguments.parse_args()


class NoAnswer(Exception):
    """The tool has taken effect, and this is what comes instead of an answer."""


def answer(request):
    """The response to a request."""
    method, params = request["method"], request.get("params", {})
    modern = params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") == MODERN
    cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
    if method == "tools/call":
        if params["arguments"]["fault"] == "asks" and "inputResponses" not in params:
            asks = {"resultType": "input_required", "inputRequests": {"sure": QUESTION}, "requestState": "asked"}
            outcome = {"result": asks}
        else:
            outcome = call(params["arguments"])
            if modern and "result" in outcome:
                outcome["result"]["resultType"] = "complete"
    elif method == "tools/list":
        outcome = {"result": cached | {"tools": [CREATE_ORDER]}}
    elif method == "server/discover" and modern:
        outcome = {"result": cached | {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}}
    elif method == "initialize":
        wanted = params["protocolVersion"]
        revision = wanted if wanted in LEGACY else LEGACY[0]
        outcome = {"result": {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": SERVER}}
    elif method == "ping":
        outcome = {"result": {}}
    else:
        outcome = {"error": {"code": -32601, "message": "no such method"}}
    return {"jsonrpc": "2.0", "id": request["id"]} | outcome


def call(asked):
    count = effect(asked["order"])
    fault = asked["fault"] if count == 1 else "none"
    if fault == "-32603":
        return {"error": {"code": -32603, "message": "Internal error"}}
    if fault == "isError":
        text = "Error executing tool create_order: timed out while waiting for the warehouse"
        return {"result": {"content": [{"type": "text", "text": text}], "isError": True}}
    if fault == "end":
        os._exit(1)
    if fault in ("hang", "slow"):
        time.sleep(HANG_S if fault == "hang" else arguments.slow)
    elif fault != "none":
        raise NoAnswer("drop" if fault == "asks" else fault)
    order = {"order_id": f"o-{count}"}
    content = [{"type": "text", "text": json.dumps(order)}]
    return {"result": {"content": content, "structuredContent": order, "isError": False}}


def effect(order):
    """Takes effect; returns how often it has for this order. On disk, so that it outlives the process."""
    with open(arguments.effects, "a") as file:
        file.write(order + "\n")
    return arguments.effects.read_text().split("\n").count(order)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in request:
            return self.say(202)
        try:
            message = answer(request)
        except NoAnswer as fault:
            return self.say_nothing(str(fault))
        unknown = self.headers.get("mcp-protocol-version") == MODERN and message.get("error", {}).get("code") == -32601
        self.say(404 if unknown else 200, json.dumps(message).encode())

    def do_GET(self):
        self.say(405)

    do_DELETE = do_GET

    def say(self, status, body=b""):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def say_nothing(self, fault):
        self.close_connection = True
        if fault == "503":
            self.say(503)
        elif fault == "drop":
            # A stream that ends without the response.
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def serve_http():
    """In a child, so that a server that has ended is started again at once."""
    listener = socket.create_server(("127.0.0.1", arguments.port), backlog=64)
    while True:
        child = os.fork()
        if child == 0:
            server = ThreadingHTTPServer(listener.getsockname(), Handler, bind_and_activate=False)
            server.socket.close()
            server.socket = listener
            server.serve_forever()

        def stop(*_):
            os.kill(child, signal.SIGKILL)
            os._exit(0)

        signal.signal(signal.SIGTERM, stop)
        os.waitpid(child, 0)


def serve_pipe():
    writing = threading.Lock()

    def handle(request):
        message = json.dumps(answer(request))
        with writing:
            print(message, flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            threading.Thread(target=handle, args=[request], daemon=True).start()


if arguments.port:
    serve_http()
else:
    serve_pipe()
