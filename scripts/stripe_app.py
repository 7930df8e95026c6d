"""An application with the official `stripe` library, for scripts/sdk. Takes a job as JSON, and prints what came of it.

It knows no gateway: all that a job can change is the base address, and the key with which the library calls.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import stripe

AT_ONCE = 16
GOOD_CARD, DECLINED_CARD = "4242424242424242", "4000000000000341"


def main():
    job = json.loads(sys.argv[1])
    client = stripe.StripeClient(job["key"], base_addresses={"api": job["base"]}, max_network_retries=2)
    done = {"prepare": prepare, "make": make, "read": read, "fail": fail, "delete": delete}[job["do"]](client, job)
    print(json.dumps(done))


def prepare(client, job):
    """What the orders are about: a customer, a card that is good and one that is declined, a charge to refund."""
    customer = client.v1.customers.create({"name": "Customer of all orders"}).id
    known = {"customer": customer}
    for name, number in [("good", GOOD_CARD), ("declined", DECLINED_CARD)]:
        card = {"number": number, "exp_month": 12, "exp_year": 2030, "cvc": "123"}
        method = client.v1.payment_methods.create({"type": "card", "card": card})
        client.v1.payment_methods.attach(method.id, {"customer": customer})
        known[name] = method.id
    charge = {"amount": 1_000_000, "currency": "eur", "customer": customer, "source": known["good"]}
    return known | {"charge": client.v1.charges.create(charge).id}


def make(client, job):
    """What each order came to, by its number. An order has a key of its own, or the library makes one."""

    def one(order):
        options = {"idempotency_key": order["key"]} if order["key"] else {}
        try:
            made = create(client, order, job["known"], options)
        except stripe.StripeError as error:
            return told(error)
        headers = made.last_response.headers
        return {"id": made.id, "replayed": headers.get("Idempotent-Replayed"), "call": headers.get("X-Call-Id")}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([order["number"] for order in job["orders"]], pool.map(one, job["orders"])))


def create(client, order, known, options):
    metadata = {"order": order["number"], "note": "grün & 100 % = [all]"}
    match order["kind"]:
        case "charge":
            paid = {"customer": known["customer"], "source": known["good"]}
            params = {"amount": 1999, "currency": "eur", "description": "one + one", "metadata": metadata} | paid
            return client.v1.charges.create(params, options)
        case "payment_intent":
            paid = {"customer": known["customer"], "payment_method": known["good"], "confirm": True}
            params = {"amount": 2999, "currency": "eur", "metadata": metadata, "expand": ["customer"]} | paid
            return client.v1.payment_intents.create(params, options)
        case "customer":
            address = {"line1": "Straße 1", "city": "Köln", "country": "DE"}
            nested = {"address": address, "preferred_locales": ["de", "fr"], "metadata": metadata}
            return client.v1.customers.create({"name": "A & B"} | nested, options)
        case "refund":
            return client.v1.refunds.create({"charge": known["charge"], "amount": 1, "metadata": metadata}, options)


def read(client, job):
    """Lists, pages and single objects, by the library's older interface as well."""
    stripe.api_key, stripe.api_base = job["key"], job["base"]
    pages = client.v1.charges.list({"limit": 7})
    filtered = client.v1.refunds.list({"limit": 5, "charge": job["known"]["charge"]})
    found = client.v1.payment_intents.list({"limit": 1}).data[0]
    return {
        "pages": [charge.to_dict() for charge in pages.auto_paging_iter()],
        "filtered": [refund.id for refund in filtered.data],
        "expanded": client.v1.payment_intents.retrieve(found.id, {"expand": ["customer", "latest_charge"]}).to_dict(),
        "older": [customer.id for customer in stripe.Customer.list(limit=4).auto_paging_iter()],
        "single": stripe.Charge.retrieve(job["known"]["charge"]).to_dict(),
    }


def fail(client, job):
    """What the library raises where the API refuses."""
    known = job["known"]
    charge = {"amount": 5, "currency": "eur", "customer": known["customer"], "source": known["declined"]}
    ways = {
        "a declined card": lambda: client.v1.charges.create(charge),
        "a parameter that is wrong": lambda: client.v1.charges.create({"amount": -1, "currency": "eur"}),
        "an update of nothing": lambda: client.v1.customers.update("cus_nothing", {"name": "x"}),
        "a look at nothing": lambda: client.v1.charges.retrieve("ch_nothing"),
    }
    raised = {}
    for name, way in ways.items():
        try:
            way()
            raised[name] = None
        except stripe.StripeError as error:
            # Each declined charge is one of its own.
            raised[name] = {key: value for key, value in told(error).items() if key != "body"}
    return raised


def delete(client, job):
    return client.v1.customers.delete(job["id"]).to_dict()


def told(error):
    raised = {"raised": type(error).__name__, "status": error.http_status, "code": error.code}
    return raised | {"message": error.user_message, "body": error.json_body}


if __name__ == "__main__":
    main()
