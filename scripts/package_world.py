"""What tests of packages speak with: a client of MCP, README's first order, a shop that takes its time, and processes."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from package_files import ROOT

ANSWER_S = 60
TOKEN = "try-me"
# Of a gateway that others can reach, which the one of README's first lines is not.
TOKENS = """
[[auth.tokens]]
name = "tests"
tenant = "tests"
sha256 = "4b3c1bf421d96f1b49942450483ffb00bad52cbc5be4cc39b9552bb8fa56395c"
scopes = ["call", "read"]
"""


class Client:
    """A client that starts a server by a command. `between`: by a process of its own, which can be killed."""

    def __init__(self, command, env, folder, between=False):
        if between:
            command = [sys.executable, __file__, *command]
        self.other, self.answers = [], {}
        self.arrived = threading.Condition()
        self.log = open(folder / "client.log", "a")
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )
        if between:
            said = self.process.stdout.readline()
            assert said == "begun\n", said
            return
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.arrived:
                try:
                    message = json.loads(line)
                    assert message["jsonrpc"] == "2.0"
                    if "method" not in message:
                        self.answers[message["id"]] = message
                except (ValueError, KeyError, TypeError, AssertionError):
                    self.other.append(line)
                self.arrived.notify_all()

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.process.stdin.flush()

    def ask(self, number, method, params):
        self.send({"id": number, "method": method, "params": params})
        with self.arrived:
            assert self.arrived.wait_for(lambda: number in self.answers, ANSWER_S), f"no answer to {method}"
        return self.answers[number]["result"]

    def begin(self):
        """The tools that the server has."""
        about = {"name": "packages", "version": "1"}
        self.ask(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})
        self.send({"method": "notifications/initialized"})
        return self.ask(2, "tools/list", {})["tools"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(ANSWER_S)
        assert not self.other, f"not MCP on standard output: {self.other}"


class Shop:
    """Takes orders as the demo's shop does, and takes two seconds for each."""

    def __init__(self):
        self.begun, shop = 0, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                shop.begun += 1
                order = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(2)
                made = {"order_id": f"ord_{shop.begun}", "status": "created", "created_at": "2026-11-21T08:04:19.062Z"}
                text = json.dumps(order | made).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A gateway that is gone takes no answer.
        self.server.handle_error = lambda *_: None
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def demo_config(listen, store, shop):
    """The demo's, which README's first lines are for, with these addresses."""
    text = (ROOT / "config" / "demo.toml").read_text()
    text = text.replace("sqlite:target/demo/oncegate.db", f"sqlite:{store}").replace("127.0.0.1:9090", shop.address)
    return text.replace("127.0.0.1:8080", listen)


def readmes_first_order():
    """The command, and the answer that README shows below it."""
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^```sh\n(curl [^`]*)```\s+```json\n(\{[^`]*\})\n```", readme, re.M)
    return found[1], json.loads(found[2])


def order(port, number="B-1", token=None):
    """Runs README's first curl, and returns its answer, which has the members that README shows."""
    command, shown = readmes_first_order()
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("B-1", number)
    if token:
        command = command.replace("curl -s", f"curl -s -H 'authorization: Bearer {token}'")
    env = os.environ | {"no_proxy": "*", "NO_PROXY": "*"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=ANSWER_S)
    assert done.returncode == 0 and done.stdout, done
    answer = json.loads(done.stdout)
    if answer.get("status") == "ok":
        result, wanted = answer["result"], shown["result"]
        assert shown.keys() <= answer.keys() and wanted.keys() <= result.keys(), f"README shows {shown}: {answer}"
        assert result["business_id"] == number and result["sku"] == wanted["sku"], answer
    return answer


def until(what, seconds):
    deadline = time.monotonic() + seconds
    while not (done := what()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(done)


def stat_of(pid):
    """State, parent and group of a process; none if there is none."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return None


def ended(pid):
    stat = stat_of(pid)
    return stat is None or stat[0] == "Z"


def group_of(pid):
    return int(stat_of(pid)[2])


def pids_below(top):
    """This process and all that it started, directly or not."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if stat := stat_of(pid):
            parents.setdefault(int(stat[1]), []).append(int(pid))
    found = [top]
    for pid in found:
        found += parents.get(pid, [])
    return found


def as_process(command):
    """A client that waits until it is killed."""
    client = Client(command, os.environ, Path.cwd())
    client.begin()
    print("begun", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    as_process(sys.argv[1:])
