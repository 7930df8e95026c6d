"""The tool of scripts/judge: it keeps books of its own, writes them into the history, and misbehaves as it is told."""

import gzip
import json
import socket
import struct
import threading
import time
from collections import Counter, defaultdict

from judge_gateways import TENANTS, end_listener
from judge_history import History, now

# What it does with one request. Those of BEFORE have no effect.
BEFORE = ("refuse-404", "refuse-422", "busy-429", "away-503", "hang-up", "forgets")
AFTER = ("lost", "reset", "cut", "error-500", "gateway-502", "timeout-408", "redirect-307", "refuse-after", "no-session-404", "mixed-up", "slow", "late")
BEHAVIOURS = (*BEFORE, *AFTER)
STATUS = {"refuse-404": 404, "refuse-422": 422, "busy-429": 429, "away-503": 503}
STATUS_AFTER = {"error-500": 500, "gateway-502": 502, "timeout-408": 408, "redirect-307": 307}
# Whose refusals prove nothing, by its configuration, and how it refuses after its effect. All others tell the truth when they refuse.
STRICT = {"strict": 409, "distant": 403}
SLOW_S, LATE_S = 0.1, 0.9
ALWAYS = threading.Event()
ALWAYS.set()


class Past:
    """What went over a connection before: whose requests, and its last call with a usual answer."""

    def __init__(self):
        self.tenants, self.call = set(), None


class Server:
    """The same tools behind an MCP server of the older era, whose sessions can be forgotten."""

    def __init__(self, tool):
        self.tool, self.sessions = tool, set()
        # Those of which it has said that they are not there. They stay.
        self.kept = set()

    def answer(self, line, method, headers, body, past):
        if method != "POST":
            return 405 if method == "GET" else 200, {}
        message = json.loads(body)
        asks = message.get("method")
        if asks == "initialize":
            session = f"session-{time.monotonic_ns()}"
            with self.tool.lock:
                self.sessions.add(session)
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "far", "version": "1"}}
            return 200, self.says(message, about), {"mcp-session-id": session}
        if headers.get("mcp-session-id") not in self.sessions:
            return self.no_session()
        if "id" not in message:
            return 202, None
        if asks != "tools/call":
            return 200, self.says(message, {"tools": []} if asks == "tools/list" else {})
        params = message["params"]
        headers["idempotency-key"] = params.get("_meta", {}).get("dev.oncegate/idempotency-key")
        as_result = lambda result: self.says(message, {"content": [], "structuredContent": result, "isError": False})
        return self.tool.work(line, f"/{params['name']}", headers, params["arguments"], past, self.forget, as_result)

    def says(self, message, result):
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def forget(self):
        with self.tool.lock:
            self.sessions &= self.kept
        return self.no_session()

    def deny(self, session):
        """Says that there is no such session, and it is there, and stays."""
        with self.tool.lock:
            self.kept.add(session)
            self.sessions.add(session)
        return self.no_session()

    def no_session(self):
        return 404, self.error("no such session", -32001)

    def error(self, says, code=-32000):
        """An error that names no request, as what refuses before it has read one answers."""
        return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": says}}


class Tool:
    """An HTTP server. The intent of a request is an argument, so its books owe nothing to the gateway's keys."""

    def __init__(self, dedups=("retry",)):
        self.dedups, self.lock = dedups, threading.Lock()
        self.plans, self.books, self.by_key = defaultdict(list), defaultdict(list), {}
        self.made, self.requests, self.did = 0, 0, Counter()
        self.at_work, self.holders, self.held_twice = 0, defaultdict(set), None
        self.history, self.run = None, ""
        self.listener = None
        # The path of a connection that two tenants have used.
        self.mixed = None
        self.server = Server(self)

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
            past = Past()
            try:
                while self.one(line, reader, is_held, past):
                    pass
            except (OSError, ValueError):
                pass

    def one(self, line, reader, is_held, past):
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
        if path == "/mcp":
            answer = self.server.answer(line, method, headers, body, past)
            is_held.wait(10)
            return bool(answer) and self.say(line, *answer)
        if method == "GET":
            found = self.by_key.get(path.rpartition("/")[2])
            return self.say(line, 200 if found else 404, found or {"none": True})
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        answer = self.work(line, path, headers, json.loads(body), past)
        is_held.wait(10)
        return bool(answer) and self.say(line, *answer)

    def work(self, line, path, headers, args, past, forget=None, as_result=lambda result: result):
        """Does what a request asks for. `forget`: for a tool of an MCP server, which then knows no session any more."""
        arrived = now()
        with self.lock:
            self.requests += 1
            self.at_work += 1
            past.tenants.add(args.get("whose", TENANTS[0]))
            if len(past.tenants) > 1:
                self.mixed = self.mixed or path
        try:
            return self.execute(line, path, headers, args, arrived, past, forget, as_result)
        finally:
            with self.lock:
                self.at_work -= 1

    def execute(self, line, path, headers, args, arrived, past, forget, as_result):
        """Status, body and headers of the answer; nothing if the line ends."""
        intent, key = args["intent"], headers.get("idempotency-key")
        # What an earlier run has left open belongs to another history.
        is_of_run = (args.get("saga") or intent).startswith(self.run)
        history = self.history if is_of_run else History()
        with self.lock:
            what = self.plans[intent].pop(0) if self.plans[intent] else "ok"
            name = path.strip("/").split("/")[0]
            if what == "refuse-after" and name not in STRICT or what in ("no-session-404", "forgets") and not forget:
                what = "ok"
            if what == "mixed-up" and past.call is None:
                what = "lost"
            self.did[what] += 1
        if args.get("lock"):
            # The session of an exclusive call, as its agent has it.
            self.count_holder(history, args, arrived)
        try:
            if what in BEFORE:
                if what == "hang-up":
                    return None
                if what == "forgets":
                    return forget()
                return STATUS[what], self.server.error(what) if forget else {"refused": what}, {"retry-after": "0"}
            if what in ("slow", "late") or args.get("lock"):
                time.sleep(LATE_S if what == "late" else SLOW_S if what == "slow" else 0.02)
            result = as_result(self.effect(path, history, args, intent, key, arrived, headers))
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
        if what == "no-session-404":
            return self.server.deny(headers["mcp-session-id"])
        if what == "mixed-up":
            other, call_id = past.call
            return 200, other, {"x-call-id": call_id}
        if what == "ok" and headers.get("x-call-id"):
            past.call = result, headers["x-call-id"]
        status = STRICT[name] if what == "refuse-after" else STATUS_AFTER.get(what, 200)
        more = {"location": "/elsewhere"} if status == 307 else {}
        return status, result if status == 200 else self.server.error(what) if forget else {"error": what}, more

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
        text = b"" if result is None else json.dumps(result).encode()
        rows = "".join(f"{name}: {value}\r\n" for name, value in dict(more).items())
        line.sendall(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{rows}content-length: {len(text)}\r\n\r\n".encode() + text)
        return True

    def stop(self):
        if self.listener:
            end_listener(self.listener)
