"""The generators of scripts/judge: state machines of hypothesis, which find steps that break the promise and shrink them.

`few` gives each kind of trouble the same share of thirty steps, most of which wait for a process. In `many` the steps are requests
that go on beside each other; each kind of trouble is rare, and a run is longer.
"""

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import judge_run
from judge_gateways import REMOTE, VARIANTS
from judge_run import PAUSED
from judge_steps import CLOCKS_S, POINTS, SLOW_S, Steps
from judge_tool import BEHAVIOURS

small = st.integers(0, 7)
tools = st.sampled_from(["hold", "order", "probe", "retry", "plain", "veiled", "strict", "api", "zip", "remote", "distant", "lock"])
behaviours = st.lists(st.sampled_from(BEHAVIOURS), max_size=2)
session = st.one_of(st.none(), st.integers(0, 1))
fencing = st.sampled_from([None, "newest", "old"])
end = st.sampled_from(["abort", "abort", "complete"])
# In `many`, what takes the time of a hundred requests may be chosen once in so many steps.
RARE = 25
waits = st.sampled_from([False] * 9 + [True])
# The same in one choice, as far as that can be: choices cost more than requests.
some = st.integers(0, 3)
newest_first = st.sampled_from([-1, -2, -3, -5, -8, -13, -21, -55, -144])
QUICK = [what for what in BEHAVIOURS if what != "late"]
one_in_two = st.sampled_from([[]] * 12 + [[what] for what in QUICK] + [["late"]] + [[a, b] for a in QUICK for b in QUICK if a == b])
# What only an MCP server does, or means otherwise.
of_remote = st.sampled_from([["no-session-404"], ["forgets"], ["refuse-after"], ["lost"], ["refuse-404", "no-session-404"]])

gateway_and_intent = {"gateway": some, "intent": newest_first}
ACTS = {name: st.fixed_dictionaries(values) for name, values in {
    "reload": {"gateway": some, "variant": st.integers(0, len(VARIANTS) - 1)},
    "pause": {"gateway": some, "tool": st.sampled_from(PAUSED)},
    "settle": {"wait": st.just(False)},
    "freeze": {"gateway": some, "behaviours": st.just([])},
    "erase": {"gateway": some, "user": some, "intent": newest_first, "waits": st.just(False)},
    "cut": {**gateway_and_intent, "which": st.sampled_from(["tool", "store"]), "held": st.booleans(), "tool": tools, "waits": st.just(False)},
}.items()}
TROUBLE = {name: st.fixed_dictionaries(values) for name, values in {
    "kill": {**gateway_and_intent, "which": st.booleans(), "after_ms": st.sampled_from([0, 1, 4, 20]), "tool": tools},
    "crash": {"gateway": some, "point": st.sampled_from(POINTS), "tool": tools, "behaviours": one_in_two},
    "stop": {**gateway_and_intent, "long": st.just(False)},
    "clock": {"gateway": some, "seconds": st.sampled_from(CLOCKS_S)},
    "back_up": {"intent": newest_first},
    "restore": {"intent": newest_first},
    "flush": {"intent": newest_first},
    "store": {"what": st.sampled_from(["kill", "stop"])},
    "move": {},
    "fail_over": {"intent": newest_first},
    "slow_disk": {**gateway_and_intent, "seconds": st.sampled_from(SLOW_S), "one_in": st.sampled_from([1, 4]), "tool": tools, "waits": st.just(False)},
}.items()}
# What a store must be able to do for that.
NEEDS = {"back_up": "copy", "restore": "copy", "flush": "empty", "store": "kill", "fail_over": "fail over", "slow_disk": "slow disk", "move": "move"}


def every(steps):
    """Only once in so many steps a rule may be chosen."""
    return precondition(lambda self: len(self.script) % steps == steps - 1)


def can(trouble):
    return precondition(lambda self: trouble in self.stage.world.trouble)


def machine(stage):
    """The machine over a stage: the world, its tool, its judge, and where what is found goes."""

    class OverStage(MACHINES[stage.mix]):
        def __init__(self):
            super().__init__(stage)

    return OverStage


class Gateways(RuleBasedStateMachine):
    def __init__(self, stage):
        super().__init__()
        stage.ready()
        self.stage, self.script, self.is_broken = stage, [], False
        self.run = Steps(stage.world, stage.tool, stage.pool)

    def step(self, name, **values):
        judge_run.STEPS["steps"] += 1
        judge_run.STEPS[name] += 1
        self.script.append([name, values])
        try:
            self.run.revive()
            getattr(self.run, name)(**values)
        except Exception as error:
            self.is_broken = True
            self.stage.found(self.script, self.run, error)
            raise

    @initialize(simplest=st.sampled_from([True] + [False] * 999), tool=tools, behaviours=behaviours)
    def first(self, simplest, tool, behaviours):
        # Hypothesis begins with the simplest of all runs, each time: the same rule again and again.
        assume(not simplest)
        self.step("arrive", tool=tool, gateway=0, route=0, behaviours=behaviours)

    def in_session(self, session, **values):
        self.step("arrive", tool="hold", route=0, session=f"{self.run.name}-{session or 0}", **values)

    def back_up_and_go_on(self, again):
        self.step("back_up")
        # A copy that nothing is newer than shows nothing.
        self.step("again", intent=again, gateway=again, route=0)

    def teardown(self):
        if self.script:
            self.stage.end(self.script, self.run, self.is_broken)


