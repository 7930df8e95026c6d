"""ACP's rules about idempotency (rfcs/rfc.agentic_checkout.md, section 6) before a gateway: its statuses, codes and headers, how
often the merchant is called, and by ajv each body: those of the gateway's own, of the merchant, and of the requests, which are
the specification's examples."""

import copy
import json
import sqlite3
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from processes import free_port, node

VERSION = "2026-04-17"
# By the beginning of an example's name: what it asks for, what that is answered, and the definitions of both.
ACTS = {
    "create_checkout_session": ("", 201, "CheckoutSessionCreateRequest", "CheckoutSession"),
    "update_checkout_session": ("/{id}", 200, "CheckoutSessionUpdateRequest", "CheckoutSession"),
    "complete": ("/{id}/complete", 200, "CheckoutSessionCompleteRequest", "CheckoutSessionWithOrder"),
    "cancel_checkout_session": ("/{id}/cancel", 200, "CancelSessionRequest", "CheckoutSession"),
}
SESSIONS = "/checkout_sessions"
CREATE, UPDATE = "create_checkout_session_request", "update_checkout_session_request"
COMPLETE, CANCEL = "complete_checkout_session_request", "cancel_checkout_session_request"
TIMES = 3
# A duplicate of a running request waits so long.
JOIN_WAIT_S = 1
WINDOW_S = 2
# Longer than the longest answer that a gateway keeps.
TOO_LONG = 2 << 20


def acp(specification, packages, Gateway):
    examples = json.loads((specification / "examples" / VERSION / "examples.agentic_checkout.json").read_text())
    shop = Shop(examples)
    with Gateway("acp", shop.port, server=f'join_wait = "{JOIN_WAIT_S}s"\n') as gateway:
        trial = Trial(gateway, shop, examples)
        for part in (every_example, equivalence, scopes, keys, in_flight, unknown, answer_lost, refused, malformed, store_away):
            part(trial)
    forwarded(trial, Gateway)
    expired(trial, Gateway)
    merchant_away(trial, Gateway)
    complaints = trial.complaints + validated(specification, packages, trial.values)
    told = ", ".join(f"{status} {code} {count}" for (status, code), count in sorted(trial.codes.items()))
    print(f"acp: {len(trial.values)} bodies validated, {sum(trial.codes.values())} of them the gateway's own: {told}")
    print(f"acp: {trial.asked} requests, of which the merchant got {shop.calls}; complaints: {len(complaints)}")
    return [f"acp: {complaint}" for complaint in complaints]


# --- what is tried -------------------------------------------------------------------------------------------


def every_example(trial):
    """Each request of the examples is sent TIMES times, with another body, and without a key."""
    names = [name for name in trial.examples if "_request" in name and not name.startswith("webhook")]
    if not {CREATE, UPDATE, COMPLETE, CANCEL} <= set(names):
        trial.complain(f"the examples have only the requests {names}")
    for name in names:
        path, body, key = trial.path(name), trial.examples[name], str(uuid.uuid4())
        with trial.calls(name, 1):
            first = trial.merchants(name, trial.ask(path, body, key), name)
            for _ in range(TIMES - 1):
                trial.replay(name, trial.ask(path, body, key), first)
            trial.own(f"{name}, changed", trial.ask(path, {**body, "locale": "fr-FR"}, key), 422, "idempotency_conflict")
            trial.own(f"{name} without a key", trial.ask(path, body), 400, "idempotency_key_required")
            trial.replay(name, trial.ask(path, body, key), first)


