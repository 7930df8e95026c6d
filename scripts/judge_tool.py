"""The tool of scripts/judge: it keeps books of its own, writes them into the history, and misbehaves as it is told."""

import json
import socket
import struct
import threading
import time
from collections import Counter, defaultdict

from judge_gateways import end_listener
from judge_history import History, now

# What it does with one request. Those of BEFORE have no effect.
BEFORE = ("refuse-404", "refuse-422", "busy-429", "away-503", "hang-up")
AFTER = ("lost", "reset", "cut", "error-500", "gateway-502", "timeout-408", "redirect-307", "denied-409", "slow", "late")
BEHAVIOURS = (*BEFORE, *AFTER)
STATUS = {"refuse-404": 404, "refuse-422": 422, "busy-429": 429, "away-503": 503}
STATUS_AFTER = {"error-500": 500, "gateway-502": 502, "timeout-408": 408, "redirect-307": 307, "denied-409": 409}
# Whose refusals prove nothing, by its configuration. All other tools tell the truth when they refuse.
STRICT = "strict"
SLOW_S, LATE_S = 0.1, 0.9
ALWAYS = threading.Event()
ALWAYS.set()


class Tool:
    """An HTTP server. The intent of a request is an argument, so its books owe nothing to the gateway's keys."""

    def __init__(self, dedups=("retry",)):
        self.dedups, self.lock = dedups, threading.Lock()
        self.plans, self.books, self.by_key = defaultdict(list), defaultdict(list), {}
        self.made, self.requests, self.did = 0, 0, Counter()
        self.at_work, self.holders, self.held_twice = 0, defaultdict(set), None
        self.history, self.run = None, ""
        self.listener = None

    def plan(self, intent, behaviours):
        """The next requests for this intent get these, one each."""
        with self.lock:
            self.plans[intent] += behaviours

    def listen(self):
        """Where it does not stand at the end of a line. Says its port."""
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self.accept, daemon=True).start()
        return self.listener.getsockname()[1]

    def accept(self):
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def serve(self, line, is_held=ALWAYS):
        """A connection. Nothing goes through while `is_held` is not set."""
        with line:
            line.settimeout(30)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = line.makefile("rb")
            try:
                while self.one(line, reader, is_held):
                    pass
            except (OSError, ValueError):
                pass

    def one(self, line, reader, is_held):
        head = reader.readline().split()
        if len(head) < 3:
            return False
        method, path = head[0].decode(), head[1].decode()
        headers = {}
        while (row := reader.readline().strip()):
            name, _, value = row.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        if headers.get("transfer-encoding") == "chunked":
            return False
        body = reader.read(int(headers.get("content-length", 0)))
        is_held.wait(10)
        if method == "GET":
            found = self.by_key.get(path.rpartition("/")[2])
            return self.say(line, 200 if found else 404, found or {"none": True})
        arrived = now()
        with self.lock:
            self.requests += 1
            self.at_work += 1
        try:
            answer = self.execute(line, path, headers, json.loads(body), arrived)
        finally:
            with self.lock:
                self.at_work -= 1
        is_held.wait(10)
        return bool(answer) and self.say(line, *answer)

    def execute(self, line, path, headers, args, arrived):
        """Status, body and headers of the answer; nothing if the line ends."""
        intent, key = args["intent"], headers.get("idempotency-key")
        # What an earlier run has left open belongs to another history.
        is_of_run = (args.get("saga") or intent).startswith(self.run)
        history = self.history if is_of_run else History()
        with self.lock:
            what = self.plans[intent].pop(0) if self.plans[intent] else "ok"
            if what == "denied-409" and path.strip("/") != STRICT:
                what = "ok"
            self.did[what] += 1
        if args.get("lock"):
            # The session of an exclusive call, as its agent has it.
            self.count_holder(history, args, arrived)
        try:
            if what in BEFORE:
                if what == "hang-up":
                    return None
                return STATUS[what], {"refused": what}, {"retry-after": "0"}
            if what in ("slow", "late") or args.get("lock"):
                time.sleep(LATE_S if what == "late" else SLOW_S if what == "slow" else 0.02)
            result = self.effect(path, history, args, intent, key, arrived, headers)
        finally:
            if args.get("lock"):
                with self.lock:
                    history.point("free", f"lock/{args['lock']}", f"{intent}@{arrived}")
                    self.holders[args["lock"]].discard((intent, arrived))
        if what == "lost":
            return None
        if what == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return None
        if what == "cut":
            text = json.dumps(result).encode()
            line.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text) + text[:4])
            return None
        status = STATUS_AFTER.get(what, 200)
        more = {"location": "/elsewhere"} if status == 307 else {}
        return status, result if status == 200 else {"error": what}, more

    def count_holder(self, history, args, arrived):
        with self.lock:
            history.point("take", f"lock/{args['lock']}", f"{args['intent']}@{arrived}", at=arrived, begin=args["sent"])
            holders = self.holders[args["lock"]]
            holders.add((args["intent"], arrived))
            if len(holders) > 1:
                self.held_twice = self.held_twice or set(holders)

    def effect(self, path, history, args, intent, key, arrived, headers):
        with self.lock:
            if path.strip("/").split("/")[0] in self.dedups and key in self.by_key:
                history.point("find", f"call/{intent}", None, self.by_key[key]["effect"], begin=arrived)
                return self.by_key[key]
            self.made += 1
            result = {"effect": f"e{self.made}", "intent": intent, **({"variant": args["variant"]} if "variant" in args else {})}
            seen = {"at": now(), "path": path, "fencing": headers.get("fencing-token"), "session": headers.get("x-session-id")}
            self.books[intent].append({**result, **seen})
            if key:
                self.by_key[key] = result
            if args.get("undoes"):
                history.point("undo", f"saga/{args['saga']}", {"call": args["undoes"], "after": []})
            else:
                history.point("effect", f"call/{intent}", None, result["effect"], begin=arrived)
                if args.get("saga"):
                    history.point("do", f"saga/{args['saga']}", intent)
            return result

    def say(self, line, status, result, more=()):
        text = json.dumps(result).encode()
        rows = "".join(f"{name}: {value}\r\n" for name, value in dict(more).items())
        line.sendall(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{rows}content-length: {len(text)}\r\n\r\n".encode() + text)
        return True

    def stop(self):
        if self.listener:
            end_listener(self.listener)
