"""The steps of a run in which a store loses data: older files, an emptied Redis, a failover. An operator accepts the loss."""

import time

from faults_world import Failed
from judge_gateways import READY_S
from judge_history import now
from judge_promise import Broken
from judge_run import SEEN, Run

# How long is waited for a loss that must be noticed, and for one that may be none: the data may be those of before.
NOTICE_S, LOOK_S = 15, 3
ACCEPT_S = 60


class Losses(Run):
    def back_up(self):
        """The data as it is now are copied."""
        self.quiet()
        self.copied, self.copied_at = set(self.promise.told), now()
        self.world.copy()
        self.world.has_copy = True
        self.until_ready()

    def restore(self, intent):
        """An older copy is put back. Nothing may run until an operator accepts the loss."""
        if self.copied is None or not self.world.has_copy:
            return
        self.quiet()
        # What a gateway has written last, and it has ended since, others must have written over.
        time.sleep(self.world.notices_s)
        set_back = self.set_back()
        self.world.put_back()
        self.accept(intent, set_back)

    def flush(self, intent):
        """A Redis is emptied."""
        if "empty" not in self.world.trouble:
            return
        self.quiet()
        self.copied, self.copied_at = set(), 0
        set_back = self.set_back()
        self.world.empty()
        self.accept(intent, set_back)

    def fail_over(self, intent):
        """The master is killed and its replica promoted. It may have lost what was never acknowledged, and then an operator is asked."""
        if "fail over" not in self.world.trouble:
            return
        self.quiet()
        self.copied, self.copied_at = set(), 0
        set_back = self.set_back()
        jobs = [self.pool.submit(self.world.fail_over)]
        jobs += [self.pool.submit(self.ask, self.intent("hold"), n, n) for n in range(2)]
        self.gather(jobs)
        self.accept(intent, set_back, must_lose=False)

    def accept(self, intent, set_back, must_lose=True):
        """Checks that nothing runs while data are missing, accepts the loss, and notes what may be forgotten now."""
        gateway = self.gateway(0)
        reasons = lambda: str(gateway.ask("GET", "/readyz")[2])
        made = self.tool.made
        newer = [intent.name for intent in self.intents if intent.name in self.promise.told and self.is_newer(intent)]
        must_lose = must_lose and newer
        self.again(intent, 1, 0)
        if not self.is_noticed(gateway, NOTICE_S if must_lose else LOOK_S):
            if must_lose:
                raise Broken(f"data were lost, which no gateway has noticed, with {newer}: {reasons()}")
            self.until_ready()
            # The data are those of before: nothing was written since.
            self.promise.is_older = False
            self.history.forget(lambda event: event["f"] == "set back" and event["time"] >= set_back)
            return
        SEEN["losses noticed"] += 1
        if self.world.loses_nothing:
            raise Broken(f"a failover that loses nothing counts as a loss: {reasons()}")
        for n in range(2):
            self.again(intent + n, n, n)
        self.ask(self.intent("hold"), 0, 0)
        if self.tool.made != made:
            raise Broken("a call was executed while a loss of data was not accepted")
        # What was told before the copy is not lost. Sagas of a store that went back are an operator's.
        for intent in self.intents:
            if intent.name not in self.copied:
                self.history.point("forget", f"call/{intent.name}")
                self.promise.lost(intent.name)
        for session in self.newest:
            self.history.point("forget", f"token/{session}")
        self.lost_sagas |= {f"saga/{name}" for name in self.sagas}
        self.promise.is_older, self.sagas = False, {}
        # An acceptance that was interrupted is asked for again.
        until = time.monotonic() + ACCEPT_S
        while "lost_data" in reasons():
            SEEN[f"acceptances: {gateway.ask('POST', '/v1/store/accept-loss', {'reason': 'a judge'}, timeout=30)[0]}"] += 1
            if time.monotonic() > until:
                raise Failed(f"the loss cannot be accepted: {reasons()} {gateway.tail()}")
            time.sleep(0.3)
        self.until_ready()

    def is_noticed(self, gateway, patience_s):
        """Whether it says in time that data were lost. A gateway that has just started may need some time to say anything."""
        begin = time.monotonic()
        until = begin + patience_s
        while time.monotonic() < until:
            # It may have come to a crash point.
            self.revive()
            status, _, said = gateway.ask("GET", "/readyz")
            if "lost_data" in str(said):
                return True
            if status == 0 and time.monotonic() < begin + READY_S:
                until = time.monotonic() + patience_s
            time.sleep(0.05)
        return False

    def is_newer(self, intent):
        """Whether it was executed, by all that is known, after the copy was made."""
        made = self.promise.made(intent.name)
        return intent.name not in self.copied and bool(made) and made[-1]["at"] > self.copied_at

    def set_back(self):
        """The store may have older data from now on. Says since when."""
        at, self.promise.is_older = now(), True
        for intent in self.intents:
            if intent.name not in self.copied:
                self.history.point("set back", f"call/{intent.name}")
        return at