def equivalence(trial):
    """Section 6.2."""
    body = copy.deepcopy(trial.examples[COMPLETE]) | {"risk": {"score": 1.0, "reasons": ["a", "b"], "at": {"x": 1, "y": "é"}}}
    text = json.dumps(body)
    same = {
        "another order of members": json.dumps(dict(reversed(body.items()))),
        "other white space": json.dumps(body, indent=3),
        "1.0 and 1": text.replace('"score": 1.0', '"score": 1'),
        "an escape": json.dumps(body, ensure_ascii=False),
    }
    other = {
        "null for an absent member": json.dumps({**body, "order_notes": None}),
        "another order of elements": text.replace('["a", "b"]', '["b", "a"]'),
        "a string for a number": text.replace('"score": 1.0', '"score": "1.0"'),
        "no member": json.dumps({name: value for name, value in body.items() if name != "buyer"}),
    }
    path, key = trial.path(COMPLETE), str(uuid.uuid4())
    with trial.calls("equivalence", 1):
        first = trial.merchants("equivalence", trial.ask(path, text.encode(), key), COMPLETE)
        for what, written in same.items():
            if written == text:
                trial.complain(f"{what} is the same text")
            trial.replay(what, trial.ask(path, written.encode(), key), first)
        for what, written in other.items():
            if written == text:
                trial.complain(f"{what} is the same text")
            trial.own(what, trial.ask(path, written.encode(), key), 422, "idempotency_conflict")


def scopes(trial):
    """One key on each path is a request of its own."""
    key, names = str(uuid.uuid4()), [CREATE, UPDATE, COMPLETE, CANCEL, UPDATE]
    asked = [(name, trial.path(name)) for name in names]
    with trial.calls("one key on five paths", len(names)):
        first = [trial.merchants(f"one key, {path}", trial.ask(path, trial.examples[name], key), name) for name, path in asked]
    with trial.calls("one key on five paths again", 0):
        for (name, path), answer in zip(asked, first):
            trial.replay(f"one key, {path}, again", trial.ask(path, trial.examples[name], key), answer)


def keys(trial):
    """Keys are opaque, and have up to 255 characters. The gateway takes visible ones of ASCII (docs/keys.md)."""
    for key in ("k" * 255, "k", "order/7?&=%", '"quoted"', "a,b", str(uuid.uuid4()).upper()):
        with trial.calls(f"the key {key!r}", 1):
            path = trial.path(UPDATE)
            first = trial.merchants(f"the key {key!r}", trial.ask(path, trial.examples[UPDATE], key), UPDATE)
            trial.replay(f"the key {key!r}", trial.ask(path, trial.examples[UPDATE], key), first)


def in_flight(trial):
    """The first request is still at the merchant."""
    path, body, key, told = trial.path(COMPLETE), trial.examples[COMPLETE], str(uuid.uuid4()), []
    with trial.calls("in flight", 1):
        trial.shop.next.append("waits")
        first = threading.Thread(target=lambda: told.append(trial.ask(path, body, key)))
        first.start()
        if not trial.shop.waits.acquire(timeout=30):
            trial.complain("in flight: the request does not come to the merchant")
        trial.own("in flight", trial.ask(path, body, key), 409, "idempotency_in_flight", wait=True)
        trial.own("in flight, another body", trial.ask(path, {**body, "x": 1}, key), 422, "idempotency_conflict")
        trial.shop.goes_on.release()
        first.join()
        answer = trial.merchants("in flight, the first", told[0], COMPLETE)
        trial.replay("in flight, then over", trial.ask(path, body, key), answer)


