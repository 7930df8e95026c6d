"""Redis and Valkey: their disks, their processes, and the failover of sentinels and clusters."""

import os
import shutil
import signal
import socket
import subprocess
import time

from processes import free_port
from faults_world import RUN, Failed, Machine, Program, wait_for

REDIS = os.environ.get("REDIS_SERVER", "redis-server")
STRICT = {
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "aof-load-truncated": "no",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",
}


def valkey_server():
    """VALKEY_SERVER, the one on the path, or Debian's from bookworm-backports, in a folder of its own."""
    named = os.environ.get("VALKEY_SERVER") or shutil.which("valkey-server")
    if named:
        return named
    folder = RUN.parent / "valkey"
    binary = folder / "usr" / "bin" / "valkey-server"
    if binary.exists():
        return str(binary)
    # A name of its own: two faults may need it at once.
    made = folder.with_name(f"valkey-{os.getpid()}")
    for part in ("lists/partial", "cache/archives/partial"):
        (made / part).mkdir(parents=True, exist_ok=True)
    (made / "sources.list").write_text(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main\n"
    )
    options = {
        "Dir::Etc::sourcelist": made / "sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": made / "lists",
        "Dir::Cache": made / "cache", "Debug::NoLocking": 1, "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    said = {"cwd": made, "check": True, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run([*apt, "update"], **said)
        subprocess.run([*apt, "download", "valkey-server", "valkey-tools"], **said)
        for package in made.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, made], **said)
        subprocess.run([made / "usr/bin/valkey-server", "--version"], **said)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"there is no Valkey here (set VALKEY_SERVER, or install valkey-server): {error}") from error
    try:
        made.rename(folder)
    except OSError:
        shutil.rmtree(made)
    return str(binary)


class Redis(Program):
    def __init__(self, world, name, machine=None, server=REDIS, words=(), **settings):
        port, folder = free_port(), world.folder / f"{name}-data"
        folder = machine.under if machine else folder
        folder.mkdir(exist_ok=True)
        config = world.folder / f"{name}.conf"
        place = {"port": port, "bind": "127.0.0.1", "dir": folder, **settings}
        lines = [f'{key.replace("_", "-")} {value if value != "" else chr(34) * 2}\n' for key, value in place.items()]
        config.write_text("".join(lines))
        environment = machine.environment() if machine else {}
        super().__init__(world.folder, name, [server, config, *words], port, environment)
        world.add(self)

    def ask(self, *words):
        """The answer to one command. An error is raised as ValueError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            parts = [str(word).encode() for word in words]
            line.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            return answer(line.makefile("rb"))

    def says(self, *words):
        """The same as a text; empty if there is no answer."""
        try:
            return str(self.ask(*words))
        except (OSError, ValueError):
            return ""

    def up(self):
        wait_for(f"{self.name} serves", lambda: self.says("PING") == "PONG", found=self.tail)
        return self


def answer(file):
    head = file.readline()
    kind, rest = head[:1], head[1:-2].decode()
    if kind == b"$":
        return None if rest == "-1" else file.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return [answer(file) for _ in range(int(rest))]
    if kind in (b"+", b":"):
        return rest
    raise ValueError(rest or "no answer")


def store(url, world, number, durability="strict"):
    return f'[store]\nurl = "{url}"\ndurability = "{durability}"\nwatermarks = "{world.folder}/watermarks-{number}"'


def over_redis(world, machine=None, gateways=2, server=REDIS):
    """A strict server, and gateways over it."""
    redis = Redis(world, "redis", machine, server, **STRICT).start().up()
    for number in range(gateways):
        world.gateway(store(f"redis://127.0.0.1:{redis.port}", world, number))
    return redis


def until_all_are_ready_or_lost(world):
    """A failover may lose what no replica had, and what was never acknowledged; a gateway asks an operator about that, too."""
    is_ready = lambda: all(gateway.is_ready() for gateway in world.gateways)
    has_lost = lambda: "lost_data" in str(world.gateways[0].ask("GET", "/readyz"))
    wait_for("the gateways are ready", lambda: is_ready() or has_lost(), found=world.gateways[0].tail)
    time.sleep(3)
    if has_lost():
        world.accept_loss()
        world.accepted += 1


# --- disks -------------------------------------------------------------------------------------------------


def full(world, server=REDIS):
    """The disk under Redis is full for three seconds; Redis ends, and is started again and again."""
    machine = Machine(world.folder, "disk")
    redis = over_redis(world, machine, server=server)
    redis.keep_up(pause_s=0.5)
    world.begin()
    for _ in world.rounds(range(4)):
        machine.set(room=20_000, is_bounded=1)
        time.sleep(3)
        machine.set(is_bounded=0)
    world.hits["writes without room"] = machine.get("without_room")
    world.hits["ends of Redis"] = sum(redis.ends.values())


def error(world, what, one_in, drops):
    """Writes or syncs of Redis's file fail (EIO); what should have been synced is gone."""
    machine = Machine(world.folder, "disk", keeps_undo=drops)
    redis = over_redis(world, machine)

    def before_restart():
        machine.heal()
        if drops:
            world.hits["writes dropped"] += machine.cut_power()

    redis.keep_up(before_restart)
    world.begin()
    for _ in world.rounds(range(6), pause_s=0.7):
        machine.fail(what, one_in, redis)
    world.hits["errors"] = machine.get(f"failed_{what}s")
    world.hits["ends of Redis"] = sum(redis.ends.values())


