"""What scripts/judge drives: real gateways, lines that can be cut, and clocks that can be set."""

import atexit
import hashlib
import itertools
import json
import os
import signal
import socket
import threading
from pathlib import Path

from faults_world import Machine, Program, wait_for
from judge_client import Client

BINARY = Path(os.environ.get("JUDGE_BINARY") or Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "debug" / "oncegate")
# Of a call: one attempt, all of them, and how much longer its key is held by a gateway that is gone.
TIMEOUT_S, DEADLINE_S, MARGIN_S = 0.4, 0.8, 1
LEASE_S = DEADLINE_S + MARGIN_S
# A machine may be busy with other work.
READY_S = 60

# Below those that the system gives out: between the end of a gateway and its next start no other program must get its port.
# Many more than there are programs: one that was used lately is not free for a minute.
FIRST_PORT = 10_000 + os.getpid() % 200 * 100
PORTS = itertools.cycle(range(FIRST_PORT, FIRST_PORT + 100))


def own_port():
    while True:
        with socket.socket() as listener:
            try:
                port = next(PORTS)
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def brief(seconds):
    return {"secs": int(seconds), "nanos": int(seconds % 1 * 1e9)}


# Waits of the gateway that no operator sets; a build with crash points reads them.
PACE = {
    "lease_margin": brief(MARGIN_S), "recover_every": brief(0.3), "look_every": brief(0.15), "count_every": brief(0.1),
    "poll": [brief(0.05), brief(0.2)], "look_for_claim": brief(0.5), "work_margin": brief(2), "saga_looks_again": brief(0.5),
    "redis_look_every": brief(0.25), "redis_others_look": brief(1), "key_schemes_max_age": brief(1), "redis_watch_gone": brief(180),
    "redis_format_settles": brief(1),
    "ask_store_every": brief(0), "check_listener_every": brief(15), "listen_at_most": brief(3600), "most_targets": 50,
}
TOOLS = {
    "hold": 'key = { source = "required" }',
    "order": 'key = { fields = ["/business"] }\ninput_schema = { type = "object", required = ["business"] }',
    "probe": 'key = { source = "required" }\nunknown = "probe"\nprobe = { url = "TOOL/probe/{key}" }',
    "retry": 'key = { source = "required" }\nunknown = "retry"\ndedup = "key"',
    "lock": 'key = { source = "required" }\nsession = "exclusive"\nsession_wait = "300ms"',
    "plain": 'input_schema = { type = "object", required = ["intent"], properties = { note = { type = "string" } } }',
    "veiled": 'redact = { args = ["/card"] }\ninput_schema = { type = "object", required = ["intent"] }',
    "strict": 'key = { source = "required" }\noutcomes = { others = "strict" }',
    "book": 'key = { source = "required" }\ncompensation = { tool = "undo", args = { intent = "/args/undo", undoes = "/args/intent", saga = "/args/saga" } }',
    "undo": 'compensation = "none"',
    "remote": 'upstream = "far"\nkey = { source = "required" }',
    "distant": 'upstream = "doubtful"\nkey = { source = "required" }',
}
# Tools of an MCP server of the older era, with sessions. Those of the second have refusals that prove nothing.
REMOTE = ("remote", "distant")
# Each has keys, connections to the tool and calls of its own.
TENANTS = ("one", "two")
# What a reload changes, and a call must be the same call under each.
VARIANTS = ("", 'description = "another"', 'redact = { result = ["/nothing", "/content"] }', "retry = { attempts = 1 }", 'dedup_window = "25h"', 'key = { fields = ["/intent"] }')
# Tools whose arguments make the key. Another rule for keys is for them alone.
KEYLESS = ("plain", "veiled")


def bearer(tenant):
    return {"authorization": f"Bearer a-token-of-{tenant}"}


def tokens():
    digest = lambda tenant: hashlib.sha256(f"a-token-of-{tenant}".encode()).hexdigest()
    one = '[[auth.tokens]]\nname = "{0}"\ntenant = "{0}"\nsha256 = "{1}"\nscopes = ["call", "read", "admin"]\n'
    return "".join(one.format(tenant, digest(tenant)) for tenant in TENANTS)


