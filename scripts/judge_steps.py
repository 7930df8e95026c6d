"""The steps of a run. Each takes plain data, so that a script of steps can be printed and run again.

With `waits=False` the requests of a step go on beside the next steps.
"""

import random
import signal
import time

from judge_gateways import LEASE_S, VARIANTS
from judge_loss import Losses
from judge_promise import Broken
from judge_run import SEEN

POINTS = (
    "after_claim", "before_first_byte", "after_last_byte", "after_answer", "before_completion", "after_completion",
    "before_reply", "in_recovery", "in_recheck", "in_probe", "saga_claimed", "saga_joined", "saga_marked", "saga_undone",
    "saga_noted", "saga_compensated", "saga_taken", "saga_closed",
)
CLOCKS_S = (-3600, -30, -3, 0.7, 60, 1500)
# More than a clock may jump unnoticed, and how long the gateways over one store may take to notice it.
JUMP_S, NOTICED_S = 5, 3
# How long a line is cut or held: less than the margin of a lease.
CUT_S = 0.2
# How much longer a sync takes on a slow disk, and for how long the disk is slow. The longest outlasts a lease.
SLOW_S = (0.01, 0.1, 0.5, 2.2)
SLOW_FOR_S = 0.6


class Steps(Losses):
    def arrive(self, tool, gateway, route, behaviours, session=None, fencing=None, waits=True):
        """A new intent, and its first request."""
        intent = self.intent(tool, session)
        self.tool.plan(intent.name, behaviours)
        self.begin([self.pool.submit(self.ask, intent, gateway, route, 0, fencing)], waits)

    def again(self, intent, gateway, route, times=1, variant=0, waits=True):
        """The same intent once more, perhaps several times at once, by another route, key or gateway; or other arguments."""
        if not self.intents:
            return
        intent = self.intents[intent % len(self.intents)]
        self.begin([self.pool.submit(self.ask, intent, gateway + n, route + n, variant) for n in range(times)], waits)

    def crowd(self, tool, count, gateway, behaviours, session=None, waits=True):
        """Several new intents at once; for `lock` all in one session."""
        session = f"{self.name}-{session or 0}"
        intents = [self.intent(tool, session if n == 0 or tool in ("lock", "hold") else None) for n in range(count)]
        for intent in intents:
            self.tool.plan(intent.name, behaviours)
        self.begin([self.pool.submit(self.ask, intent, gateway + n, n) for n, intent in enumerate(intents)], waits)

    def kill(self, gateway, which, after_ms, intent, tool):
        """A gateway is killed, or stopped in good order, while it is asked."""
        gateway = self.gateway(gateway)
        jobs = [self.pool.submit(self.ask, self.intent(tool), self.index(gateway), n) for n in range(2)]
        if self.intents:
            jobs.append(self.pool.submit(self.ask, self.intents[intent % len(self.intents)], self.index(gateway), 0))
        time.sleep(after_ms / 1000)
        gateway.restart(signal.SIGKILL if which else signal.SIGTERM)
        self.gather(jobs)
        self.until_ready()

    def crash(self, gateway, point, tool, behaviours):
        """A gateway ends at a point of its code, and is started again."""
        gateway = self.gateway(gateway)
        gateway.restart(signal.SIGKILL, f"{point}=1*return")
        self.until_ready(but_down=gateway)
        intents = [self.intent(tool) for _ in range(2)]
        for intent in intents:
            self.tool.plan(intent.name, behaviours)
            self.ask(intent, self.index(gateway), 0)
        if not gateway.is_up():
            SEEN[f"crashes at {point}"] += 1
        self.revive()
        self.again(-1, 0, 0)

    def stop(self, gateway, long, intent):
        """A gateway is stopped (SIGSTOP), for longer than a lease or shorter, and goes on."""
        gateway = self.gateway(gateway)
        jobs = [self.pool.submit(self.ask, self.intent("hold"), self.index(gateway), 0, timeout=1)]
        time.sleep(random.choice((0, 0.002, 0.01)))
        gateway.signal(signal.SIGSTOP)
        try:
            until = time.monotonic() + (LEASE_S + 0.4 if long else 0.3)
            if len(self.world.gateways) > 1:
                for n in range(2):
                    self.again(intent if n else -1, self.index(gateway) + 1, n)
            time.sleep(max(0, until - time.monotonic()))
        finally:
            gateway.signal(signal.SIGCONT)
        self.gather(jobs)

    def clock(self, gateway, seconds):
        """The clock of a gateway is set, until the end or the next time.

        Not while a call is at the tool: here a lease has less margin (MARGIN_S) than a clock may jump unnoticed.
        """
        gateway = self.gateway(gateway)
        self.join()
        self.idle()
        if gateway.machine:
            gateway.machine.set(wall_ns=int(seconds * 10**9))
            gateway.was_set = True
            # Until it looks at the clock of its store again its time is up to five seconds ahead, and here a lease has one.
            until = time.monotonic() + NOTICED_S
            while seconds > JUMP_S and len(self.world.gateways) > 1 and gateway.is_ready() and time.monotonic() < until:
                time.sleep(0.02)

    def cut(self, gateway, which, held, intent, tool, waits=True):
        """The line between a gateway and the tool or the store is cut, or holds what is sent for a moment."""
        at = gateway % len(self.world.gateways)
        line = self.world.lines[at] if self.world.lines and which == "store" else self.gateway(gateway).tool_line
        jobs = [self.pool.submit(self.ask, self.intent(tool), at, n) for n in range(2)]
        if held:
            line.is_held.clear()
        else:
            line.cut()
        jobs.append(self.pool.submit(self.heal_later, line))
        self.again(intent, at, 0, times=2, waits=waits)
        self.begin(jobs, waits)

    def heal_later(self, line):
        time.sleep(CUT_S)
        line.heal()

    def reload(self, gateway, variant):
        """A gateway takes another configuration, while it is asked."""
        gateway = self.gateway(gateway)
        gateway.write(VARIANTS[variant])
        gateway.signal(signal.SIGHUP)

    def pause(self, gateway, tool):
        """A tool is paused, or goes on."""
        is_paused = tool in self.paused
        act = "resume" if is_paused else "pause"
        if self.gateway(gateway).ask("POST", f"/v1/tools/{tool}/{act}", {"reason": "a judge"})[0] == 200:
            self.paused ^= {tool}

    def freeze(self, gateway, behaviours):
        """An operator freezes a session. Nothing runs in it until it is thawed."""
        session, at = f"{self.name}-frozen-{len(self.intents)}", self.gateway(gateway)
        act = lambda name: at.ask("POST", f"/v1/sessions/{session}/{name}", {"reason": "a judge"})[0] == 200
        if not act("freeze"):
            return
        SEEN["freezes"] += 1
        intents = [self.intent("hold", session) for _ in self.world.gateways]
        for intent in intents:
            self.tool.plan(intent.name, behaviours)
        self.gather([self.pool.submit(self.ask, intent, n, n % 2) for n, intent in enumerate(intents)])
        if made := [intent.name for intent in intents if self.promise.made(intent.name)]:
            raise Broken(f"executed in a frozen session: {made}")
        act("thaw")

    def erase(self, gateway, user, intent, waits=True):
        """The data of a user are erased, while one of its calls is asked for. Nothing of it runs again."""
        status, _, said = self.gateway(gateway).ask("DELETE", f"/v1/users/{self.user(user)}")
        if status == 200:
            SEEN["erased"] += said["erased"]
        self.again(intent, gateway, 0, times=2, waits=waits)

    def move(self):
        """A gateway is stopped in good order, and the log beside its file is lost."""
        if "move" not in self.world.trouble:
            return
        self.quiet()
        self.world.move()
        self.until_ready()

    def settle(self, wait):
        """An operator settles what is unknown as the tool's books show it, after the lease."""
        if wait:
            time.sleep(LEASE_S + 0.3)
        for intent in self.intents:
            if intent.call_id and intent.is_open and time.monotonic() - intent.asked_at > LEASE_S + 0.2:
                self.settle_one(intent)

    def settle_one(self, intent):
        gateway = self.gateway(0)
        status, _, call = gateway.ask("GET", f"/v1/calls/{intent.call_id}")
        if status == 200 and call.get("state") != "unknown":
            intent.is_open = False
        if status != 200 or call.get("state") != "unknown" or self.tool.at_work:
            return
        made = self.promise.made(intent.name)
        as_it_was = {"as": "succeeded", "result": self.as_result(intent, made[-1])} if made else {"as": "failed"}
        status, _, said = gateway.ask("POST", f"/v1/calls/{intent.call_id}/resolve", {**as_it_was, "reason": "the tool's books"})
        SEEN[f"settled as {as_it_was['as']}: {status}"] += 1

    def saga(self, gateway, tools, behaviours, undo, end, kill, waits=True):
        """Calls one after the other, which stay or are undone as a whole."""
        self.saga_count += 1
        name = f"{self.name}-saga-{self.saga_count}"
        self.sagas[name] = end
        kill &= waits
        self.begin([self.pool.submit(self.whole_saga, name, gateway, tools, behaviours, undo, end, kill)], waits)
        if kill:
            self.until_ready()

    def whole_saga(self, name, gateway, tools, behaviours, undo, end, kill):
        known = []
        for n in range(tools):
            intent = self.intent("book", saga=name)
            self.tool.plan(intent.name, behaviours if n == tools - 1 else [])
            self.tool.plan(f"undo-{intent.name}", undo if n == 0 else [])
            answer = self.ask(intent, gateway + n, 0)
            for earlier in known:
                self.after.setdefault(earlier, []).append(intent.name)
            if answer.is_done or answer.is_unknown:
                known.append(intent.name)
        begun = self.history.begin(end, f"saga/{name}")
        at = self.gateway(gateway + tools)
        request = ("POST", f"/v1/sagas/{name}/{end}", {"reason": "a judge"})
        if kill:
            job = self.pool.submit(at.ask, *request)
            time.sleep(random.choice((0.001, 0.005, 0.03)))
            at.restart()
            status = job.result()[0]
        else:
            status = at.ask(*request)[0]
        # Only a 200 says that it was so, and only a refusal of the state that it was not.
        self.history.end(begun, "ok" if status == 200 else "fail" if status in (404, 409) else "info")
        with self.lock:
            SEEN[f"sagas {end}: {status}"] += 1

    def store(self, what):
        """A store is killed and comes back, or stops for a while."""
        if what not in self.world.trouble:
            return
        jobs = [self.pool.submit(self.ask, self.intent("hold"), n, n) for n in range(3)]
        if what == "kill":
            self.world.kill()
        else:
            self.world.stop_a_while()
        self.gather(jobs)
        self.until_ready()

    def slow_disk(self, seconds, one_in, gateway, tool, intent, waits=True):
        """The disk under the store is slow for a moment. One sync may take longer than a call."""
        if "slow disk" not in self.world.trouble:
            return
        self.world.slow_disk(seconds, one_in)
        jobs = [self.pool.submit(self.ask, self.intent(tool), gateway + n, n) for n in range(3)]
        jobs.append(self.pool.submit(self.quicken_later))
        self.again(intent, gateway, 0, times=2, waits=waits)
        self.begin(jobs, waits)

    def quicken_later(self):
        time.sleep(SLOW_FOR_S)
        self.world.slow_disk(0, 0)
        with self.lock:
            SEEN["slow syncs"] += self.world.disk.get("slow_syncs")
            self.world.disk.set(slow_syncs=0)