class Few(Gateways):
    @rule(tool=tools, gateway=small, route=small, behaviours=behaviours)
    def arrive(self, **values):
        self.step("arrive", **values)

    @rule(gateway=small, behaviours=behaviours, session=session, fencing=fencing)
    def arrive_in_session(self, **values):
        self.in_session(**values)

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

    @rule(gateway=small, point=st.sampled_from(POINTS), tool=tools, behaviours=behaviours)
    def crash(self, **values):
        self.step("crash", **values)

    @rule(gateway=small, long=st.sampled_from([False, False, False, True]), intent=small)
    def stop(self, **values):
        self.step("stop", **values)

    @rule(gateway=small, seconds=st.sampled_from(CLOCKS_S))
    def clock(self, **values):
        self.step("clock", **values)

    @rule(gateway=small, which=st.sampled_from(["tool", "store"]), held=st.booleans(), intent=small, tool=tools)
    def cut(self, **values):
        self.step("cut", **values)

    @rule(gateway=small, variant=st.integers(0, len(VARIANTS) - 1))
    def reload(self, **values):
        self.step("reload", **values)

    @rule(gateway=small, tool=st.sampled_from(PAUSED))
    def pause(self, **values):
        self.step("pause", **values)

    @rule(gateway=small, behaviours=behaviours)
    def freeze(self, **values):
        self.step("freeze", **values)

    @rule(gateway=small, user=small, intent=small)
    def erase(self, **values):
        self.step("erase", **values)

    @can("move")
    @rule()
    def move(self):
        self.step("move")

    @rule(wait=st.sampled_from([False, False, True]))
    def settle(self, **values):
        self.step("settle", **values)

    @rule(gateway=small, tools=st.integers(1, 3), behaviours=behaviours, undo=behaviours, end=end, kill=st.booleans())
    def saga(self, **values):
        self.step("saga", **values)

    @can("copy")
    @rule(again=small)
    def back_up(self, again):
        self.back_up_and_go_on(again)

    @precondition(lambda self: self.run.copied is not None and self.stage.world.has_copy)
    @rule(intent=small)
    def restore(self, **values):
        self.step("restore", **values)

    @can("empty")
    @rule(intent=small)
    def flush(self, **values):
        self.step("flush", **values)

    @can("kill")
    @rule(what=st.sampled_from(["kill", "stop"]))
    def store(self, **values):
        self.step("store", **values)

    @can("fail over")
    @rule(intent=small)
    def fail_over(self, **values):
        self.step("fail_over", **values)

    @can("slow disk")
    @rule(seconds=st.sampled_from(SLOW_S), one_in=st.sampled_from([1, 4]), gateway=small, tool=tools, intent=small)
    def slow_disk(self, **values):
        self.step("slow_disk", **values)


class Many(Gateways):
    @rule(tool=tools, gateway=some, route=some, behaviours=one_in_two, waits=waits)
    def arrive(self, **values):
        self.step("arrive", **values)

    @rule(gateway=some, behaviours=one_in_two, session=st.integers(0, 1), fencing=fencing)
    def arrive_in_session(self, **values):
        self.in_session(waits=False, **values)

    @every(4)
    @rule(tool=st.sampled_from(REMOTE), gateway=some, route=some, behaviours=of_remote)
    def arrive_at_a_server(self, **values):
        self.step("arrive", waits=False, **values)

    @rule(intent=newest_first, gateway=some, route=some, times=st.integers(1, 3), waits=waits)
    def again(self, **values):
        self.step("again", **values)

    @rule(intent=newest_first, gateway=some, route=some, waits=waits)
    def again_by_another_route(self, **values):
        self.step("again", times=1, **values)

    @rule(intent=newest_first, gateway=some, route=some, variant=st.sampled_from([1, 0]))
    def again_with_other_arguments(self, **values):
        self.step("again", times=1, waits=False, **values)

    @every(2)
    @rule(tool=tools, count=st.integers(2, 4), gateway=some, behaviours=one_in_two, session=st.integers(0, 1))
    def crowd(self, **values):
        self.step("crowd", waits=False, **values)

    @every(5)
    @rule(gateway=some, tools=st.integers(1, 3), behaviours=one_in_two, undo=one_in_two, end=end)
    def saga(self, **values):
        self.step("saga", kill=False, waits=False, **values)

    @every(3)
    @rule(data=st.data())
    def act(self, data):
        """What an operator does, or a network."""
        name = data.draw(st.sampled_from(sorted(ACTS)))
        self.step(name, **data.draw(ACTS[name]))

    @every(RARE)
    @rule(data=st.data())
    def trouble(self, data):
        can = [name for name in sorted(TROUBLE) if NEEDS.get(name, "") in ("", *self.stage.world.trouble)]
        if self.run.copied is None or not self.stage.world.has_copy:
            can = [name for name in can if name != "restore"]
        name = data.draw(st.sampled_from(can))
        values = data.draw(TROUBLE[name])
        if name == "back_up":
            self.back_up_and_go_on(values["intent"])
        else:
            self.step(name, **values)


MACHINES = {"few": Few, "many": Many}
