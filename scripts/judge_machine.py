"""The generator of scripts/judge: a state machine of hypothesis, which finds steps that break the promise and shrinks them."""

import json
import sys
import time

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import judge_run
from judge_ask import ROUTES
from judge_gateways import VARIANTS
from judge_promise import Broken
from judge_tool import BEHAVIOURS

small = st.integers(0, 7)
tools = st.sampled_from(["hold", "order", "probe", "retry", "plain", "api", "lock"])
behaviours = st.lists(st.sampled_from(BEHAVIOURS), max_size=2)
session = st.one_of(st.none(), st.integers(0, 1))


def machine(stage):
    """The machine over a stage: the world, its tool, its judge, and where what is found goes."""

    class Gateways(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            stage.ready()
            self.run, self.script, self.is_broken = judge_run.Run(stage.world, stage.tool, stage.pool), [], False

        def step(self, name, **values):
            judge_run.STEPS["steps"] += 1
            judge_run.STEPS[name] += 1
            self.script.append([name, values])
            try:
                self.run.revive()
                getattr(self.run, name)(**values)
            except Exception as error:
                self.is_broken = True
                stage.found(self.script, self.run, error)
                raise

        @initialize(tool=tools, behaviours=behaviours)
        def first(self, tool, behaviours):
            self.step("arrive", tool=tool, gateway=0, route=0, behaviours=behaviours)

        @rule(tool=tools, gateway=small, route=small, behaviours=behaviours)
        def arrive(self, **values):
            self.step("arrive", **values)

        @rule(tool=st.just("hold"), gateway=small, route=st.just(0), behaviours=behaviours, session=session,
              fencing=st.sampled_from([None, "newest", "old"]))
        def arrive_in_session(self, session, **values):
            self.step("arrive", session=f"{self.run.name}-{session or 0}", **values)

        @rule(intent=small, gateway=small, route=small, times=st.integers(1, 5), variant=st.sampled_from([0, 0, 0, 1]))
        def again(self, **values):
            self.step("again", **values)

        # Twice, so that there is more load than trouble.
        @rule(intent=small, gateway=small, route=small, times=st.integers(2, 8))
        def again_at_once(self, **values):
            self.step("again", **values)

        @rule(tool=tools, count=st.integers(2, 6), gateway=small, behaviours=behaviours, session=session)
        def crowd(self, **values):
            self.step("crowd", **values)

        @rule(gateway=small, which=st.booleans(), after_ms=st.sampled_from([0, 1, 2, 4, 8, 20, 100]), intent=small, tool=tools)
        def kill(self, **values):
            self.step("kill", **values)

        @rule(gateway=small, point=st.sampled_from(judge_run.POINTS), tool=tools, behaviours=behaviours)
        def crash(self, **values):
            self.step("crash", **values)

        @rule(gateway=small, long=st.sampled_from([False, False, False, True]), intent=small)
        def stop(self, **values):
            self.step("stop", **values)

        @rule(gateway=small, seconds=st.sampled_from(judge_run.CLOCKS_S))
        def clock(self, **values):
            self.step("clock", **values)

        @rule(gateway=small, which=st.sampled_from(["tool", "store"]), held=st.booleans(), intent=small, tool=tools)
        def cut(self, **values):
            self.step("cut", **values)

        @rule(gateway=small, variant=st.integers(0, len(VARIANTS) - 1))
        def reload(self, **values):
            self.step("reload", **values)

        @rule(gateway=small, tool=st.sampled_from(judge_run.PAUSED))
        def pause(self, **values):
            self.step("pause", **values)

        @rule(wait=st.sampled_from([False, False, True]))
        def settle(self, **values):
            self.step("settle", **values)

        @rule(gateway=small, tools=st.integers(1, 3), behaviours=behaviours, undo=behaviours,
              end=st.sampled_from(["abort", "abort", "complete"]), kill=st.booleans())
        def saga(self, **values):
            self.step("saga", **values)

        @rule(again=small)
        def back_up(self, again):
            self.step("back_up")
            # A copy that nothing is newer than shows nothing.
            self.step("again", intent=again, gateway=again, route=0)

        @precondition(lambda self: self.run.copied is not None)
        @rule(intent=small)
        def restore(self, **values):
            self.step("restore", **values)

        @precondition(lambda self: stage.world.name == "redis")
        @rule(intent=small)
        def flush(self, **values):
            self.step("flush", **values)

        @precondition(lambda self: stage.world.name == "redis")
        @rule(what=st.sampled_from(["kill", "stop"]))
        def store(self, **values):
            self.step("store", **values)

        def teardown(self):
            stage.end(self.script, self.run, self.is_broken)

    return Gateways
