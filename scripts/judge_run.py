"""One run of scripts/judge: intents, what happens to them, and the history of it. Each step takes plain data, so that a script of
steps can be printed and run again."""

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from faults_world import Failed, wait_for
from judge_ask import ROUTES, Intent, ask
from judge_gateways import LEASE_S, VARIANTS
from judge_history import History, now
from judge_promise import BY_MODEL, Broken, Promise

POINTS = (
    "after_claim", "before_first_byte", "after_last_byte", "after_answer", "before_completion", "after_completion",
    "before_reply", "in_recovery", "in_recheck", "in_probe", "saga_claimed", "saga_joined", "saga_marked", "saga_undone",
    "saga_noted", "saga_compensated", "saga_taken", "saga_closed",
)
PAUSED = ("hold", "order", "retry")
CLOCKS_S = (-3600, -30, 3, 60, 1500)
LOOK_S = 2
STEPS = Counter()
SEEN = Counter()
runs = 0


class Run:
    def __init__(self, world, tool, pool):
        global runs
        runs += 1
        self.world, self.tool, self.pool, self.name = world, tool, pool, f"{random.SystemRandom().randrange(16**6):06x}-{runs}"
        self.history, self.intents, self.sagas, self.paused = History(), [], {}, set()
        self.after, self.copied, self.newest, self.lock = {}, None, {}, threading.Lock()
        self.set_at, self.saga_count = 0, 0
        tool.history = self.history
        self.promise = Promise(lambda intent: list(tool.books[intent]))

    # --- steps ------------------------------------------------------------------------------------------

    def arrive(self, tool, gateway, route, behaviours, session=None, fencing=None):
        """A new intent, and its first request."""
        intent = self.intent(tool, session)
        self.tool.plan(intent.name, behaviours)
        self.ask(intent, gateway, route, fencing=fencing)

    def again(self, intent, gateway, route, times=1, variant=0):
        """The same intent once more, perhaps several times at once, by another route, key or gateway; or other arguments."""
        if not self.intents:
            return
        intent = self.intents[intent % len(self.intents)]
        jobs = [self.pool.submit(self.ask, intent, gateway + n, route + n, variant) for n in range(times)]
        self.gather(jobs)

    def crowd(self, tool, count, gateway, behaviours, session=None):
        """Several new intents at once; for `lock` all in one session."""
        session = f"{self.name}-{session or 0}"
        intents = [self.intent(tool, session if n == 0 or tool in ("lock", "hold") else None) for n in range(count)]
        for intent in intents:
            self.tool.plan(intent.name, behaviours)
        self.gather([self.pool.submit(self.ask, intent, gateway + n, n) for n, intent in enumerate(intents)])

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
        self.idle()
        if gateway.machine:
            gateway.machine.set(wall_ns=seconds * 10**9)
            gateway.was_set = True
            self.set_at = time.monotonic()
            time.sleep(0.05)

    def cut(self, gateway, which, held, intent, tool):
        """The line between a gateway and the tool or the store is cut, or holds what is sent for a moment."""
        at = gateway % len(self.world.gateways)
        lines = getattr(self.world, "lines", None)
        line = lines[at] if lines and which == "store" else self.gateway(gateway).tool_line
        jobs = [self.pool.submit(self.ask, self.intent(tool), at, n) for n in range(2)]
        if held:
            line.is_held.clear()
        else:
            line.cut()
        self.again(intent, at, 0, times=2)
        time.sleep(0.2)
        line.heal()
        self.gather(jobs)

    def reload(self, gateway, variant):
        gateway = self.gateway(gateway)
        gateway.write(VARIANTS[variant])
        gateway.signal(signal.SIGHUP)
        time.sleep(0.03)

    def pause(self, gateway, tool):
        """A tool is paused, or goes on."""
        is_paused = tool in self.paused
        act = "resume" if is_paused else "pause"
        if self.gateway(gateway).ask("POST", f"/v1/tools/{tool}/{act}", {"reason": "a judge"})[0] == 200:
            self.paused ^= {tool}

    def settle(self, wait):
        """An operator settles what is unknown as the tool's books show it, after the lease."""
        if wait:
            time.sleep(LEASE_S + 0.3)
        for intent in self.intents:
            if intent.call_id and time.monotonic() - intent.asked_at > LEASE_S + 0.2:
                self.settle_one(intent)

    def settle_one(self, intent):
        gateway = self.gateway(0)
        status, _, call = gateway.ask("GET", f"/v1/calls/{intent.call_id}")
        if status != 200 or call.get("state") != "unknown" or self.tool.at_work:
            return
        made = self.promise.made(intent.name)
        as_it_was = {"as": "succeeded", "result": self.as_result(intent, made[-1])} if made else {"as": "failed"}
        status, _, said = gateway.ask("POST", f"/v1/calls/{intent.call_id}/resolve", {**as_it_was, "reason": "the tool's books"})
        SEEN[f"settled as {as_it_was['as']}: {status}"] += 1

    def saga(self, gateway, tools, behaviours, undo, end, kill):
        """Calls one after the other, which are kept or undone as a whole."""
        self.saga_count += 1
        name = f"{self.name}-saga-{self.saga_count}"
        self.sagas[name], known = end, []
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
        job = self.pool.submit(at.ask, "POST", f"/v1/sagas/{name}/{end}", {"reason": "a judge"})
        if kill:
            time.sleep(random.choice((0.001, 0.005, 0.03)))
            at.restart()
        status = job.result()[0]
        # Only a 200 says that it was so, and only a refusal of the state that it was not.
        self.history.end(begun, "ok" if status == 200 else "fail" if status in (404, 409) else "info")
        self.until_ready()
        SEEN[f"sagas {end}: {status}"] += 1

    def back_up(self):
        """The data as it is now are copied."""
        self.quiet()
        self.copied, self.copied_at = set(self.promise.told), now()
        self.world.copy()
        self.until_ready()

    def restore(self, intent):
        """An older copy is put back. Nothing may run until an operator accepts the loss."""
        if self.copied is None:
            return
        self.quiet()
        set_back = self.set_back()
        self.world.put_back()
        self.accept(intent, set_back)

    def flush(self, intent):
        """A Redis is emptied."""
        if self.world.name != "redis":
            return
        self.quiet()
        self.copied, self.copied_at = set(), 0
        set_back = self.set_back()
        self.world.redis.ask("FLUSHALL")
        self.accept(intent, set_back)

    def store(self, what):
        """Redis is killed and comes back, or stops for a while."""
        if self.world.name != "redis":
            return
        redis = self.world.redis
        jobs = [self.pool.submit(self.ask, self.intent("hold"), n, n) for n in range(3)]
        if what == "kill":
            redis.kill()
            redis.start().up()
        else:
            redis.signal(signal.SIGSTOP)
            time.sleep(1.3)
            redis.signal(signal.SIGCONT)
        self.gather(jobs)
        self.until_ready()

    # --- what they are made of ---------------------------------------------------------------------------

    def gateway(self, at):
        return self.world.gateways[at % len(self.world.gateways)]

    def index(self, gateway):
        return self.world.gateways.index(gateway)

    def intent(self, tool, session=None, saga=None):
        # Over Redis a gateway goes by a clock that was set back until it next looks (docs/evidence/judge.md): its locks are over at once.
        if tool == "lock" and self.world.name == "redis" and time.monotonic() - self.set_at < LOOK_S:
            tool = "hold"
        with self.lock:
            name = f"{self.name}-{len(self.intents)}"
            args = {"intent": name}
            if tool == "order":
                args["business"] = f"B-{name}"
            if tool == "lock":
                session = session or f"{self.name}-0"
                args |= {"lock": session, "sent": now()}
            if saga:
                args |= {"saga": saga, "undo": f"undo-{name}"}
            intent = Intent(name, tool, args, session if tool in ("lock", "hold") else None, saga)
            self.intents.append(intent)
        return intent

    def ask(self, intent, gateway, route, variant=0, fencing=None, timeout=5):
        """One request, and what its answer means for the promise and for the history."""
        STEPS["requests"] += 1
        gateway, routes = self.gateway(gateway), ROUTES[intent.tool]
        # Without a key other arguments are another intent.
        variant = 0 if intent.tool == "plain" else variant
        route = routes[route % len(routes)]
        if fencing == "newest":
            fencing = self.newest.get(intent.session)
        elif fencing == "old":
            fencing = self.newest.get(intent.session, 1) - 1
        at_first, newest, begun_at = self.promise.asked(intent.name), self.newest.get(intent.session, 0), now()
        begun = self.history.begin("ask", f"call/{intent.name}", process=gateway.name, at=begun_at)
        answer = ask(gateway, intent, route, variant, fencing, timeout)
        intent.asked_at = time.monotonic()
        intent.call_id = answer.call_id or intent.call_id
        SEEN[f"{'mcp' if route.startswith('mcp') else route if route == 'proxy' else 'http'}: {answer.kind}"] += 1
        if answer.is_done and answer.replayed:
            SEEN["replays"] += 1
        # Over MCP a request here names no session.
        in_session = intent.session is not None and not route.startswith("mcp")
        self.note(intent, answer, begun, begun_at, fencing, in_session)
        if BY_MODEL:
            self.hold_to(intent, answer, at_first, newest, variant, fencing, in_session)
        return answer

    def hold_to(self, intent, answer, at_first, newest, variant, fencing, in_session):
        """What can be said at once, without the history."""
        whole = answer.whole or {}
        if whole and whole.get("intent") != intent.name:
            raise Broken(f"{intent.name} got the result of another intent: {whole}")
        # A tool that deduplicates answers a key that the store has lost by what it knows.
        is_tools = intent.tool == "retry" and intent.name in self.promise.forgotten
        if whole and whole.get("variant", 0) != variant and not is_tools:
            raise Broken(f"{intent.name}, asked with other arguments, got {whole}")
        if self.tool.held_twice:
            raise Broken(f"two calls of an exclusive session were at the tool at once: {self.tool.held_twice}")
        if in_session and answer.is_done and not answer.replayed and answer.fencing:
            if not fencing and answer.fencing <= newest:
                raise Broken(f"{intent.name} got the token {answer.fencing}, and {newest} was given out before")
            self.compare_token(intent, answer.fencing)
        with self.lock:
            self.promise.answered(intent.name, answer, at_first)

    def note(self, intent, answer, begun, begun_at, fencing, in_session):
        """The answer, as the history has it."""
        if answer.is_done:
            self.history.end(begun, "ok", answer.result)
        elif answer.is_none:
            self.history.end(begun, "fail")
        else:
            self.history.end(begun, "info", answer.kind)
        if answer.is_unknown:
            self.history.point("unsure", f"call/{intent.name}", begin=begun_at)
        token, of = f"token/{intent.session}", answer.fencing
        if in_session and answer.is_done and not answer.replayed and of:
            asked, name = (fencing, "bring") if fencing else (None, "draw")
            self.history.point(name, token, asked, of, begin=begun_at)
            self.newest[intent.session] = max(of, self.newest.get(intent.session, 0))
        elif answer.slug == "stale-fencing-token" and fencing:
            begun = self.history.begin("bring", token, fencing, begun_at)
            self.history.end(begun, "fail")
        elif in_session and not fencing and not answer.is_done:
            # It may have drawn one that nobody has seen.
            self.history.begin("draw", token, None, begun_at)

    def compare_token(self, intent, told):
        for effect in self.promise.made(intent.name):
            if effect["fencing"] != str(told):
                raise Broken(f"{intent.name}: told the token {told}, and the tool got {effect['fencing']}")

    def as_result(self, intent, effect):
        """What an operator gives as the result of a call that the books have."""
        result = {name: value for name, value in effect.items() if name in ("effect", "intent", "variant")}
        return {"status": 200, "headers": [], "json": result} if intent.tool == "api" else result

    def gather(self, jobs):
        """Waits for all, and then says what the first has found."""
        errors = [job.exception() for job in jobs]
        for error in errors:
            if error:
                raise error

    def idle(self):
        wait_for("the tool is idle", lambda: not self.tool.at_work, 10)

    def quiet(self):
        self.revive()
        self.idle()
        self.until_ready()

    def accept(self, intent, set_back):
        """Checks that nothing runs while data are missing, accepts the loss, and notes what may be forgotten now."""
        gateway = self.gateway(0)
        reasons = lambda: str(gateway.ask("GET", "/readyz")[2])
        made = self.tool.made
        is_newer = [intent.name for intent in self.intents if intent.name in self.promise.told and self.is_newer(intent)]
        self.again(intent, 1, 0)
        until = time.monotonic() + 3
        while "lost_data" not in reasons() and time.monotonic() < until:
            time.sleep(0.05)
        if "lost_data" not in reasons():
            if is_newer:
                raise Broken(f"data were lost, which no gateway has noticed, with {is_newer}")
            self.until_ready()
            # The data are those of before: nothing was written since.
            self.promise.is_older = False
            del self.history.events[slice(*set_back)]
            return
        SEEN["losses noticed"] += 1
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
        self.promise.is_older, self.sagas = False, {}
        self.history.events = [event for event in self.history.events if not event["key"].startswith("saga/")]
        # An acceptance that was interrupted is asked for again.
        until = time.monotonic() + 40
        while "lost_data" in reasons():
            SEEN[f"acceptances: {gateway.ask('POST', '/v1/store/accept-loss', {'reason': 'a judge'}, timeout=30)[0]}"] += 1
            if time.monotonic() > until:
                raise Failed(f"the loss cannot be accepted: {reasons()} {gateway.tail()}")
            time.sleep(0.3)
        self.until_ready()

    def is_newer(self, intent):
        """Whether it was executed, by all that is known, after the copy was made."""
        made = self.promise.made(intent.name)
        return intent.name not in self.copied and bool(made) and made[-1]["at"] > self.copied_at

    def set_back(self):
        """The store may have older data from now on. Says where the history has that."""
        before, self.promise.is_older = len(self.history.events), True
        for intent in self.intents:
            if intent.name not in self.copied:
                self.history.point("set back", f"call/{intent.name}")
        return before, len(self.history.events)

    def revive(self):
        for gateway in self.world.gateways:
            if not gateway.is_up():
                gateway.start()

    def until_ready(self, but_down=None):
        for gateway in self.world.gateways:
            until = time.monotonic() + 20
            while not gateway.is_ready():
                if not gateway.is_up():
                    if gateway is but_down:
                        break
                    gateway.start()
                if gateway.machine and gateway.machine.get("wall_ns"):
                    break
                if time.monotonic() > until:
                    raise Failed(f"{gateway.name} does not become ready: {gateway.ask('GET', '/readyz')[2]} {self.world.state()} {gateway.tail()}")
                time.sleep(0.02)

    # --- the end -----------------------------------------------------------------------------------------

    def finish(self):
        """All is well again. Each intent is asked for once more: what was told must be told again."""
        self.idle()
        for gateway in self.world.gateways:
            gateway.signal(signal.SIGCONT)
            gateway.heal()
            # A gateway whose clock was set forward goes by a time of its own until its next start.
            if (gateway.points or gateway.was_set) and gateway.is_up():
                gateway.restart()
            gateway.was_set = False
        self.world.heal()
        self.revive()
        self.until_ready()
        # Also what older data have paused again.
        for tool in PAUSED:
            self.gateway(0).ask("POST", f"/v1/tools/{tool}/resume", {"reason": "a judge"})
        for gateway in self.world.gateways:
            if gateway.variant:
                self.reload(self.index(gateway), 0)
        self.idle()
        self.gather([self.pool.submit(self.last, n, intent) for n, intent in enumerate(self.intents)])
        for name in self.sagas:
            self.look(name)
        for event in self.history.events:
            if event["f"] == "undo" and event["value"]:
                event["value"]["after"] = self.after.get(event["value"]["call"], [])

    def last(self, n, intent):
        until = time.monotonic() + 10
        self.ask(intent, n, n)
        while BY_MODEL and intent.name in self.promise.told and intent.saga is None:
            answer = self.ask(intent, n, n)
            if answer.is_done or answer.slug == "key-reused":
                return
            if time.monotonic() > until:
                raise Broken(f"{intent.name} was told {self.promise.told[intent.name]}, and is told no more: {answer}")
            time.sleep(0.05)

    def look(self, name):
        until = time.monotonic() + 3
        while True:
            begun = self.history.begin("look", f"saga/{name}")
            status, _, view = self.gateway(0).ask("GET", f"/v1/sagas/{name}")
            state = view.get("state") if status == 200 else None
            self.history.end(begun, "ok" if state else "info", state)
            if status == 404 or state in ("completed", "compensated", "stuck") or time.monotonic() > until:
                SEEN[f"sagas {state}"] += 1
                return
            time.sleep(0.05)
