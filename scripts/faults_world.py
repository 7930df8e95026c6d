"""What the faults of scripts/faults happen to: a tool, gateways, a store and agents, and the judge of their books."""

import errno
import http.client
import json
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from faults_agents import ANSWER_S, Agents, exchange, of_tool
from judge_history import History, now
from processes import free_port

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = TARGET / "debug" / "oncegate"
RUN = ROOT / "target" / "faults"
SHIM = RUN / "faults.so"

PATIENCE_S = 60
# The deadline of the tools; a lease is ten seconds longer.
DEADLINE_S = 2
LEASE_S = DEADLINE_S + 10


class Failed(Exception):
    """A promise was broken, or the fault did not happen."""


def wait_for(what, is_so, patience=PATIENCE_S, found=lambda: ""):
    until = time.monotonic() + patience
    while not (value := is_so()):
        if time.monotonic() > until:
            raise Failed(f"waited in vain: {what}; {found()}")
        time.sleep(0.05)
    return value


# --- the library that makes a machine fail -----------------------------------------------------------------

NUMBERS = (
    "wall_ns passed_ns write_errno write_one_in sync_errno sync_one_in read_errno read_one_in is_bounded room lies "
    "slow_us slow_one_in failed_writes failed_syncs failed_reads without_room lied_syncs slow_syncs syncs writes"
).split()


class Machine:
    """The page of numbers that faults.c shares with a process, and what would be lost with power."""

    def __init__(self, folder, name, keeps_undo=False):
        self.under, self.undo = folder / name, folder / f"{name}.undo"
        self.page_path = folder / f"{name}.page"
        self.under.mkdir()
        self.page_path.write_bytes(bytes(4096))
        with self.page_path.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), 4096)
        self.keeps_undo = keeps_undo
        if keeps_undo:
            self.undo.mkdir()

    def environment(self):
        undo = {"FAULTS_UNDO": str(self.undo)} if self.keeps_undo else {}
        return {"LD_PRELOAD": str(SHIM), "FAULTS_CONTROL": str(self.page_path), "FAULTS_UNDER": str(self.under), **undo}

    def set(self, **numbers):
        for name, value in numbers.items():
            at = NUMBERS.index(name) * 8
            self.page[at : at + 8] = struct.pack("=q", value)

    def get(self, name):
        at = NUMBERS.index(name) * 8
        return struct.unpack("=q", self.page[at : at + 8])[0]

    def heal(self):
        self.set(**{name: 0 for name in NUMBERS[: NUMBERS.index("failed_writes")]})

    def fail(self, what, one_in, program):
        """One of so many reads, writes or syncs fails (EIO), until the program ends or for five seconds."""
        ended = sum(program.ends.values())
        self.set(**{f"{what}_errno": errno.EIO, f"{what}_one_in": one_in})
        until = time.monotonic() + 5
        while sum(program.ends.values()) == ended and time.monotonic() < until:
            time.sleep(0.02)
        self.heal()

    def cut_power(self, kept=0.0, but=""):
        """Takes back what was written since each file's last sync, but for a random share, and but for files with this name.
        Its process must be gone.

        Says how many writes are lost.
        """
        lost = 0
        for path in sorted(self.under.rglob("*")):
            if path.name.endswith("-shm"):
                path.unlink()
            elif but and path.name.endswith(but):
                continue
            elif path.is_file() and (record := self.undo / str(path.stat().st_ino)).exists():
                lost += undo(path, record.read_bytes(), kept)
        shutil.rmtree(self.undo)
        self.undo.mkdir()
        return lost


