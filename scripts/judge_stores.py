"""The worlds of scripts/judge: gateways over SQLite, over a Redis or a PostgreSQL, alone and with replicas."""

import shutil
import signal
import subprocess
import time

import faults_redis
from faults_postgres import Postgres, url
from faults_redis import STRICT, Cluster, Redis
from faults_world import Machine, wait_for
from judge_gateways import READY_S, STARTED, Gateway, Line, own_port
from judge_promise import Broken

faults_redis.free_port = own_port
STOPPED_S = 1.3


class World:
    # What can happen to a store: it is copied and put back, killed, stopped for a while, emptied, fails over, or has a slow disk.
    trouble = ()
    # So long after the end of a gateway the store notices that it has lost what that one has written last.
    notices_s = 0
    # Whether a failover loses nothing, so that no operator is asked.
    loses_nothing = False
    # The machine of the store, if its disk can be slow.
    disk = None

    def __init__(self, folder):
        self.folder, self.programs, self.gateways, self.lines = folder, [], [], []
        self.has_copy = False

    def add(self, program):
        self.programs.append(program)
        STARTED.append(program)

    def gateway(self, tool, store, front):
        self.gateways.append(Gateway(self.folder, f"gateway-{len(self.gateways) + 1}", tool, store, front))
        self.gateways[-1].start()

    def two_gateways(self, tool, front, store):
        """Two gateways. `store` has a place for a number."""
        for number in range(2):
            watermarks = f'watermarks = "{self.folder}/watermarks-{number}"'
            self.gateway(tool, f"[store]\n{store(number)}\n{watermarks}", front)
        self.until_ready()

    def line_to(self, port):
        """One more line to the store, which can be cut. Says its port."""
        self.lines.append(Line(port))
        return self.lines[-1].port

    def until_ready(self):
        for gateway in self.gateways:
            gateway.until_ready()

    def state(self):
        return ", ".join(f"{program.name}: up {program.is_up()}, {program.tail()}" for program in self.programs)

    def slow_disk(self, seconds, one_in):
        """One sync in so many takes so much longer from now on."""
        self.disk.set(slow_us=int(seconds * 10**6), slow_one_in=one_in)

    def heal(self):
        for line in self.lines:
            line.heal()
        if self.disk:
            self.slow_disk(0, 0)

    def stop(self):
        for program in (*self.gateways, *self.programs):
            program.stop()
            STARTED.remove(program)
        for line in self.lines:
            line.stop()


class Sqlite(World):
    """One gateway over a file."""

    name = "sqlite"
    trouble = ("copy", "slow disk", "move")

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        # The only folder where files of a gateway can fail.
        self.data = folder / "gateway-1-machine"
        self.gateway(tool, f'[store]\nurl = "sqlite:{self.data}/oncegate.db"', front)
        self.disk = self.gateways[0].machine
        self.until_ready()

    def move(self):
        """The file without its log, after a clean stop."""
        gateway = self.gateways[0]
        gateway.signal(signal.SIGTERM)
        # It may have come to a crash point instead.
        if gateway.process.wait() == 0:
            for ending in ("-wal", "-shm"):
                (self.data / f"oncegate.db{ending}").unlink(missing_ok=True)
        gateway.start()
        until = time.monotonic() + READY_S
        while not gateway.is_ready() and time.monotonic() < until:
            said = str(gateway.ask("GET", "/readyz")[2])
            if "lost_data" in said:
                raise Broken(f"a file that was moved after a clean stop lacks data: {said}")
            time.sleep(0.02)

    def copy(self):
        """A backup, as a snapshot of the disk takes it."""
        gateway = self.gateways[0]
        gateway.signal(signal.SIGSTOP)
        try:
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.data, self.folder / "copy")
        finally:
            gateway.signal(signal.SIGCONT)

    def put_back(self):
        """The older files, beneath the newer watermarks."""
        gateway, copy = self.gateways[0], self.folder / "copy"
        gateway.kill()
        for file in copy.iterdir():
            if "watermarks" not in file.name and not file.name.endswith((".lock", ".reserve")):
                shutil.copyfile(file, self.data / file.name)
        for ending in ("-wal", "-shm"):
            if not (copy / f"oncegate.db{ending}").exists():
                (self.data / f"oncegate.db{ending}").unlink(missing_ok=True)
        gateway.start()


class OverRedis(World):
    """Two gateways over one Redis, each by a line of its own."""

    name = "redis"
    trouble = ("copy", "kill", "stop", "empty", "slow disk")

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        self.disk = Machine(folder, "redis-data")
        self.redis, self.data = Redis(self, "redis", self.disk, **STRICT).start().up(), self.disk.under
        address = lambda _: f'url = "redis://127.0.0.1:{self.line_to(self.redis.port)}"\ndurability = "strict"'
        self.two_gateways(tool, front, address)

    def copy(self):
        self.redis.signal(signal.SIGSTOP)
        try:
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.data, self.folder / "copy")
        finally:
            self.redis.signal(signal.SIGCONT)

    def put_back(self):
        self.redis.kill()
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "copy", self.data)
        self.redis.start().up()

    def kill(self):
        self.redis.kill()
        self.redis.start().up()

    def stop_a_while(self):
        self.redis.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        self.redis.signal(signal.SIGCONT)

    def empty(self):
        self.redis.ask("FLUSHALL")

    def heal(self):
        super().heal()
        self.redis.signal(signal.SIGCONT)
        if not self.redis.is_up():
            self.redis.start().up()


