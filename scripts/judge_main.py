"""What scripts/judge does: over which stores, for how long, and what it says at the end."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter

import judge_lies
import judge_run
from faults_world import build_shim
from judge_stage import Stage, replay
from judge_stores import STORES

# What a run of some minutes must have seen over each store, or it has shown nothing.
LONG_M = 2
MUST_SEE = ("replays", "http: done", "mcp: done", "proxy: done", "remote: done", "second tenant: done", "http: none", "http: unknown")
# What was run, one line of JSON for each store and time.
RUNS = "runs"


def main(home, arguments):
    if arguments[:1] == ["sums"]:
        return sums(home)
    build_shim()
    if arguments[:1] == ["planted"]:
        return judge_lies.main(home, Stage, arguments[1:])
    if arguments[:1] == ["replay"]:
        return replay(home, arguments[1])
    mix = "few"
    if arguments[:1] == ["many"]:
        mix, arguments = "many", arguments[1:]
    stores = arguments or list(STORES)
    if mix == "many" and len(stores) > 1:
        return beside_each_other(stores)
    minutes = float(os.environ.get("JUDGE_MINUTES", 10))
    seed = int(os.environ.get("JUDGE_SEED") or random.randrange(10**9))
    # Not all(...) over a generator: each store has its turn.
    is_well = [play(home, store, mix, minutes / len(stores), seed) for store in stores]
    return 0 if all(is_well) else 1


def beside_each_other(stores):
    """Each store in a process of its own: most of the time each waits."""
    started = [subprocess.Popen([sys.executable, sys.argv[0], "many", store]) for store in stores]
    try:
        return int(any([process.wait() for process in started]))
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
                process.wait()


def play(home, store, mix, minutes, seed):
    print(f"{store}, {mix}: seed {seed} (JUDGE_SEED)", flush=True)
    stage = Stage(home, store, mix)
    is_well = False
    try:
        is_well = stage.play(minutes * 60, seed)
    finally:
        stage.stop()
        took = time.monotonic() - stage.began
        note(home, stage, took, seed, is_well)
    if stage.sums["not judged"]:
        print(f"{store}: {stage.sums['not judged']} runs could not be judged")
    if not stage.sums["runs"]:
        print(f"{store}: nothing was judged", file=sys.stderr)
        is_well &= bool(os.environ.get("JUDGE_MAY_BE_LEFT_OUT"))
    elif minutes >= LONG_M:
        must_see = (*MUST_SEE, "slow syncs") if judge_run.STEPS["slow_disk"] > 3 else MUST_SEE
        if unseen := [what for what in must_see if not judge_run.SEEN[what]]:
            is_well = False
            print(f"{store}: it was never seen: {', '.join(unseen)}", file=sys.stderr)
        is_well &= stage.sums["not judged"] <= stage.sums["runs"] / 10
    judge_run.STEPS.clear()
    judge_run.SEEN.clear()
    if is_well:
        shutil.rmtree(stage.folder, ignore_errors=True)
    return is_well


def note(home, stage, took, seed, is_well):
    steps, counted = judge_run.STEPS, stage.sums
    made = {name: steps[name] for name in ("steps", "requests")} | {name: counted[name] for name in ("runs", "histories", "operations", "not judged")}
    line = {"store": stage.store, "mix": stage.mix, "seconds": round(took), "processor seconds": round(spent()), **made, "seed": seed, "found": int(not is_well)}
    with (home / RUNS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{stage.store}: {made['runs']} runs, {made['steps']} steps, {made['requests']} requests, {made['histories']} histories with "
          f"{made['operations']} operations, in {took:.0f} s: {made['steps'] / took:.0f} steps a second "
          f"({spent():.0f} s of a processor)")
    print("  steps: " + ", ".join(f"{count} × {name}" for name, count in sorted(steps.items()) if name not in ("steps", "requests")))
    print("  seen: " + ", ".join(f"{count} × {name}" for name, count in sorted(judge_run.SEEN.items())), flush=True)


def spent():
    """Seconds of a processor, of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def sums(home):
    """What all runs since `target/judge` was made come to, for the page."""
    of = {}
    for line in map(json.loads, (home / RUNS).read_text().splitlines()):
        counter = of.setdefault((line["mix"], line["store"]), Counter())
        counter.update({name: value for name, value in line.items() if isinstance(value, int) and name != "seed"})
    for (mix, store), counter in sorted(of.items()):
        print(f"{mix} {store}: {dict(counter)}")
    return 0
