"""UCP's conformance suite before a gateway: its idempotency tests, as they are, at a merchant that remembers no key.

The suite asks the merchant where its shop is, and goes on there. A merchant says what it reads in Host. So if the gateway did not
keep that, the suite would go past it and judge the merchant alone. The suite knows no token of the gateway, either. So its
HTTP proxy is a line to the gateway, which adds the token and a mark; what comes to the merchant without the mark is refused. What
passed the line, what the gateway says that it sent, and what the merchant got are compared.
"""

import json
import os
import re
import subprocess
import threading
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from processes import free_port

HOST = "shop.example"
MARK = "X-By-The-Line"
VERSION = "2026-01-11"
PRICE = 3500
TESTS = 4
# What the four tests ask for: a session each, and one update, completion and cancellation.
MADE = {"create": 4, "update": 1, "complete": 1, "cancel": 1}
# Each of these is sent again once. All but the cancellation are then sent with another body.
REPLAYED, REFUSED = 4, 3
SUITE_S = 120
# The suite as it is started by hand, but its own servers listen on loopback alone.
RUNNER = """
import runpy, sys, uvicorn
made = uvicorn.Config
uvicorn.Config = lambda *given, **named: made(*given, **{**named, "host": "127.0.0.1"})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ucp(suite, python, run, Gateway):
    complaints = []
    # The suite can fail: without a gateway each repetition is executed.
    straight, why = ran(suite, python, run / "straight.log", f"http://127.0.0.1:{Merchant().port}", None)
    if straight != 0:
        complaints.append(f"ucp: straight at a merchant that remembers no key, {straight} tests pass; {why}")
    merchant = Merchant(mark=uuid.uuid4().hex)
    with Gateway("ucp", merchant.port) as gateway:
        line = Line(gateway, merchant.mark)
        passed, why = ran(suite, python, run / "suite.log", f"http://{HOST}", line.port)
        if passed != TESTS:
            complaints.append(f"ucp: {passed} of {TESTS} tests pass; {why}")
        for what, found, wanted in compared(gateway, line, merchant):
            if found != wanted:
                complaints.append(f"ucp: {what} is {found}, not {wanted}")
    complaints += [f"ucp: {why}" for why in merchant.complaints + line.complaints]
    made = ", ".join(f"{count} {what}" for what, count in sorted(merchant.made.items()))
    print(f"ucp: {passed} of {TESTS} tests of the suite pass, without the gateway {straight}")
    print(f"ucp: {line.writes} writes and {line.reads} reads of the suite, of which the merchant got {made}, and {merchant.reads} reads")
    return complaints


def compared(gateway, line, merchant):
    """What was counted, how much it is, and how much it should be."""
    writes, reads = sum(merchant.made.values()), merchant.reads
    yield "what was made", dict(merchant.made), MADE
    yield "the count of replays", line.replayed, REPLAYED
    yield "the count of refused other requests", line.refused, REFUSED
    yield "the count of writes through the line", line.writes, writes + REPLAYED + REFUSED
    yield "the count of reads through the line", line.reads, reads
    sent, forwarded = gateway.counted("oncegate_attempts_total"), gateway.counted("oncegate_passed_on_total", kind="read")
    yield "the count of writes that the gateway sent", sent, writes
    yield "the count of reads that the gateway forwarded", forwarded, reads
    yield "whether there were reads", reads >= TESTS, True


def ran(suite, python, log, url, line):
    """How many of the suite's tests pass, and why the others fail."""
    ports = [f"--mock_{name}_port={free_port()}" for name in ("agent", "webhook")]
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    own |= {"NO_PROXY": "localhost,127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1"}
    if line:
        own["HTTP_PROXY"] = f"http://127.0.0.1:{line}"
    command = [python, "-c", RUNNER, "idempotency_test.py", f"--server_url={url}", *ports]
    done = subprocess.run(command, cwd=suite, env=own, capture_output=True, text=True, timeout=SUITE_S)
    log.write_text(done.stdout + done.stderr)
    why = "; ".join([f"see {log}", *re.findall(r"^(?:FAIL|ERROR|[\w.]+(?:Error|Exception)): .*", done.stderr, re.MULTILINE)])
    ended = re.search(r"^Ran (\d+) tests? in .*\n\n(OK|FAILED)(?: \((.*)\))?$", done.stderr, re.MULTILINE)
    if not ended or int(ended[1]) != TESTS or (ended[2] == "OK") != (done.returncode == 0):
        return f"an unknown number (exit status {done.returncode})", why
    others = sum(int(count) for count in re.findall(r"=(\d+)", ended[3] or ""))
    return TESTS - others, why


