"""PostgreSQL: its processes, and the failover to a synchronous standby."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

from faults_redis import store
from faults_world import Program, wait_for
from processes import free_port

SETTINGS = """
listen_addresses = '127.0.0.1'
shared_buffers = '32MB'
dynamic_shared_memory_type = mmap
max_connections = 60
hot_standby = on
wal_level = replica
"""
# PostgreSQL refuses to run as root.
USER = pwd.getpwnam("postgres") if os.geteuid() == 0 else None


def programs():
    """Debian keeps them out of the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    found = str(versions[-1]) if versions else shutil.which("initdb")
    return Path(found).parent if found else Path()


def as_server():
    if USER:
        os.setgid(USER.pw_gid)
        os.setgroups([])
        os.setuid(USER.pw_uid)


class Postgres(Program):
    """A server over a folder of its own. With `of` it is a standby of that one."""

    def __init__(self, world, name, port=None, of=None, machine=None):
        self.port = port or free_port()
        self.home = machine.under if machine else world.folder / f"{name}-data"
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        if USER:
            for path in (self.home, *([machine.page_path] if machine else [])):
                os.chown(path, USER.pw_uid, USER.pw_gid)
        data = self.home / "data"
        made = ["initdb", "-A", "trust", "-U", "gate", "-E", "UTF8", "--locale=C", "-k", "-N", "-D", data]
        if of:
            made = ["pg_basebackup", "-h", "127.0.0.1", "-p", of.port, "-U", "gate", "-R", "-X", "stream", "-c", "fast", "-D", data]
        self.run(*made)
        settings = data / "postgresql.auto.conf"
        kept = [line for line in settings.read_text().splitlines() if line.startswith("primary_conninfo")]
        place = [f"port = {self.port}", f"unix_socket_directories = '{self.home}'"]
        settings.write_text("\n".join([*kept, *place]) + SETTINGS)
        environment = machine.environment() if machine else {}
        super().__init__(world.folder, name, [programs() / "postgres", "-D", data], self.port, environment, as_server)
        world.add(self)

    def run(self, program, *words):
        command = [programs() / program, *map(str, words)]
        subprocess.run(command, cwd=self.home, preexec_fn=as_server, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def says(self, sql):
        """The first column of the first row, as a superuser; empty if there is no answer."""
        command = [programs() / "psql", "-XAtq", "-h", "127.0.0.1", "-p", str(self.port), "-U", "gate", "-c", sql, "postgres"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return done.stdout.strip() if done.returncode == 0 else ""

    def up(self):
        wait_for(f"{self.name} serves", lambda: self.says("SELECT 1") == "1", found=self.tail)
        return self

    def until_synchronous(self, standby):
        """Each commit waits for this standby from now on."""
        self.says("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        self.says("SELECT pg_reload_conf()")
        is_synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        wait_for("a synchronous standby", lambda: self.says(is_synchronous) == "1", found=standby.tail)

    def all_processes(self):
        others = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True).stdout.split()
        return [self.pid, *map(int, others)]

    def signal_all(self, which):
        for pid in self.all_processes():
            try:
                os.kill(pid, which)
            except ProcessLookupError:
                pass

    def stop(self):
        if self.process and self.is_up():
            self.signal_all(signal.SIGCONT)
        super().stop()


def url(*ports):
    return f"postgres://gate@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"


def over_postgres(world, gateways=2):
    server = Postgres(world, "postgres").start().up()
    for number in range(gateways):
        world.gateway(store(url(server.port), world, number))
    return server


def crash(world):
    """Killed again and again, and started again at once: everything that was acknowledged is there."""
    server = over_postgres(world)
    server.keep_up()
    world.begin()
    for _ in world.rounds(range(5)):
        server.kill()
        world.hits["kills"] += 1
        time.sleep(1)


def hang(world):
    """All of its processes stop for longer than a gateway waits, and go on."""
    server = over_postgres(world)
    world.begin()
    for stopped_s in world.rounds((1, 3, 7, 12)):
        server.signal_all(signal.SIGSTOP)
        world.hits["stops"] += 1
        time.sleep(stopped_s)
        server.signal_all(signal.SIGCONT)


def failover(world):
    """The primary is killed, and its synchronous standby promoted, five times. Nothing is lost, and no operator is asked."""
    primary = Postgres(world, "postgres-0").start().up()
    ports = [primary.port, free_port()]
    for number in range(2):
        world.gateway(store(url(*ports), world, number))
    world.begin()
    for number in world.rounds(range(1, 6)):
        world.over()
        standby = Postgres(world, f"postgres-{number}", ports[number % 2], primary).start()
        primary.until_synchronous(standby)
        world.until_ready()
        time.sleep(1)
        world.meanwhile()
        primary.kill()
        standby.says("SELECT pg_promote(true, 30)")
        promoted = time.monotonic()
        world.until_ready()
        world.hits["failovers"] += 1
        world.hits["slowest, in ms"] = max(world.hits["slowest, in ms"], int((time.monotonic() - promoted) * 1000))
        primary = standby


FAULTS = {"postgres-crash": crash, "postgres-hang": hang, "postgres-failover": failover}