def power(world, server=REDIS):
    """Power is cut: what was not synced is gone, all of it or at random."""
    machine = Machine(world.folder, "disk", keeps_undo=True)
    redis = over_redis(world, machine, server=server)
    world.begin()
    for time_n in world.rounds(range(8), pause_s=0.7):
        redis.kill()
        world.hits["writes lost"] += machine.cut_power(kept=0.5 if time_n % 2 else 0.0)
        world.hits["power cuts"] += 1
        redis.start().up()
    if not world.hits["writes lost"]:
        # With `always` there is at most one write that is not synced.
        del world.hits["writes lost"]
    world.hits["syncs"] = machine.get("syncs")


def lies(world):
    """The disk says that it has synced and has not; then power is cut. Nothing can keep what was told meanwhile."""
    machine = Machine(world.folder, "disk", keeps_undo=True)
    redis = over_redis(world, machine)
    # Longer than the gateways remember their newest writes, to put them back.
    world.lie_until_power_cut(machine, redis, 20)
    redis.start().up()
    closed = lambda: "lost_data" in str(world.gateways[0].ask("GET", "/readyz"))
    wait_for("the loss is noticed", closed)
    time.sleep(1)
    world.accept_noticed_loss()
    world.times += 1


# --- failover ----------------------------------------------------------------------------------------------


def sentinel(world, server=REDIS, hangs=False):
    """The master is killed, or hangs and comes back when another one has been promoted."""
    durable = {**STRICT, "min-replicas-to-write": "1", "min-replicas-max-lag": "10"}
    nodes = [Redis(world, "redis-1", server=server, **durable).start().up()]
    nodes.append(Redis(world, "redis-2", server=server, **durable, replicaof=f"127.0.0.1 {nodes[0].port}").start().up())
    wait_for("the replica is online", lambda: "state=online" in nodes[0].says("INFO", "replication"))
    watcher = Redis(world, "sentinel", server=server, words=["--sentinel"])
    with (world.folder / "sentinel.conf").open("a") as config:
        config.write(f"sentinel monitor main 127.0.0.1 {nodes[0].port} 1\n")
        config.write("sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n")
    watcher.start().up()
    # With its own periods it would depose masters that are well again.
    watcher.ask("SENTINEL", "DEBUG", "ping-period", 300, "info-period", 500, "publish-period", 500)
    wait_for("the sentinel knows both", lambda: "slaves=1" in watcher.says("INFO", "sentinel"))
    for number in range(2):
        world.gateway(store(f"redis+sentinel://127.0.0.1:{watcher.port}/main", world, number, "bounded"))
    world.begin(3)
    for _ in world.rounds(range(3), pause_s=2, until_ready=lambda: until_all_are_ready_or_lost(world)):
        master, other = (node for node in sorted(nodes, key=lambda node: "role:master" not in node.says("INFO", "replication")))
        if hangs:
            master.signal(signal.SIGSTOP)
        else:
            master.kill()
        wait_for("the other is promoted", lambda: "role:master" in other.says("INFO", "replication"), found=watcher.tail)
        world.hits["promotions"] += 1
        if hangs:
            # It still takes itself for the master, and has gateways connected.
            time.sleep(2)
            master.signal(signal.SIGCONT)
        else:
            master.start()
        wait_for("it is a replica", lambda: "master_link_status:up" in master.says("INFO", "replication"), found=watcher.tail)


