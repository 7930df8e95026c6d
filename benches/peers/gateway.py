"""The bare gateway of this bench, as it is usually written in Python: FastAPI, redis-py and httpx.

It claims a key with `SET NX EX` and draws a token with `INCR`, in one pipeline; calls the tool; and keeps the result. It
has no ledger and no durability, and does not record failures. TOOL and REDIS are the addresses of both.
"""

import json
import os

import httpx
import redis.asyncio
from fastapi import FastAPI, Header, Request, Response

KEPT = 3600

app = FastAPI()
store = redis.asyncio.from_url(os.environ["REDIS"])
tool = httpx.AsyncClient(limits=httpx.Limits(max_connections=256, max_keepalive_connections=256), timeout=60)
url = f"http://{os.environ['TOOL']}/do"


def told(outcome: str, body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"gateway-outcome": outcome})


@app.post("/v1/tools/do/calls")
async def call(request: Request, idempotency_key: str = Header()) -> Response:
    asked = await request.json()
    name = f"python:{idempotency_key}"
    async with store.pipeline(transaction=False) as pipe:
        pipe.set(name, "running", nx=True, ex=KEPT)
        pipe.incr(f"tokens:{asked['session_id']}")
        claimed, token = await pipe.execute()
    if not claimed:
        return told("replayed", await store.get(name))
    answer = await tool.post(url, json=asked["args"])
    answer.raise_for_status()
    body = json.dumps({"status": "ok", "result": answer.json(), "fencing": token}).encode()
    await store.set(name, body, ex=KEPT)
    return told("executed", body)
