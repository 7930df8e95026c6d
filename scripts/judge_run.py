"""One run of scripts/judge: intents, their requests and answers, and the history of it. Its steps are in judge_loss and judge_steps."""

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, wait

from faults_world import Failed, wait_for
from judge_ask import ROUTES, Intent, ask
from judge_gateways import KEYLESS, READY_S, REMOTE, TENANTS
from judge_history import History, now
from judge_promise import BY_MODEL, Broken, Promise

PAUSED = ("hold", "order", "retry")
# Tools of which the second tenant has intents, too, each with the key of another one's.
SHARED = ("hold", "order", "api", "remote")
USERS = 4
# Requests that are open while the next step is made.
MOST_OPEN = 12
# What was told must be told again within this time, at the end.
LAST_S = 30
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
        self.saga_count, self.lost_sagas, self.open = 0, set(), []
        tool.history, tool.run = self.history, f"{self.name}-"
        self.promise = Promise(lambda intent: list(tool.books[intent]))

    def gateway(self, at):
        return self.world.gateways[at % len(self.world.gateways)]

    def index(self, gateway):
        return self.world.gateways.index(gateway)

    def intent(self, tool, session=None, saga=None):
        with self.lock:
            name = f"{self.name}-{len(self.intents)}"
            args = {"intent": name}
            if tool == "order":
                # Now and then the field is empty, as a model leaves it: such a request is no call.
                args["business"] = "" if len(self.intents) % 8 == 7 else f"B-{name}"
            if tool == "veiled":
                args["card"] = f"4242-{name}"
            if tool == "lock":
                session = session or f"{self.name}-0"
                args |= {"lock": session, "sent": now()}
            if saga:
                args |= {"saga": saga, "undo": f"undo-{name}"}
            session = session if tool in ("lock", "hold") else None
            twin = None
            if tool in SHARED and not session and not saga and args.get("business") != "" and len(self.intents) % 4 == 3:
                twin = next((other for other in reversed(self.intents) if other.tool == tool and other.is_alone and not other.session), None)
            intent = Intent(name, tool, args, session, saga, key=name, user=self.user(len(self.intents)))
            if twin:
                twin.is_alone, intent.is_alone = False, False
                intent.key, intent.tenant = twin.key, TENANTS[1]
                if "business" in args:
                    args["business"] = twin.args["business"]
            if tool in (*KEYLESS, "order"):
                # Where arguments make the key the user counts. Over MCP that is the token's name.
                intent.user = intent.tenant
            # So the tool knows whose a request is.
            args["whose"] = intent.tenant
            self.intents.append(intent)
        return intent

    def user(self, number):
        return f"{self.name}-u{number % USERS}" if number % USERS else TENANTS[0]

    def ask(self, intent, gateway, route, variant=0, fencing=None, timeout=5):
        """One request, and what its answer means for the promise and for the history."""
        gateway, routes = self.gateway(gateway), ROUTES[intent.tool]
        # Without a key other arguments are another intent. Two tenants that share a key never send other ones.
        variant = 0 if intent.tool in (*KEYLESS, "zip") or intent.tenant != TENANTS[0] else variant
        route = routes[route % len(routes)]
        if fencing == "newest":
            fencing = self.newest.get(intent.session)
        elif fencing == "old":
            fencing = self.newest.get(intent.session, 1) - 1
        at_first, newest, begun_at = self.promise.asked(intent.name), self.newest.get(intent.session, 0), now()
        begun = self.history.begin("ask", f"call/{intent.name}", process=gateway.name, at=begun_at)
        answer = ask(gateway, intent, route, variant, fencing, timeout)
        intent.asked_at, intent.is_open = time.monotonic(), not (answer.is_done or answer.is_none)
        intent.call_id = answer.call_id or intent.call_id
        with self.lock:
            STEPS["requests"] += 1
            SEEN[f"{'mcp' if route.startswith('mcp') else 'proxy' if route.startswith('proxy') else 'http'}: {answer.kind}"] += 1
            if answer.is_done and answer.replayed:
                SEEN["replays"] += 1
            if answer.is_done and intent.tool in REMOTE:
                SEEN["remote: done"] += 1
            if answer.is_done and intent.tenant != TENANTS[0]:
                SEEN["second tenant: done"] += 1
        # Over MCP a request here names no session, and a call that came first by MCP is in none.
        in_session = intent.session is not None and not route.startswith("mcp") and self.is_in_session(intent)
        self.note(intent, answer, begun, begun_at, fencing, in_session)
        if BY_MODEL:
            self.hold_to(intent, answer, at_first, newest, variant, fencing, in_session)
        return answer

    def hold_to(self, intent, answer, at_first, newest, variant, fencing, in_session):
        """What can be said at once, without the history."""
        whole = answer.whole or {}
        if whole and whole.get("intent") != intent.name:
            raise Broken(f"{intent.name} ({intent.tool}) got the result of another intent: {whole}")
        # A tool that deduplicates answers a key that the store has lost by what it knows.
        is_tools = intent.tool == "retry" and intent.name in self.promise.forgotten
        if whole and whole.get("variant", 0) != variant and not is_tools:
            raise Broken(f"{intent.name}, asked with other arguments, got {whole}")
        if intent.args.get("business") == "" and self.promise.made(intent.name):
            raise Broken(f"{intent.name} has an empty business field, and was executed: {answer}")
        if intent.tenant != TENANTS[0] and answer.slug == "key-reused":
            raise Broken(f"{intent.name} has the key of another tenant's call, and got {answer}")
        if intent.tenant != TENANTS[0] and answer.slug == "result-unavailable" and self.promise.told.get(intent.name):
            raise Broken(f"{intent.name}, of a tenant of whom nobody was erased, has lost its result: {answer}")
        if self.tool.mixed:
            raise Broken(f"a connection to the tool has served two tenants: {self.tool.mixed}")
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
        elif in_session and not fencing and not (answer.is_done and of):
            # It may have drawn one that nobody has seen. An answer without its result tells no token either.
            self.history.begin("draw", token, None, begun_at)

    def compare_token(self, intent, told):
        for effect in self.promise.made(intent.name):
            if effect["fencing"] != str(told):
                raise Broken(f"{intent.name}: told the token {told}, and the tool got {effect['fencing']}")

    def is_in_session(self, intent):
        return all(effect["session"] == intent.session for effect in self.promise.made(intent.name))

    def as_result(self, intent, effect):
        """What an operator gives as the result of a call that the books have."""
        result = {name: value for name, value in effect.items() if name in ("effect", "intent", "variant")}
        if intent.tool in REMOTE:
            return {"content": [], "structuredContent": result, "isError": False}
        return {"status": 200, "headers": [], "json": result} if intent.tool in ("api", "zip") else result

    def begin(self, jobs, waits=True):
        """Waits for requests, or lets them go on beside the next steps."""
        if waits:
            self.gather(jobs)
            return
        self.open += jobs
        if len(self.open) > MOST_OPEN:
            wait(self.open, return_when=FIRST_COMPLETED)
        over = [job for job in self.open if job.done()]
        self.open = [job for job in self.open if job not in over]
        self.gather(over)

    def join(self):
        """Waits for what goes on."""
        jobs, self.open = self.open, []
        self.gather(jobs)

    def gather(self, jobs):
        """Waits for all, and then says what the first has found."""
        errors = [job.exception() for job in jobs]
        for error in errors:
            if error:
                raise error

    def idle(self):
        wait_for("the tool is idle", lambda: not self.tool.at_work, 10)

    def quiet(self):
        self.join()
        self.revive()
        self.idle()
        self.until_ready()

    def revive(self):
        for gateway in self.world.gateways:
            if not gateway.is_up():
                gateway.start()

    def until_ready(self, but_down=None):
        for gateway in self.world.gateways:
            until = time.monotonic() + READY_S
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
        self.join()
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
        self.gather([self.pool.submit(self.look, name) for name in self.sagas])
        self.history.forget(lambda event: event["key"] in self.lost_sagas)
        for event in self.history.events:
            if event["f"] == "undo" and event["value"]:
                event["value"]["after"] = self.after.get(event["value"]["call"], [])

    def last(self, n, intent):
        until = time.monotonic() + LAST_S
        while True:
            answer = self.ask(intent, n, n)
            if not BY_MODEL or intent.saga or intent.name not in self.promise.told or answer.is_done or answer.slug == "key-reused":
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
            time.sleep(0.2)
