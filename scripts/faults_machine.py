"""Clocks that are set and machines that sleep, processes that are stopped, and no memory or files left."""

import os
import re
import resource
import signal
import socket
import time
from collections import Counter
from pathlib import Path

from faults_redis import over_redis, store
from faults_world import LEASE_S, Failed, Machine, wait_for

S = 1_000_000_000
HOUR, DAY = 3600 * S, 86400 * S
# Longer than the lease of a call.
STOPPED_S = LEASE_S + 2


# --- clocks ------------------------------------------------------------------------------------------------


def clock_sqlite(world):
    """The clock of a gateway over SQLite is set forward and back, while it runs and before a start."""
    machine = Machine(world.folder, "disk")
    gateway = world.sqlite(machine)
    # After two days the window of a key is over: its repetition is refused, and does not run. Nor is it checked any more.
    world.refusals.add("key-expired")
    world.gives_up = True
    world.begin()
    for ahead in world.rounds((4 * S, HOUR, 2 * DAY, -HOUR, -12 * HOUR), pause_s=0):
        machine.set(wall_ns=ahead)
        world.hits["clocks set"] += 1
        time.sleep(2)
        gateway.kill()
        gateway.start().until_ready()
        time.sleep(2)
        machine.set(wall_ns=0)
        world.hits["clocks set"] += 1
        time.sleep(1)
        gateway.kill()
        gateway.start().until_ready()


def clock_gateway(world):
    """The clock of one of two gateways over Redis is set; the other one's is right."""
    machine = Machine(world.folder, "clock")
    redis = over_redis(world, gateways=1)
    wrong = world.gateway(store(f"redis://127.0.0.1:{redis.port}", world, 1), machine)
    world.begin()
    for ahead in world.rounds((HOUR, 2 * DAY, -HOUR, -2 * DAY)):
        machine.set(wall_ns=ahead)
        world.hits["clocks set"] += 1
        if wait_for("the gateway says that its clock is off", lambda: not wrong.is_ready(), 10):
            world.hits["times not ready"] += 1
        time.sleep(2)
        machine.set(wall_ns=0)


def clock_redis(world):
    """The clock of Redis is set forward and back; then the gateways are started again, as the documents say."""
    machine = Machine(world.folder, "clock")
    over_redis(world, machine)
    world.begin()
    for ahead in world.rounds((HOUR, 2 * DAY, -HOUR, -2 * DAY)):
        machine.set(wall_ns=ahead)
        world.hits["clocks set"] += 1
        wait_for("the gateways say that the clock is off", lambda: not any(gateway.is_ready() for gateway in world.gateways), 10)
        world.hits["times not ready"] += 1
        time.sleep(2)
        machine.set(wall_ns=0)


