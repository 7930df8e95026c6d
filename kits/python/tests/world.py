"""A tool that misbehaves, a real gateway before it, and a line before the gateway that loses answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

from oncegate_client import AsyncOnce, Once, OnceError, Result

ROOT = Path(__file__).resolve().parents[3]
ONCEGATE = os.environ.get("ONCEGATE", str(ROOT / "target" / "debug" / "oncegate"))
START_S = 30

CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
shutdown_grace = "1s"
[store]
url = "sqlite:{folder}/oncegate.db"
[tools.order]
url = "{tool}/order"
timeout = "3s"
deadline = "4s"
retry = {{ attempts = 1 }}
[tools.create_order]
url = "{tool}/order"
key = {{ fields = ["/business_id"] }}
input_schema = {{ type = "object", required = ["business_id"], properties = {{ business_id = {{ type = "string" }} }} }}
[tools.short]
url = "{tool}/short"
timeout = "1s"
deadline = "1s"
retry = {{ attempts = 1 }}
dedup_window = "1s"
[tools.sure]
url = "{tool}/sure"
timeout = "2s"
deadline = "3s"
dedup = "key"
unknown = "retry"
retry = {{ attempts = 1 }}
recheck = {{ base = "1s", max = "1s" }}
[tools.scarce]
url = "{tool}/scarce"
budget = {{ per = "session", max = 1, window = "3s" }}
[tools.careful]
url = "{tool}/careful"
key = {{ source = "required" }}
input_schema = {{ type = "object", required = ["order"], properties = {{ order = {{ type = "string" }} }} }}
"""


class Server:
    """An HTTP server on a free port, whose requests `answer` answers."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                answer = server.answer(self.path, dict(self.headers.items()), body)
                self.close_connection = True
                if answer is None:
                    return
                status, headers, text = answer
                self.send_response(status)
                for name, value in ({"content-length": str(len(text)), "connection": "close"} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = handle_one

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


class Tool(Server):
    """Takes effect, and then does what `does` says: ok, drop (no answer), slow, reject. At /sure it knows its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.effects: list[Any] = []
        self.does: list[str] = []
        self.keys: set[str] = set()
        self.guard = threading.Lock()

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        key = headers["idempotency-key"]
        with self.guard:
            does = self.does.pop(0) if self.does else "ok"
            if does != "reject" and not (path == "/sure" and key in self.keys):
                self.effects.append(json.loads(body))
            self.keys.add(key)
        if does == "slow":
            time.sleep(2)
        if does == "drop":
            return None
        if does == "reject":
            return 422, {"content-type": "application/json"}, b'{"reason": "no such article"}'
        return 200, {"content-type": "application/json"}, b'{"made": true, "large": 12345678901234567890}'


class Line(Server):
    """Before a gateway. `faults`, one a request: drop or late (no answer), cut (no request), nginx (its own answer)."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.behind = port
        self.faults: list[str] = []
        self.bodies: list[bytes] = []

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        self.bodies.append(body)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "cut":
            return None
        try:
            connection = HTTPConnection("127.0.0.1", self.behind, timeout=60)
            connection.request("POST" if body else "GET", path, body, headers)
            got = connection.getresponse()
            told = got.status, {"content-type": got.headers["content-type"] or ""}, got.read()
        except OSError:
            return None
        if fault == "drop":
            return None
        if fault == "late":
            time.sleep(2.5)
            return None
        if fault == "nginx":
            return 502, {"content-type": "text/html"}, b"<html><h1>502 Bad Gateway</h1><center>nginx</center></html>"
        if fault == "unauthenticated":
            problem = {
                "type": "/problems/unauthenticated",
                "effect": "none",
                "key_action": "stop",
                "detail": "Nothing was run.",
            }
            return 401, {"content-type": "application/problem+json"}, json.dumps(problem).encode()
        return told


class Gateway:
    """A real gateway over SQLite."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.config = folder / "oncegate.toml"
        self.config.write_text(CONFIG.format(port=self.port, folder=folder, tool=tool.url))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([ONCEGATE, "serve", "--config", self.config], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/readyz").close()
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the gateway does not start")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def restart(self, tool: Tool) -> None:
        """Killed while a call runs, and started again over the same store."""
        while not tool.effects:
            time.sleep(0.02)
        self.stop(signal.SIGKILL)
        self.start()

    def ask(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode() if body else None)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class World(NamedTuple):
    tool: Tool
    gateway: Gateway
    line: Line


class Both:
    """Once, or AsyncOnce behind the same names."""

    def __init__(self, is_async: bool, url: str, settings: dict[str, Any]) -> None:
        self.runner = asyncio.Runner() if is_async else None
        self.once: Any = AsyncOnce(url, **settings) if is_async else Once(url, **settings)

    def run(self, answer: Any) -> Any:
        return self.runner.run(answer) if self.runner else answer

    def call(self, *args: Any, **options: Any) -> Result:
        result = self.run(self.once.call(*args, **options))
        assert isinstance(result, Result)
        return result

    def fails(self, *args: Any, **options: Any) -> OnceError:
        try:
            result = self.call(*args, **options)
        except OnceError as error:
            return error
        raise AssertionError(f"there is a result: {result}")

    def for_model(self, *args: Any, **options: Any) -> str:
        return str(self.run(self.once.for_model(*args, **options)))

    def close(self) -> None:
        self.run(self.once.close())
        if self.runner:
            self.runner.close()