def unknown(trial):
    """The merchant has executed, and its answer is lost, or is a 5xx: it is not sent again (docs/commerce.md says why section 6.5 is
    not kept). Only a completion has a probe in the shipped file, and gets the session."""
    for how in ("lost", "500", "503"):
        for name in (CREATE, CANCEL):
            path, key = trial.path(name), str(uuid.uuid4())
            with trial.calls(f"{name}, {how}", 1):
                trial.shop.next.append(how)
                for _ in range(TIMES):
                    answer = trial.ask(path, trial.examples[name], key)
                    trial.own(f"{name}, {how}", answer, 409, "idempotency_in_flight", wait=True)
                answer = trial.ask(path, {**trial.examples[name], "x": 1}, key)
                trial.own(f"{name}, {how}, another body", answer, 422, "idempotency_conflict")
        path, key, until = trial.path(COMPLETE), str(uuid.uuid4()), time.monotonic() + 30
        with trial.calls(f"completion, {how}", 1):
            trial.shop.next.append(how)
            answer = trial.ask(path, trial.examples[COMPLETE], key)
            while answer[0] == 409 and time.monotonic() < until:
                trial.own(f"completion, {how}", answer, 409, "idempotency_in_flight", wait=True)
                time.sleep(0.3)
                answer = trial.ask(path, trial.examples[COMPLETE], key)
            session = trial.shop.sessions.get(path.split("/")[2])
            trial.value("CheckoutSessionWithOrder", answer[2], f"completion, {how}, by the probe")
            if answer[0] != 200 or answer[2] != session or answer[1].get("idempotency-key") != key:
                trial.complain(f"completion, {how}: the session is told as {answer}")
            again = trial.ask(path, trial.examples[COMPLETE], key)
            trial.replay(f"completion, {how}, again", again, answer)


def answer_lost(trial):
    """The status has come, and says that it was executed. The body is cut, or is longer than the gateway keeps."""
    for how in ("cut", "long"):
        for name in (CREATE, UPDATE, COMPLETE, CANCEL):
            path, key = trial.path(name), str(uuid.uuid4())
            with trial.calls(f"{name}, {how}", 1):
                trial.shop.next.append(how)
                for _ in range(TIMES):
                    trial.own(f"{name}, {how}", trial.ask(path, trial.examples[name], key), 500, "processing_error")


def refused(trial):
    """The merchant's own refusals: a 400 is kept and replayed, and after a 429 the same request runs again."""
    path, key = trial.path(UPDATE), str(uuid.uuid4())
    with trial.calls("refused", 1):
        trial.shop.next.append("400")
        answer = trial.ask(path, trial.examples[UPDATE], key)
        trial.value("Error", answer[2], "the merchant's 400")
        if (answer[0], [answer[2]]) != (400, trial.shop.told[-1:]):
            trial.complain(f"the merchant's 400 is told as {answer}")
        trial.replay("the merchant's 400", trial.ask(path, trial.examples[UPDATE], key), answer)
    key = str(uuid.uuid4())
    with trial.calls("too many requests", 2):
        trial.shop.next.append("429")
        answer = trial.ask(path, trial.examples[UPDATE], key)
        if (answer[0], [answer[2]]) != (429, trial.shop.told[-1:]):
            trial.complain(f"the merchant's 429 is told as {answer}")
        trial.merchants("after a 429", trial.ask(path, trial.examples[UPDATE], key), UPDATE)


def malformed(trial):
    """What the gateway refuses whatever the merchant would say is in ACP's form, too."""
    path, body, key = trial.path(UPDATE), trial.examples[UPDATE], str(uuid.uuid4())
    with trial.calls("malformed", 0):
        trial.own("an empty key", trial.ask(path, body, ""), 400)
        trial.own("a key of 256 characters", trial.ask(path, body, "k" * 256), 400)
        trial.own("two keys", trial.ask(path, body, more=[("Idempotency-Key", key), ("Idempotency-Key", "other")]), 400)
        trial.own("no token", trial.ask(path, body, key, token=None), 401)
        trial.own("another token", trial.ask(path, body, key, token="other"), 401)
        trial.own("a body of 2 MiB", trial.ask(path, b'"' + b"x" * TOO_LONG + b'"', key), 413)
        trial.own("a path with ..", trial.ask(f"{SESSIONS}/../x", body, key), 400)
        trial.own("TRACE", trial.ask(path, None, key, method="TRACE"), None)
        trial.own("a key with a space", trial.ask(path, body, "order 7"), 400)


