"""Where the runs of scripts/judge take place, for how long, and what is said of them."""

import json
import os
import random
import shutil
import subprocess
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

import judge_run
from faults_world import Failed
from judge_gateways import MARGIN_S, end_all
from judge_history import Judge
from judge_machine import machine
from judge_promise import BY_CHECKER, Broken
from judge_steps import Steps
from judge_stores import STORES
from judge_tool import Tool

CHECKER = Path(os.environ.get("JUDGE_CHECKER") or Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "debug" / "judge")
SHRINK_S = int(os.environ.get("JUDGE_SHRINK_S", 60))
# Steps of a run, and requests at once.
STEPS_OF = {"few": 30, "many": 400}
AT_ONCE = {"few": 10, "many": 24}
# A store that has seen so many steps is exchanged for a new one.
WORLD_STEPS = 10_000
# What has nothing to do with the promise: a process that did not start in time, say.
NOT_JUDGED = (Failed, OSError, subprocess.SubprocessError)


class Pulse:
    """How long this process stood still at most. A lease here is short, so the judges are wrong where a machine stops for long."""

    def __init__(self):
        self.longest_s = 0
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            before = time.monotonic()
            time.sleep(0.05)
            self.longest_s = max(self.longest_s, time.monotonic() - before - 0.05)


class Stage:
    def __init__(self, home, store, mix="few", lie=None):
        self.home, self.store, self.mix, self.lie = home, store, mix, lie
        self.folder = Path(os.environ.get("TMPDIR") or home) / f"judge-{store}-{os.getpid()}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.pool, self.checker, self.pulse = ThreadPoolExecutor(AT_ONCE[mix]), Judge(CHECKER), Pulse()
        self.first_found, self.last, self.findings = None, None, Counter()
        self.sums, self.began = Counter(), time.monotonic()
        self.world, self.opened_at = None, 0
        self.ready()

    def ready(self):
        """A world, if there is none."""
        if self.world and judge_run.STEPS["steps"] - self.opened_at > WORLD_STEPS:
            self.close()
        if self.world is None:
            self.open()
        self.pulse.longest_s = 0

    def open(self):
        self.tool, self.opened_at = Tool(), judge_run.STEPS["steps"]
        tool, front = self.tool, None
        if self.lie:
            tool, front = self.lie.before_tool(self.tool.listen()), self.lie.before_gateway
        # Hypothesis seeds the usual generator, which would give the same name again.
        folder = self.folder / f"world-{random.SystemRandom().randrange(10**9)}"
        folder.mkdir()
        self.world = STORES[self.store](folder, tool, front)
        if self.lie:
            self.lie.world = self.world
            for gateway in self.world.gateways:
                gateway.lie = self.lie

    def close(self):
        if self.world:
            self.world.stop()
            self.tool.stop()
        # Also those of a world that was not finished.
        end_all()
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
        if isinstance(error, Broken) and self.pulse.longest_s > MARGIN_S / 2:
            error = Failed(f"this machine stood still for {self.pulse.longest_s:.1f} s: {error}")
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
                max_examples=1, stateful_step_count=STEPS_OF[self.mix], deadline=None, database=None,
                suppress_health_check=list(HealthCheck), verbosity=Verbosity.normal, print_blob=False,
                phases=[Phase.generate, Phase.shrink] if SHRINK_S else [Phase.generate],
            )
            try:
                run_state_machine_as_test(Timed, settings=how)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                why = self.last[2] if self.last else error
                if not isinstance(why, NOT_JUDGED):
                    self.report(error)
                    return False
                self.sums["not judged"] += 1
                print(f"a run could not be judged: {str(why)[:300]}", flush=True)
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

    def stop(self):
        self.close()
        self.checker.stop()


def replay(home, file):
    store, script = json.loads(Path(file).read_text())
    stage = Stage(home, store, "many")
    run = Steps(stage.world, stage.tool, stage.pool)
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
        stage.stop()
