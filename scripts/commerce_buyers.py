"""Buyers of others before a shop of others, with a real gateway between them, for x402 and for the Machine Payments Protocol.

The shop is scripts/commerce_shop.mjs: npm's `@x402/express` and `mppx`. The buyers are PyPI's `x402`, which signs with a new key
for each purchase, and `pympp`. The facilitator of x402 is ours: it checks signatures and counts, and there is no chain. MPP is
paid by a method of the run. A line between gateway and shop loses the answers to chosen payments.

Each paid request is sent again as it is, byte for byte. Fails if through the gateway it is verified, settled or made twice; if a
repetition of an answered one gets another answer or another receipt; if one whose answer was lost is answered other than 503 with
Retry-After, or with a new challenge; if the same payment for another request is not 409; if a 402 is replayed; if a payment is in
a file; or if at the shop itself the repetitions are not settled more than once, since this would show nothing then.

Not tested: x402 of version 1, which this shop does not offer. The header `Payment-Authorization`, in which both libraries of MPP
can send a payment. Facilitators that settle and do not answer: `@x402/express` then answers 402, as if nothing was settled.
"""

import asyncio
import base64
import json
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
from eth_account import Account
from eth_keys import keys
from mpp import Credential
from mpp.client import ClientMethod, PaymentTransport
from mpp.methods import Method
from processes import free_port, node, start, stop
from pydantic import BaseModel
from x402 import x402Client
from x402.extensions.payment_identifier import append_payment_identifier_to_extensions
from x402.http.clients.httpx import x402AsyncTransport
from x402.mechanisms.evm.eip712 import hash_eip3009_authorization
from x402.mechanisms.evm.exact import register_exact_evm_client
from x402.mechanisms.evm.types import ExactEIP3009Authorization

SHOP = Path(__file__).resolve().with_name("commerce_shop.mjs")
AGAIN = 5
# How long the line holds an answer back where requests come at once.
SLOW_S = 0.5
CHALLENGES = {"payment-required", "www-authenticate"}
RECEIPTS = {"x402": "payment-response", "mpp": "payment-receipt"}


def bought(home, run, gateway):
    """What is wrong. `gateway`: starts a gateway with a shipped file, before an API at a port."""
    shutil.copy(SHOP, home / "npm")
    facilitator, port = Facilitator(), free_port()
    command = [*node(home, "venv"), home / "npm" / SHOP.name, str(port), facilitator.base]
    shop = start(command, port, run / "shop.log", {**os.environ, "NODE_ENV": "production"})
    try:
        return [wrong for protocol in RECEIPTS for wrong in Market(protocol, port, facilitator, run, gateway).complaints]
    finally:
        stop([shop])


class NotPaid(Exception):
    """A purchase has ended before there was a payment."""


