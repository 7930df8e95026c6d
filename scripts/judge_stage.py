"""Where the runs of scripts/judge take place, for how long, and what is said of them."""

import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test

import judge_lies
import judge_run
from faults_world import build_shim
from judge_gateways import STORES
from judge_history import Judge
from judge_machine import machine
from judge_promise import BY_CHECKER, Broken
from judge_tool import Tool

CHECKER = Path(os.environ.get("JUDGE_CHECKER") or Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "debug" / "judge")
# What a run of some minutes must have seen over each store, or it has shown nothing.
LONG_M = 5
MUST_SEE = ("replays", "http: done", "mcp: done", "proxy: done", "http: none", "http: unknown")
SHRINK_S = int(os.environ.get("JUDGE_SHRINK_S", 60))
AT_ONCE = 10
MOST_UNJUDGED = 3


class Stage:
    def __init__(self, home, store, lie=None):
        self.home, self.folder = home, home / f"run-{store}-{os.getpid()}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.lie = lie
        self.pool, self.checker = ThreadPoolExecutor(AT_ONCE), Judge(CHECKER)
        self.first_found, self.last, self.findings = None, None, Counter()
        self.sums = Counter()
        self.began = time.monotonic()
        self.store, self.world, self.unjudged = store, None, 0
        self.ready()

    def ready(self):
        """A world, if there is none."""
        if self.world is None:
            self.open()

    def open(self):
        self.tool = Tool()
        port, front = self.tool.port, None
        if self.lie:
            port, front = self.lie.before_tool(port), self.lie.before_gateway
        folder = self.folder / f"world-{random.randrange(10**9)}"
        folder.mkdir()
        self.world = STORES[self.store](folder, port, front)
        if self.lie:
            self.lie.world = self.world
            for gateway in self.world.gateways:
                gateway.lie = self.lie

    def close(self):
        if self.world:
            self.world.stop()
            self.tool.stop()
        self.world = None

    def end(self, script, run, is_broken):
        """The run is over: its last questions, and the verdict on its history."""
        try:
            run.finish()
            self.sums["runs"] += 1
            if is_broken or not BY_CHECKER:
                return
            verdict = self.checker.judge(run.history)
            self.sums["histories"] += verdict["objects"]
            self.sums["operations"] += verdict["operations"]
            if keep := os.environ.get("JUDGE_KEEP"):
                with open(keep, "a") as file:
                    run.history.write(file)
            if verdict["wrong"]:
                wrong = "\n".join(f"{one['key']} is not linearizable:\n" + "\n".join(map(json.dumps, one["events"])) for one in verdict["wrong"][:3])
                raise Broken(wrong)
        except Exception as error:
            if not is_broken:
                self.found(script, run, error)
                raise
        finally:
            # A world that is not well again is exchanged.
            if is_broken or self.last and self.last[1] is run:
                self.close()

    def found(self, script, run, error):
        self.last = (script, run, error)
        by = "the checker" if "not linearizable" in str(error) else "the generator's model" if isinstance(error, Broken) else "an error"
        self.findings[by] += 1
        if self.first_found is None:
            self.first_found = time.monotonic() - self.began
            print(f"after {self.first_found:.0f} s {by} has found: {str(error)[:1500]}", flush=True)
            if by == "an error":
                traceback.print_exception(error)
            self.keep("first")

    def keep(self, name):
        script, run, error = self.last
        folder = self.home / "found"
        folder.mkdir(exist_ok=True)
        place = folder / f"{self.store}-{os.getpid()}-{name}"
        place.with_suffix(".json").write_text(json.dumps([self.store, script]) + "\n")
        with place.with_suffix(".history").open("w") as file:
            run.history.write(file)
        return place.with_suffix(".json")

    def play(self, seconds, seed):
        """Runs until the time is over, or something is found. Says whether all was well."""
        until, Machine = time.monotonic() + seconds, machine(self)
        engine.MAX_SHRINKING_SECONDS = SHRINK_S
        while time.monotonic() < until:
            Timed = hypothesis.seed(seed)(Machine)
            seed += 1
            how = settings(
                max_examples=5, stateful_step_count=30, deadline=None, database=None, suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink] if SHRINK_S else [Phase.generate], verbosity=Verbosity.normal, print_blob=False,
            )
            try:
                run_state_machine_as_test(Timed, settings=how)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                is_broken = self.last is not None and isinstance(self.last[2], Broken)
                if is_broken or self.unjudged >= MOST_UNJUDGED:
                    self.report(error)
                    return False
                # A process that did not start in time, say. More than a few are a failure, too.
                self.unjudged += 1
                print(f"a run could not be judged: {str(error)[:300]}", flush=True)
                self.close()
                self.last = self.first_found = None
        return True

    def report(self, error):
        if self.last is None:
            traceback.print_exception(error)
            return
        place = self.keep("shrunk")
        script, _, last = self.last
        print(f"the shortest script that was found, of {len(script)} steps (scripts/judge replay {place}):")
        for name, values in script:
            print(f"  run.{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})")
        print(f"it ends with: {str(last)[:3000]}", flush=True)


def main(home, arguments):
    build_shim()
    if arguments[:1] == ["planted"]:
        return judge_lies.main(home, Stage, arguments[1:])
    if arguments[:1] == ["replay"]:
        return replay(home, arguments[1])
    minutes = float(os.environ.get("JUDGE_MINUTES", 10))
    seed = int(os.environ.get("JUDGE_SEED") or random.randrange(10**9))
    stores = arguments or list(STORES)
    is_well, seen_enough = True, True
    for store in stores:
        stage = Stage(home, store)
        print(f"{store}: seed {seed} (JUDGE_SEED)", flush=True)
        try:
            is_well &= stage.play(minutes * 60 / len(stores), seed)
        finally:
            stage.close()
            stage.checker.stop()
        took = time.monotonic() - stage.began
        steps = judge_run.STEPS
        print(f"{store}: {stage.sums['runs']} runs, {steps['steps']} steps, {steps['requests']} requests, "
              f"{stage.sums['histories']} histories with {stage.sums['operations']} operations, in {took:.0f} s")
        print("  steps: " + ", ".join(f"{count} × {name}" for name, count in sorted(steps.items()) if name not in ("steps", "requests")))
        print("  seen: " + ", ".join(f"{count} × {name}" for name, count in sorted(judge_run.SEEN.items())))
        if minutes >= LONG_M and (unseen := [what for what in MUST_SEE if not judge_run.SEEN[what]]):
            seen_enough = False
            print(f"{store}: it was never seen: {', '.join(unseen)}", file=sys.stderr)
        judge_run.STEPS.clear()
        judge_run.SEEN.clear()
        if is_well:
            shutil.rmtree(stage.folder, ignore_errors=True)
    return 0 if is_well and seen_enough else 1


def replay(home, file):
    store, script = json.loads(Path(file).read_text())
    stage = Stage(home, store)
    run = judge_run.Run(stage.world, stage.tool, stage.pool)
    try:
        for name, values in script:
            print(name, values, flush=True)
            run.revive()
            getattr(run, name)(**values)
        stage.end(script, run, False)
        print("the promise was kept this time")
        return 0
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    finally:
        stage.close()
        stage.checker.stop()