class Line:
    """An HTTP proxy of the suite's that sends everything to the gateway, and adds the token and the mark."""

    def __init__(self, gateway, mark):
        self.reads = self.writes = self.replayed = self.refused = 0
        self.complaints, line = [], self

        class Handler(Quiet):
            def any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                at = f"http://{HOST}/"
                if not self.path.startswith(at) or self.headers["host"] != HOST:
                    line.complaints.append(f"the suite leaves the gateway: {self.command} {self.path}")
                    return self.tell(502, [], b"")
                left_out = ("host", "content-length", "connection", "proxy-connection")
                sent = [(name, value) for name, value in self.headers.items() if name.lower() not in left_out]
                asked = body if self.command != "GET" else None
                status, headers, text = gateway.ask(self.command, self.path[len(at) - 1 :], [*sent, (MARK, mark)], asked)
                line.note(self.command, status, headers, text)
                self.tell(status, [(n, v) for n, v in headers.items() if n not in ("content-length", "connection")], text)

            do_GET = do_POST = do_PUT = any

        self.port = serving(Handler)

    def note(self, method, status, headers, text):
        if method == "GET":
            self.reads += 1
            return
        self.writes += 1
        if headers.get("idempotent-replayed") == "true":
            self.replayed += 1
        if status == 409:
            self.refused += 1
            if set(json.loads(text)) != {"code", "content"} or json.loads(text)["code"] != "idempotency_conflict":
                self.complaints.append(f"another request under a key is answered {text!r}")


class Merchant:
    """A shop that knows no key: each request that it gets is another session or order. `mark`: it serves only what has it."""

    def __init__(self, mark=None):
        self.mark, self.made, self.reads, self.complaints = mark, Counter(), 0, []
        sessions, merchant = {}, self

        class Handler(Quiet):
            def any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = json.loads(body) if body else {}
                if mark and self.headers["host"] != HOST:
                    merchant.complaints.append(f"{self.command} {self.path} comes for the host {self.headers['host']}")
                if mark and self.headers[MARK] != mark:
                    merchant.complaints.append(f"{self.command} {self.path} comes past the gateway")
                    return self.answer(403, {})
                if self.command == "GET":
                    merchant.reads += 1
                    if self.path == "/.well-known/ucp":
                        return self.answer(200, discovery(f"http://{self.headers['host']}/"))
                    return self.answer(200, sessions[self.path.split("/")[2]])
                if mark and not self.headers["idempotency-key"]:
                    merchant.complaints.append(f"the platform's key is gone: {self.command} {self.path}")
                parts = self.path.strip("/").split("/")
                act = {"POST": "create", "PUT": "update"}[self.command] if len(parts) < 3 else parts[2]
                merchant.made[act] += 1
                at = parts[1] if len(parts) > 1 else uuid.uuid4().hex
                sessions[at] = session(at, act, asked, sessions.get(at))
                self.answer(201 if act == "create" else 200, sessions[at])

            do_GET = do_POST = do_PUT = any

            def answer(self, status, value):
                self.tell(status, [("Content-Type", "application/json")], json.dumps(value).encode())

        self.port = serving(Handler)


def discovery(url):
    rest = {"schema": "https://shop.example/openapi.json", "endpoint": url}
    service = {"version": VERSION, "spec": "https://shop.example/spec", "rest": rest}
    return {"ucp": {"version": VERSION, "services": {"dev.ucp.shopping": service}, "capabilities": []}}


def session(at, act, asked, before):
    """A session after an act. It has a new `seen`, so a second execution is told otherwise."""
    known = dict(before or {"id": at, "status": "incomplete", "links": [], "ucp": {"version": VERSION, "capabilities": []}})
    if act in ("create", "update"):
        known |= {name: asked[name] for name in ("currency", "payment", "fulfillment") if name in asked}
        known["payment"] = {"handlers": [], "instruments": [], **known["payment"]}
        known["line_items"] = [line_item(number, item) for number, item in enumerate(asked["line_items"])]
        for number, method in enumerate(known.get("fulfillment", {}).get("methods", [])):
            method |= {"id": f"method_{number}", "line_item_ids": []}
            method["groups"] = [{"id": f"group_{n}", "line_item_ids": [], **group} for n, group in enumerate(method["groups"])]
    if act == "complete":
        known |= {"status": "completed", "order": {"id": uuid.uuid4().hex, "permalink_url": "https://shop.example/orders"}}
    if act == "cancel":
        known["status"] = "canceled"
    total = sum(item["totals"][0]["amount"] for item in known["line_items"])
    return known | {"totals": [{"type": "total", "amount": total}], "seen": uuid.uuid4().hex}


def line_item(number, asked):
    totals = [{"type": "total", "amount": PRICE * asked["quantity"]}]
    return {"id": f"line_{number}", **asked, "item": {**asked["item"], "price": PRICE}, "totals": totals}


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def tell(self, status, headers, body):
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server.server_address[1]