class Market:
    """All purchases by one protocol: through the gateway, and at the shop itself."""

    def __init__(self, protocol, shop, facilitator, run, gateway):
        self.protocol, self.shop, self.facilitator, self.complaints = protocol, shop, facilitator, []
        self.line, self.orders, self.payments, self.told = Line(shop), [], [], Counter()
        paths = ["/x402/plain", "/x402/named"] if protocol == "x402" else ["/mpp"]
        kinds = [(method, path) for path in paths for method in ("GET", "POST")]
        with gateway(protocol, self.line.port) as running:
            base = f"http://127.0.0.1:{running.port}/proxy/api"
            for kind in kinds:
                for way in (self.answered, self.lost, self.at_once):
                    self.attempt(way, base, *kind)
            if protocol == "mpp":
                self.attempt(self.keyed, base)
        ordered = list(self.orders)
        straight = [self.attempt(self.straight, *kind) or 0 for kind in kinds]
        self.in_no_file(run / protocol)
        counts = {name: sum(counted.get(order, 0) for order in ordered) for name, counted in self.counts().items()}
        print(
            f"{protocol}: {len(ordered)} purchases, sent {AGAIN} times more or at once: "
            f"{', '.join(f'{name} {count}' for name, count in counts.items())}, answers by status {dict(self.told)}; "
            f"straight, {len(straight)} sent {AGAIN} times: settled {sum(straight)}; {len(self.complaints)} complaints"
        )

    def attempt(self, way, *kind):
        try:
            return way(*kind)
        except NotPaid as why:
            self.complaints.append(f"{self.protocol}: {why}")

    # Each of these is a way to buy.

    def answered(self, base, method, path):
        """The first answer arrives, and is that of each repetition."""
        order = self.next()
        unpaid = [send(method, url(base, path, order), body_of(method, order)) for _ in range(2)]
        first, paid = self.buy(base, method, path, order)
        self.expect(first.status == 200 and first.receipt(self.protocol), f"order {order} is answered {first}")
        for again in [self.again(paid) for _ in range(AGAIN)]:
            self.expect(again.same_as(first, self.protocol), f"order {order} is answered {first}, and again {again}")
        self.other(paid, order)
        unpaid.append(send(method, url(base, path, order), body_of(method, order)))
        self.expect(all(one.status == 402 for one in unpaid), f"order {order} is not paid, and answered {unpaid}")
        if self.protocol == "mpp":
            challenges = {one.headers.get("www-authenticate") for one in unpaid}
            self.expect(len(challenges) == len(unpaid), f"order {order}: a 402 was replayed: {challenges}")
        if "named" in path:
            # The library pays anew under its identifier.
            anew, other = self.buy(base, method, path, order)
            self.expect(other.headers["payment-signature"] != paid.headers["payment-signature"], "the payment is not another")
            self.expect(anew.same_as(first, self.protocol), f"order {order} is answered {first}, and paid anew {anew}")
        self.once(order)

    def lost(self, base, method, path):
        """The answer to the payment is lost, and so for good: nothing here can say what became of it."""
        order = self.next()
        self.line.lost.add(order)
        first, paid = self.buy(base, method, path, order)
        for one in [first] + [self.again(paid) for _ in range(AGAIN)]:
            self.not_yet(order, one)
        self.other(paid, order)
        if "named" in path:
            self.not_yet(order, self.buy(base, method, path, order)[0])
        self.once(order)
        self.expect(self.line.dropped[order] == 1, f"order {order}: {self.line.dropped[order]} answers were lost")

    def at_once(self, base, method, path):
        """The same payment comes several times, before it is answered."""
        order, answers = self.next(), []
        _, paid = self.buy(base, method, path, order, holds=True)
        self.line.slow.add(order)
        senders = [threading.Thread(target=lambda: answers.append(self.again(paid))) for _ in range(AGAIN)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        done = [answer for answer in answers if answer.status == 200]
        self.expect(done, f"order {order}: sent at once, it is answered {answers}")
        for one in answers:
            if one.status != 200:
                self.not_yet(order, one)
        last = self.again(paid)
        self.expect(all(one.same_as(last, self.protocol) for one in done), f"order {order} is answered {done}, and again {last}")
        self.once(order)

    def keyed(self, base):
        """The buyer has a key of its own, which its unpaid request has, too."""
        order = self.next()
        first, paid = self.buy(base, "POST", "/mpp", order, {"Idempotency-Key": str(uuid.uuid4())})
        self.expect(first.status == 200 and first.receipt("mpp"), f"order {order} has a key, and is answered {first}")
        for again in [self.again(paid) for _ in range(AGAIN)]:
            self.expect(again.same_as(first, "mpp"), f"order {order} is answered {first}, and again {again}")
        self.once(order)

    def straight(self, method, path):
        """How often the shop itself settles one payment."""
        order = self.next()
        _, paid = self.buy(f"http://127.0.0.1:{self.shop}", method, path, order, holds=True)
        answers = [send(method, str(paid.url), paid.content, paid.headers) for _ in range(AGAIN)]
        counts = self.counts()
        settled, made = (counts[name].get(order, 0) for name in ("settled", "made"))
        is_more = settled > 1 and made > 1
        self.expect(is_more, f"straight, a payment is settled {settled} times, which shows nothing: {answers}")
        return settled

    # What they share.

    def next(self):
        self.orders.append(f"{self.protocol}-{len(self.orders)}")
        return self.orders[-1]

    def expect(self, is_so, complaint):
        if not is_so:
            self.complaints.append(f"{self.protocol}: {complaint}")

    def buy(self, base, method, path, order, headers=(), holds=False):
        """The library buys. Its answer, and its request that pays. `holds`: that one is not sent."""
        recorded = Recorded(holds)
        transport = by_x402(recorded, order) if self.protocol == "x402" else by_mpp(recorded)

        async def run():
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(
                    method, url(base, path, order), content=body_of(method, order), headers={**OWN, **dict(headers)}
                )

        try:
            response = asyncio.run(run())
            answer = Answer(response.status_code, response.headers, response.content)
        except Exception as error:  # each library has its own
            answer = Answer(0, {}, repr(error))
        if recorded.paid is None:
            raise NotPaid(f"the library has not paid for order {order}: {answer}")
        if not holds:
            self.told[answer.status] += 1
        self.payments.append(secrets_of(recorded.paid))
        return answer, recorded.paid

    def again(self, paid):
        answer = send(paid.method, str(paid.url), paid.content, paid.headers)
        self.told[answer.status] += 1
        return answer

    def other(self, paid, order):
        """The same payment for another request."""
        if paid.method == "POST":
            answer = send("POST", str(paid.url), body_of("POST", f"{order}, and one more"), paid.headers)
        else:
            answer = send("GET", f"{paid.url}&more=1", paid.content, paid.headers)
        self.expect(answer.status == 409, f"order {order}: its payment for another request is answered {answer}")

    def not_yet(self, order, answer):
        is_right = answer.status == 503 and answer.headers.get("retry-after", "").isdigit()
        self.expect(is_right, f"order {order} is not known, and answered {answer}")
        self.expect(not CHALLENGES & set(answer.headers), f"order {order} is not known, and has a challenge: {answer}")

    def counts(self):
        counts = json.loads(send("GET", f"http://127.0.0.1:{self.shop}/counts").body)
        if self.protocol == "x402":
            counts = {"verified": self.facilitator.verified, "settled": self.facilitator.settled, "made": counts["made"]}
        return counts

    def once(self, order):
        for name, counted in self.counts().items():
            count = counted.get(order, 0)
            self.expect(count == 1, f"order {order} is {name} {count} times")

    def in_no_file(self, folder):
        """The gateway has ended, so that all of its files are there."""
        files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        can_find = any(f"order={self.orders[0]}".encode() in text for text in files.values())
        self.expect(can_find, f"nothing can be found in {folder}")
        for file, text in files.items():
            kept = [part for payment in self.payments for part in payment if part.encode() in text]
            self.expect(not kept, f"{len(kept)} parts of payments are in {file}")


# --- the libraries of the buyers ---------------------------------------------------------------------------------


class Recorded(httpx.AsyncBaseTransport):
    """Sends requests for a library, and keeps the one that pays. `holds`: that one is not sent."""

    def __init__(self, holds):
        self.inner, self.holds, self.paid = httpx.AsyncHTTPTransport(), holds, None

    async def handle_async_request(self, request):
        if payment_in(request.headers) is not None:
            self.paid = request
            if self.holds:
                return httpx.Response(503)
        return await self.inner.handle_async_request(request)

    async def aclose(self):
        await self.inner.aclose()


def by_x402(recorded, order):
    client = x402Client()
    register_exact_evm_client(client, Account.create())
    client.register_extension(Identifier(order))
    return x402AsyncTransport(client, recorded)


class Identifier:
    """Where the shop declares `payment-identifier`, the purchase has one, which is the same when it is paid anew."""

    key, hooks, transport_hooks = "payment-identifier", None, None

    def __init__(self, order):
        self.identifier = f"{order}-of-this-run-alone"

    def enrich_payment_payload(self, payload, required):
        extensions = append_payment_identifier_to_extensions(dict(required.extensions or {}), self.identifier)
        return payload.model_copy(update={"extensions": extensions or None})


class Asked(BaseModel):
    amount: str


class Paid(BaseModel):
    token: str


def by_mpp(recorded):
    async def pay(asked):
        return Credential(challenge=asked.challenge.to_echo(), payload={"token": f"token-{uuid.uuid4()}"}).to_authorization()

    mock = Method(name="mock", intent="charge", request_model=Asked, payload_model=Paid)
    return PaymentTransport([ClientMethod(method=mock, create_credential=pay)], recorded)


# --- requests and answers ------------------------------------------------------------------------------------------


OWN = {"Content-Type": "application/json"}


class Answer:
    """An answer. Its status is 0 if there was none."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers.items()}

    def receipt(self, protocol):
        return self.headers.get(RECEIPTS[protocol])

    def same_as(self, other, protocol):
        return [self.status, self.body, self.receipt(protocol)] == [other.status, other.body, other.receipt(protocol)]

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body!r}"


def url(base, path, order):
    return f"{base}{path}?order={order}"


def body_of(method, order):
    return json.dumps({"order": order}).encode() if method == "POST" else b""


def send(method, to, body=b"", headers=None):
    """Sends a request as it is."""
    asked = urlsplit(to)
    connection = HTTPConnection(asked.hostname, asked.port)
    kept = {name: value for name, value in dict(headers or OWN).items() if name not in ("host", "content-length", "connection")}
    try:
        connection.request(method, f"{asked.path}?{asked.query}", body or None, kept)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    except (OSError, HTTPException) as error:
        return Answer(0, {}, repr(error))
    finally:
        connection.close()


def payment_in(headers):
    """The payment as it was encoded, or nothing."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    return headers.get("payment-signature") or (credential if scheme == "Payment" else None)


def secrets_of(paid):
    """What no file may have: the signature or token of a payment, as it is and in pieces of it as it was sent."""
    encoded = payment_in(paid.headers)
    decoded = base64.urlsafe_b64decode(encoded + "==")
    payload = json.loads(decoded)["payload"]
    secret = payload.get("signature") or payload["token"]
    # Three bytes are four letters, of which the first and the last may have a neighbour's bits.
    at = decoded.index(secret.encode())
    inner = encoded[at // 3 * 4 + 4 : (at + len(secret)) // 3 * 4]
    return [secret, *(inner[at : at + 32] for at in range(0, len(inner) - 31, 32))]


# --- the facilitator and the line ------------------------------------------------------------------------------------


class Quiet(BaseHTTPRequestHandler):
    def read(self):
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def tell(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server.server_address[1]


class Facilitator:
    """Checks signatures, settles whatever it is given, and counts that by order. A chain would take a payment only once."""

    def __init__(self):
        self.verified, self.settled, self.guard, facilitator = Counter(), Counter(), threading.Lock(), self

        class Handler(Quiet):
            def do_GET(self):
                kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}]
                self.say({"kinds": kinds, "extensions": [], "signers": {}})

            def do_POST(self):
                asked = json.loads(self.read())
                self.say(facilitator.verify(asked) if self.path == "/verify" else facilitator.settle(asked))

            def say(self, value):
                self.tell(200, [("Content-Type", "application/json")], json.dumps(value).encode())

        self.base = f"http://127.0.0.1:{serve(Handler)}"

    def verify(self, asked):
        authorization, payer = self.signed(asked)
        self.count(self.verified, asked)
        is_valid = payer.lower() == authorization["from"].lower()
        return {"isValid": is_valid, "payer": payer, **({} if is_valid else {"invalidReason": "invalid_signature"})}

    def settle(self, asked):
        _, payer = self.signed(asked)
        self.count(self.settled, asked)
        transaction = f"0x{uuid.uuid4().hex}{uuid.uuid4().hex}"
        return {"success": True, "payer": payer, "transaction": transaction, "network": "eip155:84532"}

    def signed(self, asked):
        """What was signed, and by whom, as the library hashes it."""
        wanted, payload = asked["paymentRequirements"], asked["paymentPayload"]["payload"]
        named = payload["authorization"]
        authorization = ExactEIP3009Authorization(
            named["from"], named["to"], named["value"], named["validAfter"], named["validBefore"], named["nonce"]
        )
        extra, chain = wanted["extra"], int(wanted["network"].split(":")[1])
        hashed = hash_eip3009_authorization(authorization, chain, wanted["asset"], extra["name"], extra["version"])
        signature = bytes.fromhex(payload["signature"][2:])
        signature = keys.Signature(signature[:64] + bytes([signature[64] % 27]))
        return named, signature.recover_public_key_from_msg_hash(hashed).to_checksum_address()

    def count(self, counted, asked):
        with self.guard:
            counted[order_in(asked["paymentPayload"]["resource"]["url"])] += 1


def order_in(to):
    return parse_qs(urlsplit(to).query).get("order", [""])[0]


class Line:
    """Between gateway and shop. It loses the answers to the payments of some orders, and holds others back."""

    def __init__(self, shop):
        self.lost, self.slow, self.dropped, line = set(), set(), Counter(), self

        class Handler(Quiet):
            def handle_one(self):
                order, pays = order_in(self.path), payment_in(self.headers) is not None
                headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
                connection = HTTPConnection("127.0.0.1", shop)
                connection.request(self.command, self.path, self.read(), headers)
                response = connection.getresponse()
                body = response.read()
                if pays and order in line.slow:
                    time.sleep(SLOW_S)
                if pays and order in line.lost:
                    line.dropped[order] += 1
                    return
                left_out = ("connection", "keep-alive", "transfer-encoding", "content-length", "date")
                self.tell(response.status, [one for one in response.headers.items() if one[0].lower() not in left_out], body)

            do_GET = do_POST = handle_one

        self.port = serve(Handler)