class Cluster:
    """Three masters with a replica each."""

    def __init__(self, world):
        self.nodes, ports = [], {}
        for number in range(6):
            bus = free_port()
            more = {"min-replicas-to-write": "1", "cluster-enabled": "yes", "cluster-port": bus, "cluster-node-timeout": "2000"}
            node = Redis(world, f"redis-{number + 1}", **STRICT, **more).start().up()
            ports[node] = bus
            self.nodes.append(node)
        first = self.nodes[0]
        for number, slots in enumerate(((0, 5460), (5461, 10922), (10923, 16383))):
            self.nodes[number].ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.nodes[number].ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        for node in self.nodes[1:]:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, ports[node])
        for master, replica in zip(self.nodes[:3], self.nodes[3:]):
            name = master.ask("CLUSTER", "MYID")
            wait_for("the nodes have met", lambda: replica.says("CLUSTER", "REPLICATE", name) == "OK")
            wait_for("the replica is online", lambda: "state=online" in master.says("INFO", "replication"))
        self.until_whole()
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def until_whole(self):
        whole = lambda: all("cluster_state:ok" in node.says("CLUSTER", "INFO") for node in self.nodes)
        wait_for("the cluster is whole", whole)

    def fail_over(self):
        """The master that has the calls is killed, its replica promoted, and it comes back as a replica."""
        masters = [node for node in self.nodes if "role:master" in node.says("INFO", "replication")]
        # The calls of one tenant are all at one master: the one with the most keys.
        master = max(masters, key=lambda node: int(node.ask("DBSIZE")))
        name = master.ask("CLUSTER", "MYID")
        witness = next(node for node in self.nodes if node is not master)
        master.kill()
        failed_over = lambda: any(
            name in line and "master,fail" in line and "-" == line.split()[3] and len(line.split()) == 8
            for line in witness.says("CLUSTER", "NODES").splitlines()
        )
        wait_for("a replica is promoted", failed_over, found=lambda: witness.says("CLUSTER", "NODES"))
        master.start().up()
        wait_for("it is a replica", lambda: "master_link_status:up" in master.says("INFO", "replication"), found=master.tail)
        self.until_whole()


def cluster(world):
    """Masters of a cluster are killed, each time the one that has the calls."""
    nodes = Cluster(world)
    for number in range(2):
        world.gateway(store(nodes.url, world, number, "bounded"))
    world.begin(3)
    for _ in world.rounds(range(3), pause_s=2, until_ready=lambda: until_all_are_ready_or_lost(world)):
        nodes.fail_over()
        world.hits["promotions"] += 1


FAULTS = {
    "redis-full": full,
    "redis-write-error": lambda world: error(world, "write", 40, False),
    "redis-sync-error": lambda world: error(world, "sync", 20, True),
    "redis-power": power,
    "redis-lies": lies,
    "sentinel": sentinel,
    "sentinel-hang": lambda world: sentinel(world, hangs=True),
    "cluster": cluster,
    "valkey-full": lambda world: full(world, valkey_server()),
    "valkey-power": lambda world: power(world, valkey_server()),
    "valkey-sentinel": lambda world: sentinel(world, valkey_server()),
}