def store_away(trial):
    """Another process has the store for itself."""
    path, body, key = trial.path(UPDATE), trial.examples[UPDATE], str(uuid.uuid4())
    with trial.calls("the store is away", 0):
        store = sqlite3.connect(trial.gateway.store, isolation_level=None)
        store.execute("BEGIN IMMEDIATE")
        trial.own("the store is away", trial.ask(path, body, key), 503, "service_unavailable", wait=True)
        store.execute("ROLLBACK")
        store.close()
    with trial.calls("the store is back", 1):
        trial.merchants("the store is back", trial.ask(path, body, key), UPDATE)


def forwarded(trial, Gateway):
    """The merchant gets the platform's bearer, too, as the specification has it."""
    with Gateway("acp", trial.shop.port, home="acp-bearer", section="pass_authorization = true\n") as gateway:
        trial.gateway, trial.beside = gateway, ", with the bearer forwarded"
        for part in (every_example, equivalence, scopes):
            part(trial)
        trial.beside = ""


def expired(trial, Gateway):
    """Section 6.6, with a short window: then a key is a new request, unless it is unknown what became of it."""
    # A window is not shorter than a call.
    window = f'dedup_window = "{WINDOW_S}s"\ndeadline = "{WINDOW_S}s"\ntimeout = "1s"\n'
    with Gateway("acp", trial.shop.port, home="acp-expired", section=window) as gateway:
        trial.gateway, path, other, key = gateway, trial.path(UPDATE), trial.path(UPDATE), str(uuid.uuid4())
        with trial.calls("within the window", 2):
            first = trial.merchants("within the window", trial.ask(path, trial.examples[UPDATE], key), UPDATE)
            trial.replay("within the window", trial.ask(path, trial.examples[UPDATE], key), first)
            trial.shop.next.append("lost")
            answer = trial.ask(other, trial.examples[UPDATE], key)
            trial.own("unknown, within the window", answer, 409, "idempotency_in_flight", wait=True)
        time.sleep(WINDOW_S + 1)
        with trial.calls("after the window", 1):
            trial.merchants("after the window", trial.ask(path, {**trial.examples[UPDATE], "x": 1}, key), UPDATE)
            answer = trial.ask(other, trial.examples[UPDATE], key)
            trial.own("unknown, after the window", answer, 409, "idempotency_in_flight", wait=True)


def merchant_away(trial, Gateway):
    """Nothing listens at the merchant's port. Later it does."""
    port = free_port()
    with Gateway("acp", port, home="acp-away") as gateway:
        trial.gateway, path, key = gateway, trial.path(CREATE), str(uuid.uuid4())
        with trial.calls("the merchant is away", 0):
            for _ in range(TIMES):
                answer = trial.ask(path, trial.examples[CREATE], key)
                trial.own("the merchant is away", answer, 503, "service_unavailable", wait=True)
            trial.own("a read, the merchant is away", trial.ask(f"{SESSIONS}/s", None, method="GET"), 503, "service_unavailable")
        trial.shop.listen(port)
        with trial.calls("the merchant is back", 1):
            until = time.monotonic() + 30
            while (answer := trial.ask(path, trial.examples[CREATE], key))[0] == 503 and time.monotonic() < until:
                trial.own("the merchant is back, not yet", answer, 503, "service_unavailable", wait=True)
                time.sleep(0.3)
            answer = trial.merchants("the merchant is back", answer, CREATE)
            trial.replay("the merchant is back", trial.ask(path, trial.examples[CREATE], key), answer)


# --- how it is judged ----------------------------------------------------------------------------------------


