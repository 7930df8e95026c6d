"""Liars between the parts, each of which breaks the promise now and then: scripts/judge must find each, without being told where.

Each is looked for twice: by the linearizability checker alone, and by the generator's own model alone.
"""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

ONE_IN = 25
FIND_S = 600


class Relay:
    """A liar on the way: takes one request a connection, and does what `lie` says with it."""

    def __init__(self, to, lie):
        self.to, self.lie = to, lie
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def serve(self, line):
        with line:
            try:
                line.settimeout(20)
                if request := read_request(line.makefile("rb")):
                    line.sendall(self.lie(*request, self.forward))
            except OSError:
                pass

    def forward(self, head, body):
        """The whole answer, as it came."""
        with socket.create_connection(("127.0.0.1", self.to), timeout=20) as far:
            rows = [row for row in head if not row.lower().startswith((b"connection:", b"content-length:"))]
            rows += [b"connection: close", b"content-length: %d" % len(body)]
            far.sendall(b"\r\n".join(rows) + b"\r\n\r\n" + body)
            answer = b""
            while True:
                if is_whole(answer):
                    break
                more = far.recv(65536)
                if not more:
                    break
                answer += more
        return re.sub(rb"(?i)\r\nconnection: [a-z-]+", b"", answer, count=1).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)

    def stop(self):
        self.listener.close()


def is_whole(answer):
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def read_request(reader):
    head, length = [], 0
    while (row := reader.readline().strip()):
        head.append(row)
        if row.lower().startswith(b"content-length:"):
            length = int(row.split(b":")[1])
    return (head, reader.read(length)) if head else None


class Lie:
    """Nothing but the truth: what each liar starts from."""

    stores = ("sqlite", "redis")

    def __init__(self):
        self.world, self.told = None, 0

    def now(self, one_in=ONE_IN):
        if random.SystemRandom().randrange(one_in):
            return False
        self.told += 1
        return True

    def before_tool(self, port):
        return port

    before_gateway = None

    def before_start(self, gateway):
        """A gateway is about to start."""


class TwiceToTheTool(Lie):
    """A network that delivers a request to the tool twice."""

    def before_tool(self, port):
        def lie(head, body, forward):
            if head[0].startswith(b"POST") and self.now():
                forward(head, body)
            return forward(head, body)

        return Relay(port, lie).port


class ForgottenWrites(Lie):
    """A disk that says that it has written, and has not: data and watermarks go back together."""

    stores = ("sqlite",)

    def before_start(self, gateway):
        world = self.world
        if world is None:
            return
        older = gateway.folder / "older"
        if older.exists() and self.now(3):
            shutil.rmtree(world.data)
            shutil.copytree(older, world.data)
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(world.data, older)


class AnotherResult(Lie):
    """A cache before the gateway that answers with what it has told before."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def before_gateway(self, port):
        def lie(head, body, forward):
            path = head[0].split()[1]
            answer = forward(head, body)
            if b"/calls" not in path or not answer.startswith(b"HTTP/1.1 200"):
                return answer
            older, self.kept[path] = self.kept.get(path), answer
            return older if older and self.now() else answer

        return Relay(port, lie)


class OldToken(Lie):
    """A gateway that gives a token out a second time: agent and tool both get the one before."""

    def __init__(self):
        super().__init__()
        self.newest = {}

    def before_gateway(self, port):
        def lie(head, body, forward):
            answer = forward(head, body)
            session = re.search(rb'"session_id": *"([^"]+)"', body)
            token = re.search(rb'"fencing":(\d+)', answer)
            if not session or not token or b'"replayed":false' not in answer:
                return answer
            older, self.newest[session[1]] = self.newest.get(session[1]), token[1]
            if older and len(older) == len(token[1]) and self.now(5):
                return answer.replace(token[1], older)
            return answer

        return Relay(port, lie)


class TwoLocks(Lie):
    """A lock that is given out twice: one of two calls is in another session than it thinks."""

    def before_gateway(self, port):
        def lie(head, body, forward):
            if b'"lock"' in body and self.now(4):
                body = re.sub(rb'"session_id": *"', b'"session_id": "other-', body)
            return forward(head, body)

        return Relay(port, lie)


class HalfUndone(Lie):
    """A saga that is said to be undone, and one of whose calls is not."""

    def before_tool(self, port):
        def lie(head, body, forward):
            if head[0].startswith(b"POST /undo") and self.now(3):
                return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
            return forward(head, body)

        return Relay(port, lie).port


LIES = {
    "double-effect": TwiceToTheTool,
    "lost-write": ForgottenWrites,
    "stale-replay": AnotherResult,
    "reused-token": OldToken,
    "lock-twice": TwoLocks,
    "half-undone": HalfUndone,
}
# Whose business it is: of the half-undone saga the model knows nothing.
BY = ("checker", "model")


def main(home, Stage, names):
    """Each liar, judged by the checker alone and by the model alone, each in a process of its own."""
    if names[:1] == ["--one"]:
        return one(home, Stage, *names[1:])
    missed = 0
    print(f"{'planted':14} {'store':7} {'found by':9} {'after':>7}  what was found")
    for name in names or LIES:
        for store in LIES[name].stores:
            for by in BY:
                if (name, by) == ("half-undone", "model"):
                    continue
                command = [sys.executable, sys.argv[0], "planted", "--one", name, store]
                environment = {**os.environ, "JUDGE_BY": by, "JUDGE_SHRINK_S": os.environ.get("JUDGE_SHRINK_S", "0")}
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                found = re.search(r"^after (\d+) s .* has found: (.*)", done.stdout, re.MULTILINE)
                is_found = found and not "an error has found" in found[0]
                missed += not is_found
                said = found[2][:90] if found else (done.stdout + done.stderr)[-400:]
                print(f"{name:14} {store:7} {by:9} {found[1] + ' s' if found else 'never':>7}  {said}", flush=True)
    return 1 if missed else 0


def one(home, Stage, name, store):
    stage = Stage(home, store, lie=LIES[name]())
    try:
        stage.play(FIND_S, random.randrange(10**9))
        print(f"lies told: {stage.lie.told}")
    finally:
        stage.stop()
    return 0
