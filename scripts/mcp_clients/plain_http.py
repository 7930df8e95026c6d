"""A program without MCP: it asks until it has the order. With no `timeout_s` it does not wait, and asks at the URL it is given."""

import json
import sys
import time
import urllib.error
import urllib.request


def fetch(url, prefer, timeout_s, body=None):
    """The status, the headers and the text of an answer."""
    request = urllib.request.Request(url, body, {"content-type": "application/json", "prefer": prefer})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.headers, problem.read().decode()


def persist(place, job):
    """What it is told of its requests, the order at last."""
    args = {"order": job["order"], "fault": job["fault"]}
    body = json.dumps({"args": args, "idempotency_key": job["order"].replace(" ", "-")}).encode()
    for _ in range(job["turns"]):
        try:
            # One that gives up late is answered before.
            prefer = f"wait={50 if job['timeout_s'] > 50 else 60}"
            status, headers, text = fetch(f"{place}/v1/tools/create_order/calls", prefer, job["timeout_s"], body)
        except OSError as error:
            status, headers, text = None, {}, repr(error)
        yield text
        if status == 200:
            return
        time.sleep(float(headers.get("retry-after", job["pause_s"])))


def follow(place, job):
    """What it is told at first, and the order at last."""
    body = json.dumps({"args": {"order": job["order"], "fault": job["fault"]}, "idempotency_key": "asynchronous"}).encode()
    status, headers, text = fetch(f"{place}/v1/tools/create_order/calls", "respond-async", 10, body)
    yield text
    while status == 202:
        time.sleep(int(headers["retry-after"]))
        status, headers, text = fetch(f"{place}{headers['location']}", "", 10)
    yield text


for job in json.loads(sys.argv[2]):
    told = list((persist if job["timeout_s"] else follow)(sys.argv[1], job))
    print(json.dumps({"order": job["order"], "told": told}), flush=True)
