#!/usr/bin/env python3
"""The tool of scripts/faults: executes each request, writes one line an effect into its books, then answers.

/hold and /probe execute every request; /retry executes each key once. GET /probe/KEY says what was executed under a key.
The books name the intent by the arguments, so they owe nothing to the gateway's keys.
"""

import json
import os
import random
import sys
import threading
import time
from http.server import ThreadingHTTPServer

from json_answers import JsonAnswers

LONGEST_S = 0.06


class Tool(JsonAnswers):
    # Head and body of an answer in one segment.
    wbufsize = -1
    timeout = 60
    lock = threading.Lock()
    made, made_for, books = 0, {}, -1

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        key, n, self.arrived = self.headers["idempotency-key"], json.loads(body)["n"], time.monotonic_ns()
        time.sleep(random.uniform(0, LONGEST_S))
        with self.lock:
            known = self.path == "/retry" and self.made_for.get(key)
            effect = known or self.execute(key, n)
        time.sleep(random.uniform(0, LONGEST_S))
        self.answer(200, json.dumps(effect).encode())

    def do_GET(self):
        effect = self.made_for.get(self.path.rpartition("/")[2])
        self.answer(200 if effect else 404, json.dumps(effect).encode())

    def execute(self, key, n):
        Tool.made += 1
        effect = {"n": n, "effect": Tool.made, "key": key, "tool": self.path}
        self.made_for[key] = effect
        # One write, which outlives this process. The times are for the history.
        line = {**effect, "arrived": self.arrived, "at": time.monotonic_ns()}
        os.write(self.books, json.dumps(line).encode() + b"\n")
        return effect


class Server(ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *_):
        pass


if __name__ == "__main__":
    port, books = sys.argv[1:]
    Tool.books = os.open(books, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    Server(("127.0.0.1", int(port)), Tool).serve_forever()