def undo(path, records, kept):
    """The newest write first."""
    writes, at = [], 0
    while at < len(records):
        offset, length, size, old = struct.unpack_from("=4q", records, at)
        writes.append((offset, length, size, records[at + 32 : at + 32 + old]))
        at += 32 + old
    lost, all_newer_are = 0, True
    with path.open("r+b") as file:
        for offset, length, size, old in reversed(writes):
            if random.random() < kept:
                all_newer_are = False
                continue
            lost += 1
            file.seek(offset)
            file.write(old)
            now = file.seek(0, os.SEEK_END)
            if all_newer_are:
                file.truncate(size)
            elif min(offset + length, now) > max(size, offset):
                # What was never written reads as zeros, before later writes that were.
                begin = max(size, offset)
                file.seek(begin)
                file.write(bytes(min(offset + length, now) - begin))
    return lost


def build_shim():
    RUN.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("faults.c")
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", SHIM, source, "-ldl"]
    subprocess.run(command, check=True)


# --- processes ---------------------------------------------------------------------------------------------


class Program:
    """A process that can be killed, stopped and started again, and what it says."""

    def __init__(self, folder, name, command, port, environment=None, before=None):
        self.name, self.command, self.port = name, [str(word) for word in command], port
        self.environment, self.before = environment or {}, before
        self.log = folder / f"{name}.log"
        self.process, self.supervisor, self.is_kept = None, None, False
        self.ends, self.before_restart = Counter(), None

    def start(self):
        with self.log.open("a") as said:
            self.process = subprocess.Popen(
                self.command, stdout=said, stderr=said, env={**os.environ, **self.environment}, preexec_fn=self.before
            )
        return self

    @property
    def pid(self):
        return self.process.pid

    def is_up(self):
        return self.process.poll() is None

    def signal(self, which):
        self.process.send_signal(which)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.is_kept = False
        if self.supervisor:
            self.supervisor.join()
        if self.process and self.is_up():
            self.process.send_signal(signal.SIGCONT)
            self.kill()

    def keep_up(self, before_restart=None, pause_s=0.1):
        """Starts it again whenever it ends, as systemd would; counts how it ended."""
        self.is_kept, self.before_restart = True, before_restart

        def keep():
            while self.is_kept:
                if not self.is_up():
                    self.ends[self.process.returncode] += 1
                    time.sleep(pause_s)
                    if self.before_restart:
                        self.before_restart()
                    if self.is_kept:
                        self.start()
                time.sleep(0.02)

        self.supervisor = threading.Thread(target=keep, daemon=True)
        self.supervisor.start()

    def tail(self):
        return "".join(self.log.read_text(errors="replace").splitlines(True)[-6:])


