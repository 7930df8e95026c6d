"""Agents: each sends one intent after another, with one key each, and repeats what was not told to have ended."""

import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter

from judge_history import OF_THE_CALL, now

TOOLS = ("hold", "probe", "retry")
AGENTS = 16
# An answer that takes longer is none, and the agent asks again.
ANSWER_S = 15
# Calls are checked every second: what is still unknown then needs an operator.
SETTLED_S = 5
# How long it may take until all intents have come to rest.
REST_S = 120


def of_tool(n):
    """The tool of an intent."""
    return TOOLS[n % 3]


class Agents:
    """Threads that each send one intent after another, each with one key until they are told how it ended."""

    def __init__(self, world, count=AGENTS):
        self.world, self.count, self.threads = world, count, []
        self.numbers, self.lock = itertools.count(), threading.Lock()
        self.intents, self.acknowledged = set(), {}
        # What was told beside the first success of an intent.
        self.contradictions = []
        self.answers = {"before": Counter(), "meanwhile": Counter(), "after": Counter()}
        self.is_on = threading.Event()

    def start(self):
        self.is_on.set()
        for number in range(self.count):
            thread = threading.Thread(target=self.work, args=(number,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def stop(self):
        self.is_on.clear()
        for thread in self.threads:
            thread.join()
        self.threads = []

    def work(self, number):
        lane = Lane(self, number)
        while self.is_on.is_set():
            with self.lock:
                n = next(self.numbers)
                self.intents.add(n)
                known = random.choice(list(self.acknowledged)) if self.acknowledged and n % 4 == 0 else None
            until = time.monotonic() + 4
            while not lane.is_told(n) and time.monotonic() < until and self.is_on.is_set():
                time.sleep(random.uniform(0.02, 0.2))
            if known is not None:
                lane.is_told(known)
        lane.close()

    def finish(self):
        """Asks for everything again, until each intent has come to rest. Says which are unknown."""
        rest, unknown = sorted(self.intents), set()
        lock, until = threading.Lock(), time.monotonic() + REST_S

        def work(number):
            lane = Lane(self, number)
            while True:
                with lock:
                    if not rest:
                        break
                    n = rest.pop()
                unknown_at = None
                while not lane.is_told(n):
                    if lane.is_unknown:
                        unknown_at = unknown_at or time.monotonic()
                        if lane.is_held or time.monotonic() - unknown_at > SETTLED_S:
                            unknown.add(n)
                            break
                    if time.monotonic() > until:
                        self.contradictions.append(f"intent {n} does not come to rest: {lane.last}")
                        break
                    time.sleep(0.1)
            lane.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return unknown


class Lane:
    """One agent's connection to a gateway; to another one when that does not answer."""

    def __init__(self, agents, number):
        self.agents, self.at, self.connection, self.last = agents, number, None, None
        self.is_unknown, self.is_held = False, False

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def is_told(self, n):
        world, agents = self.agents.world, self.agents
        phase, self.is_unknown, self.is_held = world.phase, False, False
        begun, begun_at = world.history.begin("ask", f"call/{n}", process=f"agent-{self.at}"), now()
        try:
            if not self.connection:
                gateway = world.gateways[self.at % len(world.gateways)]
                self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=world.answer_s)
            headers = {"idempotency-key": world.key(n)}
            path = f"/v1/tools/{of_tool(n)}/calls"
            args = {"n": n, **({"pad": "x" * (world.padding * (1 + n // 5 % 4))} if world.padding and n % 5 == 0 else {})}
            status, answer = exchange(self.connection, "POST", path, {"args": args}, headers)
        except (OSError, http.client.HTTPException):
            self.close()
            self.at += 1
            agents.answers[phase]["no answer"] += 1
            return False
        slug = answer.get("type", "").rpartition("/")[2].rpartition("#")[2] if isinstance(answer, dict) else "garbled"
        self.last = f"{status} {slug}".strip()
        agents.answers[phase][self.last] += 1
        self.note(begun, begun_at, status, slug, answer)
        if status == 200:
            with agents.lock:
                first = agents.acknowledged.setdefault(n, answer["result"])
            if first != answer["result"]:
                agents.contradictions.append(f"intent {n} was told {first}, and later {answer['result']}")
            return True
        if n in agents.acknowledged and slug not in world.refusals:
            agents.contradictions.append(f"intent {n} was told a success, and later {self.last}")
        self.is_unknown = slug == "outcome-unknown"
        # No check is planned: an operator has to look.
        self.is_held = self.is_unknown and answer.get("retry_after_ms") is None
        if status in (429, 503):
            self.close()
            self.at += 1
        return False


    def note(self, begun, begun_at, status, slug, answer):
        """The answer, as the history has it. What is not known stays open."""
        history = self.agents.world.history
        if status == 200:
            history.end(begun, "ok", str(answer["result"]["effect"]))
        elif slug in OF_THE_CALL and answer.get("effect") == "none":
            history.end(begun, "fail")
        elif slug == "outcome-unknown":
            history.end(begun, "info", slug)
            history.point("unsure", begun[2], begin=begun_at)


def exchange(connection, method, path, body, headers):
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
    response = connection.getresponse()
    body = response.read()
    is_json = response.headers.get("content-type", "").endswith("json") and b"\n{" not in body
    return response.status, json.loads(body) if is_json and body else body
