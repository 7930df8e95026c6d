"""What tests of packages speak with: a client of MCP, a tool that takes its time, and the processes of this machine."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ANSWER_S = 60
TOKEN = "try-me"


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


class Slow:
    """A tool whose effect takes some seconds."""

    def __init__(self, seconds, host="127.0.0.1"):
        self.begun, tool = 0, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                tool.begun += 1
                self.rfile.read(int(self.headers["content-length"]))
                time.sleep(seconds)
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "11")
                self.end_headers()
                self.wfile.write(b'{"done":42}')

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        # A gateway that is gone takes no answer.
        self.server.handle_error = lambda *_: None
        self.url = f"http://{host}:{self.server.server_address[1]}/act"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def gateway_config(listen, store, url):
    return f"""[server]
listen = "{listen}"
shutdown_grace = "10s"
[store]
url = "sqlite:{store}"
[[auth.tokens]]
name = "tests"
tenant = "tests"
sha256 = "4b3c1bf421d96f1b49942450483ffb00bad52cbc5be4cc39b9552bb8fa56395c"
scopes = ["call", "read"]
[tools.act]
url = "{url}"
key = {{ fields = ["/business_id"] }}
input_schema = {{ type = "object", required = ["business_id"], properties = {{ business_id = {{ type = "string" }} }} }}
"""


def post(port, body):
    """The status and the answer of a call of the tool."""
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/tools/act/calls"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
    except OSError as why:
        return 0, str(why)


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