def configuration(port, tool_port, store, variant=""):
    tool = f"http://127.0.0.1:{tool_port}"
    text = f'[server]\nlisten = "127.0.0.1:{port}"\nshutdown_grace = "1s"\njoin_wait = "1s"\n[log]\nlevel = "warn"\n{store}\n'
    text += tokens() + '[sagas]\nretry = { attempts = 3, base = "50ms", max = "200ms" }\n'
    common = f'timeout = "{TIMEOUT_S * 1000:.0f}ms"\ndeadline = "{DEADLINE_S * 1000:.0f}ms"\n'
    # A breaker that opens would leave nothing to judge.
    common += 'breaker = { failures = 1000000, cooldown = "1s" }\n'
    for name, rest in TOOLS.items():
        # Not twice the same setting; another rule for keys is for KEYLESS alone.
        is_for_it = variant.partition(" ")[0] not in rest.split() and (name in KEYLESS or not variant.startswith("key"))
        of_variant = variant if is_for_it else ""
        if "retry" not in variant:
            of_variant += '\nretry = { attempts = 2, base = "20ms", max = "50ms" }'
        if "dedup_window" not in variant:
            of_variant += '\ndedup_window = "24h"'
        recheck = 'recheck = { base = "200ms", max = "500ms" }\n'
        place = "" if name in REMOTE else f'url = "{tool}/{name}"\n'
        text += f'[tools.{name}]\n{place}{common}{recheck}{rest.replace("TOOL", tool)}\n{of_variant.strip()}\n'
    text += f'[proxies.api]\nupstream = "{tool}/api"\n{common}[proxies.zip]\nupstream = "{tool}/zip"\nunkeyed = "derive"\nderived_window = "24h"\n{common}'
    text += f'[upstreams.far]\nurl = "{tool}/mcp"\nera = "legacy"\n'
    text += f'[upstreams.doubtful]\nurl = "{tool}/mcp"\nera = "legacy"\noutcomes = "strict"\n'
    return text


class Line:
    """A line to a port, or to a tool of this process, which can be cut, or hold what is sent."""

    def __init__(self, to):
        self.to, self.is_cut, self.is_held = to, False, threading.Event()
        self.is_held.set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port, self.open, self.lock = self.listener.getsockname()[1], set(), threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            if not isinstance(self.to, int):
                with self.lock:
                    self.open.add(near)
                threading.Thread(target=self.serve, args=(near,), daemon=True).start()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=5)
                for one in (near, far):
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.open |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def serve(self, near):
        self.to.serve(near, self.is_held)
        with self.lock:
            self.open.discard(near)

    def pump(self, source, target):
        try:
            while data := source.recv(65536):
                self.is_held.wait(10)
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self.lock:
            self.open -= {source, target}
        source.close()

    def cut(self):
        self.is_cut = True
        with self.lock:
            lines = list(self.open)
        for line in lines:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def heal(self):
        self.is_cut = False
        self.is_held.set()

    def stop(self):
        self.cut()
        end_listener(self.listener)


def end_listener(listener):
    """Who waits at it is woken, too."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    listener.close()


# Whatever happens, none of them is left behind.
STARTED = []


@atexit.register
def end_all():
    while STARTED:
        program = STARTED.pop()
        if program.process and program.is_up():
            program.process.kill()


class Gateway(Program):
    # What stands between the parts and tells lies, if this is to be found.
    lie = None

    def __init__(self, folder, name, tool, store, front=None, shim=True):
        self.folder, self.store_text, self.variant = folder, store, ""
        self.tool_line = Line(tool)
        self.was_set = False
        self.own_port, self.config = own_port(), folder / f"{name}.toml"
        self.machine = Machine(folder, f"{name}-machine") if shim else None
        self.write("")
        environment = {**(self.machine.environment() if shim else {}), "TEST_PACE": json.dumps(PACE)}
        super().__init__(folder, name, [BINARY, "serve", "--config", self.config], self.own_port, environment)
        # What agents talk to: the gateway itself, or a liar before it.
        self.front = front(self.own_port) if front else None
        if self.front:
            self.port = self.front.port
        self.client = Client(self.port)
        self.ask = self.client.ask
        self.client.default = bearer(TENANTS[0])

    def write(self, variant):
        self.variant = variant
        self.config.write_text(configuration(self.own_port, self.tool_line.port, self.store_text, variant))

    def start(self, points=""):
        self.points = self.environment["FAILPOINTS"] = points
        if self.lie:
            self.lie.before_start(self)
        if self not in STARTED:
            STARTED.append(self)
        self.client.forget()
        return super().start()

    def is_ready(self):
        return self.is_up() and self.ask("GET", "/readyz")[0] == 200

    def until_ready(self):
        wait_for(f"{self.name} is ready", self.is_ready, READY_S, lambda: (self.ask("GET", "/readyz"), self.tail()))

    def restart(self, which=signal.SIGKILL, points=""):
        self.client.forget()
        self.signal(which)
        self.process.wait()
        self.start(points)

    def heal(self):
        self.tool_line.heal()
        if self.machine:
            self.machine.heal()

    def stop(self):
        super().stop()
        self.tool_line.stop()
        if self.front:
            self.front.stop()
