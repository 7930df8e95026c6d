"""Serves over HTTP what a program says on standard input and output: the official MCP suite can ask URLs only.

conformance_bridge.py PORT COMMAND…: each POST is a line to the program, and the line with its id is the answer. It
gives each request an id of its own, because clients choose the same ones, and checks nothing."""

import json
import subprocess
import sys
from http.server import ThreadingHTTPServer
from itertools import count
from queue import Queue
from threading import Lock, Thread

from json_answers import JsonAnswers

program = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
writing, ids, waiting = Lock(), count(1), {}

# The statuses that the HTTP transport has for errors of JSON-RPC; the last two since 2026-07-28.
STATUSES = {-32700: 400, -32600: 400, -32020: 400, -32022: 400}
MODERN_STATUSES = {-32602: 400, -32601: 404}


def read():
    for line in program.stdout:
        answer = json.loads(line)
        if waits := waiting.pop(answer.get("id"), None):
            waits.put(answer)


def write(message):
    with writing:
        program.stdin.write(json.dumps(message).encode() + b"\n")
        program.stdin.flush()


class Handler(JsonAnswers):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            write(message)
            return self.answer(202, b"")
        number, queue = next(ids), Queue()
        waiting[number] = queue
        write(message | {"id": number})
        answer = queue.get(timeout=120) | {"id": message["id"]}
        code = answer.get("error", {}).get("code")
        is_modern = "io.modelcontextprotocol/protocolVersion" in message.get("params", {}).get("_meta", {})
        status = STATUSES.get(code) or (MODERN_STATUSES.get(code) if is_modern else None) or 200
        self.answer(status, json.dumps(answer).encode())

    def do_GET(self):
        self.answer(405, b"")

    do_DELETE = do_GET


Thread(target=read, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