class Trial:
    """Requests to the gateway, and what is wrong with their answers."""

    def __init__(self, gateway, shop, examples):
        self.gateway, self.shop, self.examples, self.beside = gateway, shop, examples, ""
        self.complaints, self.values, self.codes, self.asked, self.sessions, self.key = [], [], {}, 0, 0, None
        for name, example in examples.items():
            if "_request" in name and not name.startswith("webhook"):
                self.values.append((act(name)[2], example, name))

    def complain(self, why):
        self.complaints.append(why + self.beside)

    def path(self, name):
        """The path of a request of this name, for a session that no other request is about."""
        self.sessions += 1
        return SESSIONS + act(name)[0].format(id=f"session_{self.sessions}")

    def ask(self, path, body, key=None, method="POST", more=(), **options):
        self.asked += 1
        self.key = key
        # What the specification's OpenAPI says that a platform sends. Two of them are new in a repetition.
        headers = [("Content-Type", "application/json"), ("Authorization", "Bearer api_key_123"), ("API-Version", VERSION)]
        headers += [("Accept-Language", "en-US"), ("Request-Id", uuid.uuid4().hex), ("Timestamp", f"{time.time()}")]
        headers += [("Signature", uuid.uuid4().hex), *([("Idempotency-Key", key)] if key is not None else []), *more]
        body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.gateway.ask(method, path, headers, body, **options)

    def calls(self, what, wanted):
        return Calls(self, what, wanted)

    def value(self, definition, text, what):
        try:
            self.values.append((definition, json.loads(text), what))
        except ValueError:
            self.complain(f"{what}: {text[:200]!r} is no JSON")

    def merchants(self, what, answer, name):
        """The first answer, as the merchant gave it."""
        status, headers, text = answer
        _, wanted, _, definition = act(name)
        if headers.get("idempotency-key") != self.key:
            self.complain(f"{what}: the key is told as {headers.get('idempotency-key')!r}, not {self.key!r}")
        self.value(definition, text, f"{what}, the merchant's answer")
        kept = self.shop.headers.items() <= headers.items()
        if status != wanted or [text] != self.shop.told[-1:] or not kept or "idempotent-replayed" in headers:
            self.complain(f"{what}: not as the merchant answered: {status} {headers} {text[:200]!r}")
        return answer

    def replay(self, what, answer, first):
        status, headers, text = answer
        if (status, text) != (first[0], first[2]) or headers.get("content-type") != first[1].get("content-type"):
            self.complain(f"{what}: replayed as {status} {text[:200]!r}, not {first[0]} {first[2][:200]!r}")
        if headers.get("idempotent-replayed") != "true":
            self.complain(f"{what}: a replay has no mark: {headers}")
        if headers.get("idempotency-key") != self.key:
            self.complain(f"{what}: the key is told as {headers.get('idempotency-key')!r}, not {self.key!r}")

    def own(self, what, answer, status, code=None, wait=False):
        """An answer that the gateway makes."""
        told, headers, text = answer
        self.value("Error", text, what)
        try:
            error = json.loads(text)
        except ValueError:
            error = {}
        found = error.get("code") if isinstance(error, dict) else None
        self.codes[told, str(found)] = self.codes.get((told, str(found)), 0) + 1
        if told != (status or told) or found != (code or found) or headers.get("content-type") != "application/json":
            self.complain(f"{what}: not {status} {code}, but {told} {headers.get('content-type')} {text[:300]!r}")
        if code and code.startswith("idempotency_") and error.get("type") != "invalid_request":
            self.complain(f"{what}: of the type {error.get('type')}")
        after = headers.get("retry-after", "")
        if wait and not (after.isdigit() and int(after) > 0):
            self.complain(f"{what}: Retry-After is {after!r}")
        if headers.get("idempotent-replayed") == "true" and told < 500:
            self.complain(f"{what}: is marked as a replay")
        if self.key and headers.get("idempotency-key") != self.key:
            self.complain(f"{what}: the key is told as {headers.get('idempotency-key')!r}, not {self.key!r}")


class Calls:
    """How often the merchant is called in these lines."""

    def __init__(self, trial, what, wanted):
        self.trial, self.what, self.wanted = trial, what, wanted

    def __enter__(self):
        self.before = self.trial.shop.calls

    def __exit__(self, *_):
        calls = self.trial.shop.calls - self.before
        if calls != self.wanted:
            self.trial.complain(f"{self.what}: the merchant was called {calls} times, not {self.wanted}")