def suspended(world, sleeps):
    """One of two gateways over Redis stands still for longer than a lease; `sleeps`: as a machine does, whose monotonic clock
    does not count that."""
    machine = Machine(world.folder, "clock")
    redis = over_redis(world, gateways=1)
    still = world.gateway(store(f"redis://127.0.0.1:{redis.port}", world, 1), machine)
    world.answer_s = 3
    world.begin()
    for _ in world.rounds(range(3)):
        still.signal(signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(STOPPED_S)
        if sleeps:
            passed = time.monotonic() - began
            machine.set(passed_ns=machine.get("passed_ns") - int(passed * S))
        still.signal(signal.SIGCONT)
        world.hits["seconds of stillness"] += STOPPED_S
        if sleeps:
            # Its clock is ahead of the time that has passed for it, so it must be started anew.
            time.sleep(3)
            if not still.is_ready():
                world.hits["times not ready afterwards"] += 1
            still.kill()
            still.start()


def stop_sqlite(world):
    """The only gateway, over SQLite, is stopped (SIGSTOP) for longer than a lease."""
    gateway = world.sqlite(Machine(world.folder, "disk"))
    stopped(world, gateway)


def stop_redis(world):
    """Redis is stopped (SIGSTOP) for longer than a lease."""
    stopped(world, over_redis(world))


def stop_tool(world):
    """The tool is stopped (SIGSTOP) for longer than a lease. Then it executes what has come meanwhile."""
    over_redis(world)
    stopped(world, world.tool)


def stopped(world, program):
    world.answer_s = 3
    world.begin()
    for _ in world.rounds(range(2), pause_s=2):
        program.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        program.signal(signal.SIGCONT)
        world.hits["seconds of stillness"] += STOPPED_S


# --- memory and files --------------------------------------------------------------------------------------


def without_memory(world, program, times):
    """A new process may have no more address space than it began with, and calls are large: it ends, or refuses calls."""
    program.keep_up(pause_s=0.3)
    world.padding = 200_000
    world.begin()
    refused = lambda: program.log.read_text(errors="replace").count("out of memory")
    for _ in world.rounds(range(times)):
        # One that was busy before may have kept enough for all that comes.
        old = program.pid
        program.process.kill()
        wait_for("it is started again", lambda: program.pid != old and program.is_up(), 15)
        time.sleep(0.2)
        ended, before = sum(program.ends.values()), refused()
        size = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{program.pid}/status").read_text())[1]) << 10
        hard = resource.prlimit(program.pid, resource.RLIMIT_AS)[1]
        resource.prlimit(program.pid, resource.RLIMIT_AS, (size, hard))
        wants = lambda: sum(program.ends.values()) > ended or refused() > before
        wait_for("it wants memory", wants, 15)
        time.sleep(2)
        world.hits["times without memory"] += 1
        if sum(program.ends.values()) == ended:
            resource.prlimit(program.pid, resource.RLIMIT_AS, (hard, hard))
    ends = Counter(program.ends)
    ends[-signal.SIGKILL] -= times
    world.notes.append("it ended with " + (", ".join(f"{status} ({count} times)" for status, count in ends.items() if count > 0) or "nothing"))


def memory_sqlite(world):
    without_memory(world, world.sqlite(Machine(world.folder, "disk")), 6)


def memory_redis(world):
    without_memory(world, over_redis(world), 6)


def files(world):
    """A gateway that may open 1,000 files has 3,000 clients that say nothing, and agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5_000:
        raise Failed(f"this process may open {hard} files, and needs 5,000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, 1_000))
    gateway = world.sqlite(Machine(world.folder, "disk"), before=before)
    world.begin()
    for _ in world.rounds(range(2)):
        crowd, most, told = [], 0, world.told()
        for n in range(3_000):
            line = socket.socket()
            line.settimeout(2)
            try:
                line.bind((f"127.0.{1 + n % 8}.1", 0))
                line.connect(("127.0.0.1", gateway.port))
                line.setblocking(False)
                crowd.append(line)
            except OSError:
                line.close()
                world.hits["clients not let in"] += 1
            if n % 100 == 0:
                most = max(most, open_files(gateway))
        time.sleep(5)
        most = max(most, open_files(gateway))
        world.hits["clients sent away"] += sum(is_closed(line) for line in crowd)
        world.hits["most files at once"] = max(most, world.hits["most files at once"])
        if world.told() == told:
            world.notes.append("no call succeeded beside the crowd")
        for line in crowd:
            line.close()
    if world.hits["clients not let in"] == 0:
        del world.hits["clients not let in"]
    if most > 1_000:
        raise Failed(f"it had {most} files open")


def no_files(world):
    """The gateway may open no further file at all, for two seconds each time."""
    gateway = world.sqlite(Machine(world.folder, "disk"))
    world.begin()
    soft_hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    for _ in world.rounds(range(6)):
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (8, soft_hard[1]))
        time.sleep(3)
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, soft_hard)
    world.hits["tools not reached"] = world.agents.answers["meanwhile"]["502 tool-unreachable"]


def open_files(program):
    try:
        return len(os.listdir(f"/proc/{program.pid}/fd"))
    except OSError:
        return 0


def is_closed(line):
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


FAULTS = {
    "clock-sqlite": clock_sqlite,
    "clock-gateway": clock_gateway,
    "clock-redis": clock_redis,
    "suspended": lambda world: suspended(world, True),
    "stop-gateway": lambda world: suspended(world, False),
    "stop-sqlite": stop_sqlite,
    "stop-redis": stop_redis,
    "stop-tool": stop_tool,
    "memory-sqlite": memory_sqlite,
    "memory-redis": memory_redis,
    "files": files,
    "no-files": no_files,
}