class OverPostgres(World):
    """Two gateways over one PostgreSQL, each by a line of its own."""

    name = "postgres"
    trouble = ("copy", "kill", "stop", "slow disk")
    # A gateway writes its beat once a second (docs/postgres.md).
    notices_s = 2

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        self.disk = Machine(folder, "postgres-data")
        self.server = Postgres(self, "postgres", own_port(), machine=self.disk)
        self.server.start().up()
        address = lambda _: f'url = "{url(self.line_to(self.server.port))}"\ndurability = "strict"'
        self.two_gateways(tool, front, address)

    def copy(self):
        """All of its processes stop, so that the files are those of one moment. They belong to another user."""
        self.server.signal_all(signal.SIGSTOP)
        try:
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            subprocess.run(["cp", "-a", self.server.home, self.folder / "copy"], check=True)
        finally:
            self.server.signal_all(signal.SIGCONT)

    def put_back(self):
        end(self.server)
        shutil.rmtree(self.server.home)
        subprocess.run(["cp", "-a", self.folder / "copy", self.server.home], check=True)
        self.begin()

    def kill(self):
        end(self.server)
        self.begin()

    def begin(self):
        (self.server.home / "data" / "postmaster.pid").unlink(missing_ok=True)
        self.server.start().up()

    def stop_a_while(self):
        self.server.signal_all(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        self.server.signal_all(signal.SIGCONT)

    def heal(self):
        super().heal()
        self.server.signal_all(signal.SIGCONT)
        if not self.server.is_up():
            self.begin()

    def stop(self):
        in_order(self.server)
        super().stop()


def end(server):
    """Kills a PostgreSQL. Its processes outlive the first of them for a moment, and must not."""
    processes = server.all_processes()
    server.signal_all(signal.SIGKILL)
    server.process.wait()
    gone = lambda: not any(is_alive(pid) for pid in processes[1:])
    wait_for("all processes of PostgreSQL have ended", gone)


def in_order(server):
    """Stops a PostgreSQL in good order: its shared memory would outlive it."""
    server.signal_all(signal.SIGCONT)
    server.signal(signal.SIGINT)
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        pass


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class OverSentinel(World):
    """Two gateways over a Redis and its replica, with a sentinel that promotes it."""

    name = "sentinel"
    trouble = ("fail over",)

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        durable = {**STRICT, "min-replicas-to-write": "1", "min-replicas-max-lag": "10"}
        first = Redis(self, "redis-1", **durable).start().up()
        other = Redis(self, "redis-2", **durable, replicaof=f"127.0.0.1 {first.port}").start().up()
        wait_for("the replica is online", lambda: "state=online" in first.says("INFO", "replication"))
        self.nodes, self.sentinel = [first, other], self.watch(first)
        address = f'url = "redis+sentinel://127.0.0.1:{self.sentinel.port}/main"\ndurability = "bounded"'
        self.two_gateways(tool, front, lambda _: address)

    def watch(self, master):
        """A sentinel that acts within a second or two."""
        sentinel = Redis(self, "sentinel", words=["--sentinel"])
        with (self.folder / "sentinel.conf").open("a") as config:
            config.write(f"sentinel monitor main 127.0.0.1 {master.port} 1\n")
            config.write("sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n")
        sentinel.start().up()
        sentinel.ask("SENTINEL", "DEBUG", "ping-period", 300, "info-period", 500, "publish-period", 500)
        wait_for("the sentinel knows both", lambda: "slaves=1" in sentinel.says("INFO", "sentinel"))
        return sentinel

    def fail_over(self):
        """The master is killed and the replica promoted, which the other is the replica of then."""
        is_master = lambda node: "role:master" in node.says("INFO", "replication")
        master, other = sorted(self.nodes, key=lambda node: not is_master(node))
        master.kill()
        wait_for("the other is promoted", lambda: is_master(other), found=self.sentinel.tail)
        master.start()
        is_replica = lambda: "master_link_status:up" in master.says("INFO", "replication")
        wait_for("it is a replica", is_replica, found=self.sentinel.tail)


class OverCluster(World):
    """Two gateways over a Redis Cluster."""

    name = "cluster"
    trouble = ("fail over",)

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        self.nodes = Cluster(self)
        self.two_gateways(tool, front, lambda _: f'url = "{self.nodes.url}"\ndurability = "bounded"')

    def fail_over(self):
        self.nodes.fail_over()


class OverStandby(World):
    """Two gateways over a PostgreSQL and its synchronous standby."""

    name = "standby"
    trouble = ("fail over",)
    loses_nothing = True

    def __init__(self, folder, tool, front=None):
        super().__init__(folder)
        self.primary, self.made = Postgres(self, "postgres-0", own_port()).start().up(), 0
        self.ports = [self.primary.port, own_port()]
        self.add_standby()
        self.two_gateways(tool, front, lambda _: f'url = "{url(*self.ports)}"\ndurability = "strict"')

    def add_standby(self):
        self.made += 1
        self.standby = Postgres(self, f"postgres-{self.made}", self.ports[self.made % 2], self.primary).start()
        self.primary.until_synchronous(self.standby)

    def fail_over(self):
        """The primary is killed and the standby promoted, which gets a new standby in the place of the other."""
        gone = self.primary
        end(gone)
        self.standby.says("SELECT pg_promote(true, 30)")
        self.primary = self.standby
        shutil.rmtree(gone.home)
        self.programs.remove(gone)
        STARTED.remove(gone)
        self.add_standby()

    def stop(self):
        for server in (self.standby, self.primary):
            in_order(server)
        super().stop()


STORES = {store.name: store for store in (Sqlite, OverRedis, OverPostgres, OverSentinel, OverCluster, OverStandby)}