class Gateway(Program):
    def __init__(self, world, name, store, machine=None, more="", before=None):
        port, config = free_port(), world.folder / f"{name}.toml"
        config.write_text(gateway_config(port, world.tool.port, store, more))
        environment = machine.environment() if machine else {}
        super().__init__(world.folder, name, [BINARY, "serve", "--config", config], port, environment, before)

    def is_ready(self):
        return self.is_up() and self.ask("GET", "/readyz", timeout=2)[0] == 200

    def until_ready(self, patience=PATIENCE_S):
        wait_for(f"{self.name} is ready", self.is_ready, patience, lambda: (self.ask("GET", "/readyz"), self.tail()))
        return self

    def ask(self, method, path, body=None, headers=None, timeout=ANSWER_S):
        """Status and JSON (or text); status 0 if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return exchange(connection, method, path, body, headers)
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()


def gateway_config(port, tool_port, store, more):
    config = f'[server]\nlisten = "127.0.0.1:{port}"\nshutdown_grace = "3s"\njoin_wait = "2s"\n{store}\n'
    tool = f"http://127.0.0.1:{tool_port}"
    settles = {
        "hold": 'unknown = "hold"',
        "probe": f'unknown = "probe"\nprobe = {{ url = "{tool}/probe/{{key}}" }}',
        "retry": 'unknown = "retry"\ndedup = "key"',
    }
    for name, how in settles.items():
        config += (
            f'[tools.{name}]\nurl = "{tool}/{name}"\ntimeout = "{DEADLINE_S}s"\ndeadline = "{DEADLINE_S}s"\n'
            f'retry = {{ attempts = 1 }}\nrecheck = {{ base = "300ms", max = "1s" }}\n{how}\n'
        )
    return config + more


# --- the world, and its judge ------------------------------------------------------------------------------


class World:
    def __init__(self, name):
        self.name, self.folder = name, RUN / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.programs, self.gateways = [], []
        self.phase, self.hits, self.times, self.notes = "before", Counter(), 0, []
        self.answer_s = ANSWER_S
        # What may be said of a call that has succeeded.
        self.refusals = {"store-unavailable", "rate-limited"}
        # So many bytes are added to the arguments of every fifth call.
        self.padding = 0
        # Whether the clock has passed the time after which no call is checked any more.
        self.gives_up = False
        # Whether what was acknowledged must be lost: nothing can keep it.
        self.is_loss_expected = False
        # Losses that an operator had to accept.
        self.accepted = 0
        # What agents asked and were told, for the judge that is not ours: crates/judge.
        self.history, self.fault_at = History(), 0
        port = free_port()
        tool = [sys.executable, Path(__file__).with_name("faults_tool.py"), port, self.folder / "books"]
        self.tool = self.add(Program(self.folder, "tool", tool, port).start())
        self.agents = Agents(self)

    def key(self, n):
        return f"{self.name}-{n}"

    def add(self, program):
        self.programs.append(program)
        return program

    def gateway(self, *arguments, name=None, **more):
        """One more gateway, which is started and waited for."""
        gateway = self.add(Gateway(self, name or f"gateway-{len(self.gateways) + 1}", *arguments, **more))
        gateway.start().until_ready()
        self.gateways.append(gateway)
        return gateway

    def sqlite(self, machine, **more):
        return self.gateway(f'[store]\nurl = "sqlite:{machine.under}/oncegate.db"', machine, **more)

    def begin(self, seconds=1.5):
        """Load, before anything goes wrong."""
        wait_for("the tool", lambda: can_connect(self.tool.port))
        self.agents.start()
        time.sleep(seconds)

    def accept_loss(self):
        """What an operator does who has looked."""
        with self.agents.lock:
            intents = set(self.agents.intents)
        for n in intents:
            self.history.point("set back", f"call/{n}", at=self.fault_at)
            self.history.point("forget", f"call/{n}")
        said = lambda: self.gateways[0].ask("POST", "/v1/store/accept-loss", {"reason": "a fault"}, timeout=30)
        wait_for("the loss is accepted", lambda: said()[0] == 200, found=said)
        self.until_ready()

    def lie_until_power_cut(self, machine, program, lies_s, but=""):
        """The disk says that it has synced and has not; then power is cut. Calls go on meanwhile."""
        self.is_loss_expected = True
        self.begin()
        self.meanwhile()
        machine.set(lies=1)
        time.sleep(lies_s)
        program.kill()
        self.hits["lied syncs"] = machine.get("lied_syncs")
        self.hits["writes lost"] = machine.cut_power(but=but)
        machine.heal()

    def accept_noticed_loss(self):
        """Checks that nothing is executed while a loss is not accepted, and accepts it."""
        self.hits["losses noticed"] += 1
        effects = self.effects()
        time.sleep(2)
        if self.effects() > effects:
            raise Failed("calls were executed while the loss was not accepted")
        self.accept_loss()
        self.accepted += 1

    def meanwhile(self):
        self.phase, self.fault_at = "meanwhile", now()

    def over(self):
        self.phase = "after"

    def until_ready(self):
        for gateway in self.gateways:
            gateway.until_ready()

    def rounds(self, each, pause_s=1, until_ready=None):
        """Goes through `each`. The loop's body is the fault; after it the gateways become ready, and agents go on for a while."""
        for one in each:
            self.meanwhile()
            yield one
            (until_ready or self.until_ready)()
            self.over()
            self.times += 1
            time.sleep(pause_s)

    def told(self):
        with self.agents.lock:
            return len(self.agents.acknowledged)

    def books(self):
        """The effects of each intent."""
        effects = defaultdict(list)
        self.times_of_effects = {}
        for line in (self.folder / "books").read_text().splitlines():
            effect = json.loads(line)
            self.times_of_effects[effect["effect"]] = effect.pop("arrived"), effect.pop("at")
            effects[effect["n"]].append(effect)
        return effects

    def effects(self):
        return sum(map(len, self.books().values()))

    def stop(self):
        for program in reversed(self.programs):
            program.stop()

    def ledger(self):
        """Each call of the ledger by its key."""
        status, text = self.gateways[0].ask("GET", "/v1/calls", headers={"accept": "application/x-ndjson"}, timeout=60)
        if status != 200:
            raise Failed(f"the ledger cannot be read: {status} {text}")
        if isinstance(text, dict):
            return {text["key"]: text}
        return {call["key"]: call for call in map(json.loads, text.splitlines())}

    def write_history(self, effects):
        for n, made in effects.items():
            for effect in made:
                arrived, at = self.times_of_effects[effect["effect"]]
                self.history.point("effect", f"call/{n}", None, str(effect["effect"]), at, arrived)
        with (self.folder / "history").open("w") as file:
            self.history.write(file)

    def judge(self):
        """Everything is well again. Says what the books show."""
        self.over()
        time.sleep(1)
        before = self.told()
        self.agents.stop()
        self.until_ready()
        unknown = self.agents.finish()
        running = lambda: [call for call in self.ledger().values() if call["state"] == "running"]
        wait_for("no call runs", lambda: not running(), LEASE_S + 30, running)
        effects, calls = self.books(), self.ledger()
        self.write_history(effects)
        wrong = list(self.agents.contradictions)
        doubled = sum(len(made) > 1 for made in effects.values())
        lost = {n for n in self.agents.acknowledged if n in unknown}
        for n, made in effects.items():
            call = calls.get(self.key(n))
            if len(made) > 1:
                wrong.append(f"intent {n} has {len(made)} effects: {made}")
            if call is None:
                wrong.append(f"intent {n} was executed and is not in the ledger")
            elif call["state"] not in ("succeeded", "unknown"):
                wrong.append(f"intent {n} was executed, and the ledger says {call['state']}: {call}")
            elif call["state"] == "unknown" and of_tool(n) != "hold" and not self.gives_up:
                wrong.append(f"intent {n} was executed, its tool can be asked, and the ledger says unknown")
            elif call["tool_key"] not in {effect["key"] for effect in made}:
                wrong.append(f"intent {n} was executed under another key than the ledger says")
        for n, result in self.agents.acknowledged.items():
            state = calls.get(self.key(n), {}).get("state")
            if state != "succeeded" or result not in effects[n]:
                lost.add(n)
                wrong.append(f"intent {n} was told {result}, which is lost: the ledger says {state}")
        for n in self.agents.intents:
            call = calls.get(self.key(n))
            if call and call["state"] == "succeeded" and not effects[n]:
                wrong.append(f"intent {n} counts as succeeded and was never executed")
        lost |= {n for n, made in effects.items() if n in self.agents.acknowledged and len(made) > 1}
        if not effects or not before or not self.agents.acknowledged:
            wrong.append("there was no load")
        return {
            "times": self.times,
            "hits": dict(self.hits),
            "calls": len(self.agents.intents),
            "effects": sum(map(len, effects.values())),
            "doubled": doubled,
            "lost": len(lost),
            "unknown": sum(call["state"] == "unknown" for call in calls.values()),
            "answers": dict(self.agents.answers["meanwhile"]),
            "accepted": self.accepted,
            "notes": self.notes,
            "wrong": wrong,
        }


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False