def act(name):
    return next(row for beginning, row in ACTS.items() if name.startswith(beginning))


def validated(specification, packages, values):
    """What ajv says of [definition, value, name]."""
    # One that says yes to everything would be noticed.
    wrong = {
        "another member": {"type": "invalid_request", "code": "x", "message": "y", "detail": "z"},
        "another type": {"type": "conflict", "code": "x", "message": "y"},
        "no code": {"type": "invalid_request", "message": "y"},
        "a problem": {"title": "x", "status": 409},
    }
    values = [*values, *(("Error", value, name) for name, value in wrong.items())]
    schema = specification / "spec" / VERSION / "json-schema" / "schema.agentic_checkout.json"
    asked = {"packages": str(packages / "npm"), "schema": str(schema), "values": values}
    script = Path(__file__).with_name("commerce_specs.mjs")
    done = subprocess.run([*node(packages, "venv"), script], input=json.dumps(asked), capture_output=True, text=True)
    if done.returncode != 0:
        return [f"ajv ends with {done.returncode}: {done.stderr}"]
    said = json.loads(done.stdout)
    noticed = [why for why in said if why.startswith(tuple(f"{name} is no" for name in wrong))]
    said = [why for why in said if why not in noticed]
    return said + ([] if len(noticed) == len(wrong) else [f"ajv notices only {noticed}"])


# --- the merchant --------------------------------------------------------------------------------------------


class Shop:
    """Answers with the specification's examples, each session with its own id and each answer with a time of its own. Counts its
    calls, remembers no key. `next`: how the next write fares; by default it is answered."""

    def __init__(self, examples):
        self.calls, self.told, self.next, self.sessions = 0, [], [], {}
        self.waits, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self.headers = {"content-type": "application/json", "x-shop": "of the examples"}
        self.error = json.dumps(examples["error_400_invalid_item"]).encode()
        shop = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length") or 0))
                how = shop.next.pop(0) if shop.next else None
                shop.calls += 1
                if how in ("400", "429"):
                    return self.tell(int(how), shop.error)
                status, text = shop.executed(examples, self.path)
                if how == "waits":
                    shop.waits.release()
                    shop.goes_on.acquire()
                if how in ("500", "503"):
                    return self.tell(int(how), shop.error)
                if how == "long":
                    text = text[:-1] + b', "notes": "' + b"x" * TOO_LONG + b'"}'
                self.tell(status, text, how)

            def do_GET(self):
                text = shop.sessions.get(self.path.split("/")[2])
                self.tell(200 if text else 404, text or shop.error)

            def tell(self, status, text, how=None):
                self.close_connection = self.close_connection or how in ("lost", "cut")
                if how == "lost":
                    return
                shop.told.append(text)
                self.send_response(status)
                for name, value in {**shop.headers, "content-length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text[: len(text) // 2] if how == "cut" else text)

            def log_message(self, *_):
                pass

        self.handler = Handler
        self.port = self.listen(0)

    def listen(self, port):
        server = ThreadingHTTPServer(("127.0.0.1", port), self.handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server.server_address[1]

    def executed(self, examples, path):
        beginning = {1: "create", 2: "update"}.get(path.count("/")) or path.rsplit("/", 1)[1]
        session = copy.deepcopy(examples[f"{beginning}_checkout_session_response"])
        session["id"] = uuid.uuid4().hex if beginning == "create" else path.split("/")[2]
        session["metadata"] = {"seen": uuid.uuid4().hex}
        if "order" in session:
            session["order"]["checkout_session_id"] = session["id"]
        text = json.dumps(session, indent=1).encode()
        self.sessions[session["id"]] = text
        return (201 if beginning == "create" else 200), text
