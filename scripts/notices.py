"""The signatures of the webhook's events verify with the libraries `standardwebhooks` of PyPI and npm, and with no other secret.

A real gateway asks for approval; what its webhook is told is verified by both libraries, each as its documentation says.
`scripts/kits notices` runs it: NODE and the folder of npm's packages are its arguments.
"""

import base64
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from processes import free_port, start, stop
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

PATIENCE_S = 30
CARD = "4242-4242"
OLD, NEW, OTHER = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[store]
url = "sqlite:oncegate.db"
[approvals]
console = "http://127.0.0.1:{port}"
[webhook]
url = "http://127.0.0.1:{ears}/"
secrets = ["{old}", "{new}"]
[tools.refund]
url = "http://127.0.0.1:9/"
[tools.refund.approval]
when = ["always"]
show = ["/amount"]
"""
TOKEN = """
[[auth.tokens]]
name = "{name}"
tenant = "shop"
sha256 = "{sha256}"
scopes = ["{scope}"]
"""
# Its arguments: the secrets with whether each has to verify. On standard input: what was heard.
IN_NODE = """
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";
const heard = JSON.parse(readFileSync(0, "utf8"));
for (const { headers, body } of heard)
  for (const [secret, expected] of JSON.parse(process.argv[2])) {
    let verified = true;
    try { new Webhook(secret).verify(body, headers); } catch { verified = false; }
    if (verified !== expected) throw new Error(`${secret}: ${verified}`);
  }
"""


def main(node, modules):
    heard = queue.Queue()

    class Ears(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            headers = {name: self.headers[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
            heard.put({"headers": headers, "body": body})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    ears, port = HTTPServer(("127.0.0.1", 0), Ears), free_port()
    threading.Thread(target=ears.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG.format(port=port, ears=ears.server_port, old=OLD, new=NEW)
        for name, scope in ("agent", "call"), ("ann", "approve"):
            config += TOKEN.format(name=name, scope=scope, sha256=hashlib.sha256(name.encode()).hexdigest())
        (Path(folder) / "oncegate.toml").write_text(config)
        command = f"cd '{folder}' && exec '{os.environ['ONCEGATE']}' serve --config oncegate.toml"
        gateway = start(["sh", "-c", command], port, Path(folder) / "log")
        try:
            asked = ask(port, "agent", "/v1/tools/refund/calls", {"args": {"amount": 5, "card": CARD}})
            told = [heard.get(timeout=PATIENCE_S)]
            ask(port, "ann", f"/v1/calls/{asked['call_id']}/decline", {"reason": "no"})
            told.append(heard.get(timeout=PATIENCE_S))
        finally:
            stop([gateway])
    events = [json.loads(one["body"])["event"] for one in told]
    assert events == ["approval.asked", "approval.ended"], events
    assert not any(CARD in one["body"] for one in told), told
    verdicts = [(OLD, True), (NEW, True), (OTHER, False)]
    for one in told:
        for secret, expected in verdicts:
            assert verifies(secret, one) == expected, (secret, one)
        assert not verifies(OLD, {**one, "body": one["body"].replace("5", "6", 1)}), one
    # Where its packages are found.
    program = Path(modules).parent / "notices.mjs"
    program.write_text(IN_NODE)
    command = [node, program, json.dumps(verdicts)]
    subprocess.run(command, input=json.dumps(told), text=True, check=True)
    print(f"{len(told)} notices verify with both secrets and no other, in Python and in Node.js")


def ask(port, token, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    request.add_header("authorization", f"Bearer {token}")
    request.add_header("prefer", "wait=0")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as problem:
        return json.load(problem)


def verifies(secret, one):
    try:
        Webhook(secret).verify(one["body"], one["headers"])
    except WebhookVerificationError:
        return False
    return True


main(*sys.argv[1:])
