"""Disks that are full, fail, lose what was not synced, or lie: under SQLite and under Redis."""

import time

from faults_world import Machine, wait_for


def sqlite_full(world):
    """The disk under SQLite is full for three seconds."""
    machine = Machine(world.folder, "disk")
    gateway = world.sqlite(machine)
    world.begin()
    for time_n in range(4):
        world.meanwhile()
        machine.set(room=20_000, is_bounded=1)
        time.sleep(3)
        if time_n == 2:
            # Also a start finds it full.
            gateway.kill()
            gateway.start()
            time.sleep(1.5)
            if gateway.is_ready():
                world.notes.append("a gateway that started on a full disk said that it is ready")
        machine.set(room=1 << 40)
        world.over()
        gateway.until_ready()
        machine.set(is_bounded=0)
        world.times += 1
        time.sleep(1)
    world.hits["writes without room"] = machine.get("without_room")


def failing(world, what, one_in, drops, times):
    machine = Machine(world.folder, "disk", keeps_undo=drops)
    gateway = world.sqlite(machine)

    def before_restart():
        machine.heal()
        if drops:
            # What the kernel could not write it does not keep either.
            world.hits["writes dropped"] += machine.cut_power()
        world.over()

    gateway.keep_up(before_restart)
    world.begin()
    for _ in world.rounds(range(times), pause_s=0.7):
        machine.fail(what, one_in, gateway)
    world.hits["errors"] = machine.get(f"failed_{what}s")
    world.hits["ends of the gateway"] = sum(gateway.ends.values())


def sqlite_write_error(world):
    """A write of SQLite's files fails (EIO)."""
    failing(world, "write", 30, False, 8)


def sqlite_sync_error(world):
    """A sync of SQLite's files fails (EIO), and what it should have written is gone."""
    failing(world, "sync", 10, True, 8)


def sqlite_read_error(world):
    """A read of SQLite's files fails (EIO)."""
    failing(world, "read", 20, False, 8)


def sqlite_power(world):
    """Power is cut: what was not synced is gone, all of it or at random."""
    machine = Machine(world.folder, "disk", keeps_undo=True)
    gateway = world.sqlite(machine)
    world.begin()
    for time_n in world.rounds(range(12), pause_s=0.7):
        gateway.kill()
        world.hits["writes lost"] += machine.cut_power(kept=0.5 if time_n % 2 else 0.0)
        gateway.start().until_ready()


def lies(world, but, is_noticed):
    """The disk says that it has synced and has not; then power is cut. Nothing can keep what was told meanwhile."""
    machine = Machine(world.folder, "disk", keeps_undo=True)
    gateway = world.sqlite(machine)
    world.lie_until_power_cut(machine, gateway, 3, but)
    gateway.start()
    if is_noticed:
        wait_for("the loss is noticed", lambda: "lost_data" in str(gateway.ask("GET", "/readyz")), found=gateway.tail)
        world.accept_noticed_loss()
    else:
        gateway.until_ready()
        world.notes.append("nothing shows the loss, as after a snapshot of the whole disk: the gateway is ready")
    world.times += 1


FAULTS = {
    "sqlite-full": sqlite_full,
    "sqlite-write-error": sqlite_write_error,
    "sqlite-sync-error": sqlite_sync_error,
    "sqlite-read-error": sqlite_read_error,
    "sqlite-power": sqlite_power,
    # All of the disk goes back; and all but the watermarks, which are written after each commit.
    "sqlite-lies": lambda world: lies(world, "", False),
    "sqlite-lies-noticed": lambda world: lies(world, ".watermarks", True),
}
