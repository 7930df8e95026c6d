/** Claims about calls: one effect each, whatever is lost. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { BY_ARGUMENTS, Once, outcomeForModel, ProblemError, UnknownOutcome } from "@oncegate/client";
import { type Fault, fails, World } from "./world.ts";

const ORDER = { order: "1" };
let world: World;
beforeEach(async () => {
  world = await World.begin();
});
afterEach(() => world.end());

const keys = () => world.bodies.map((body) => JSON.parse(body).idempotency_key);

test("the package as built is tested", () => {
  assert.match(import.meta.resolve("@oncegate/client"), /node_modules\/@oncegate\/client\/dist\/index\.js$/);
});

test("the same key is one effect", async () => {
  const once = new Once(world.url, { sessionId: "s", userId: "u" });
  const first = await once.call<{ made: boolean }>("order", ORDER, { key: "k-1" });
  const second = await once.call("order", ORDER, { key: "k-1" });
  assert.deepEqual([first.replayed, second.replayed], [false, true]);
  assert.equal(first.callId, second.callId);
  assert.equal(first.result.made, true);
  assert.match(second.text, /12345678901234567890/);
  assert.notEqual(second.ageMs, null);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a call without a key is an intent of its own", async () => {
  const once = new Once(world.line.url);
  await once.call("order", ORDER);
  await once.call("order", ORDER);
  const [first, second] = keys();
  assert.ok(first && second && first !== second);
  assert.equal(world.effects.length, 2);
});

const LOST: Fault[][] = [["drop"], ["cut", "drop"], ["nginx"], ["drop", "nginx", "cut"]];
for (const faults of LOST) {
  test(`a lost answer is asked for with the same key: ${faults}`, async () => {
    world.faults = [...faults];
    assert.equal((await new Once(world.line.url).call("order", ORDER)).tries, faults.length + 1);
    assert.deepEqual(world.effects, [ORDER]);
    assert.equal(new Set(world.bodies).size, 1, "the same bytes each time");
  });
}

test("no answer within the patience is an unknown outcome", async () => {
  await world.stop();
  const once = new Once(world.url, { patienceMs: 1_000 });
  const begun = performance.now();
  const error = await fails(once.call("order", ORDER), UnknownOutcome);
  assert.ok(performance.now() - begun < 12_000);
  assert.deepEqual([error.effect, error.keyAction, error.keyMade], ["unknown", "reuse", true]);
  assert.ok(error.key !== null && error.message.includes(error.key));
  assert.match(outcomeForModel(error), /may have happened/);
  assert.ok(!outcomeForModel(error).includes(error.key));
  await world.start();
  await once.call("order", ORDER, { key: error.key });
  assert.ok((await once.call("order", ORDER, { key: error.key })).replayed);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a refusal after a lost answer does not say that nothing happened", async () => {
  world.faults = ["drop", "unauthenticated"];
  const error = await fails(new Once(world.line.url).call("order", ORDER), UnknownOutcome);
  assert.equal(error.effect, "unknown");
  assert.deepEqual(world.effects, [ORDER]);
});

test("a gateway that is killed and started again", async () => {
  world.does = ["slow"];
  const call = new Once(world.line.url).call("sure", ORDER);
  while (world.effects.length === 0) await sleep(20);
  await world.stop("SIGKILL");
  await world.start();
  assert.equal((await call).tries > 1, true);
  assert.deepEqual(world.effects, [ORDER]);
  assert.equal(new Set(world.bodies).size, 1);
});

test("a held call is unknown until a person settles it", async () => {
  world.does = ["drop"];
  const once = new Once(world.url, { patienceMs: 1_000 });
  const error = await fails(once.call("order", ORDER, { key: "k" }), ProblemError);
  assert.deepEqual([error.slug, error.effect, error.keyAction, error.key], ["outcome-unknown", "unknown", "wait", "k"]);
  assert.equal(error.retryAfterMs, null);
  const text = outcomeForModel(error);
  assert.ok(error.callId !== null && text.includes(error.callId));
  // The id is random, and may hold these digits itself.
  assert.doesNotMatch(text.replaceAll(error.callId, ""), /409/);
  assert.match(text, /never executes it twice/);
  await world.resolve(error.callId, { made: "by hand" });
  assert.deepEqual((await once.call("order", ORDER, { key: "k" })).result, { made: "by hand" });
  assert.deepEqual(world.effects, [ORDER]);
});

test("an unknown outcome is waited for", async () => {
  world.does = ["drop", "drop"];
  await new Once(world.url).call("sure", ORDER);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a call in progress is waited for", async () => {
  world.does = ["slow"];
  const once = new Once(world.url);
  const error = await fails(once.call("order", ORDER, { key: "k", patienceMs: 200 }), ProblemError);
  assert.deepEqual([error.slug, error.keyAction, error.effect], ["call-in-progress", "reuse", "unknown"]);
  assert.ok((await once.call("order", ORDER, { key: "k" })).replayed);
  assert.deepEqual(world.effects, [ORDER]);
});

test("two at once are one effect", async () => {
  world.does = ["slow"];
  const once = new Once(world.url);
  const calls = [1, 2].map(() => once.call("order", ORDER, { key: "k" }));
  const [first, second] = await Promise.all(calls);
  assert.equal(first?.callId, second?.callId);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a key of another call is refused", async () => {
  const once = new Once(world.url);
  await once.call("order", ORDER, { key: "k" });
  const error = await fails(once.call("order", { order: "2" }, { key: "k" }), ProblemError);
  assert.deepEqual([error.slug, error.keyAction, error.differs], ["key-reused", "rotate", ["/order"]]);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a budget is waited for within the patience", async () => {
  const once = new Once(world.url, { sessionId: "s" });
  await once.call("scarce", ORDER);
  const begun = performance.now();
  const again = { key: "k", patienceMs: 500 };
  const error = await fails(once.call("scarce", { order: "2" }, again), ProblemError);
  const wait = error.retryAfterMs ?? 0;
  assert.ok(performance.now() - begun < wait, "a wait that is longer than the patience is not begun");
  assert.equal(error.slug, "budget-exceeded");
  await once.call("scarce", { order: "2" }, { key: "k" });
  assert.equal(world.effects.length, 2);
});

test("a rejection has what the tool said", async () => {
  world.does = ["reject"];
  const error = await fails(new Once(world.url).call("order", ORDER), ProblemError);
  assert.deepEqual([error.slug, error.toolStatus], ["tool-rejected", 422]);
  assert.match(outcomeForModel(error), /The tool said: \{"reason":"no such article"\}$/);
});

test("arguments that do not fit are named", async () => {
  const once = new Once(world.url);
  const error = await fails(once.call("careful", { order: 1 }), ProblemError);
  assert.deepEqual([error.slug, error.errors[0]?.pointer], ["invalid-arguments", "/order"]);
  assert.equal((await fails(once.call("careful", ORDER, { key: BY_ARGUMENTS }), ProblemError)).slug, "key-missing");
});

test("a model is asked for a key where one is required", async () => {
  const once = new Once(world.url);
  const text = await once.forModel("careful", ORDER);
  assert.match(text, /argument idempotency_key/);
  assert.doesNotMatch(text, /header/);
  for (let time = 0; time < 2; time += 1) {
    assert.match(await once.forModel("careful", { ...ORDER, idempotency_key: "order-1" }), /"made":true/);
  }
  assert.deepEqual(world.effects, [ORDER]);
});

test("what is not JSON is said to a model", async () => {
  const text = await new Once(world.line.url).forModel("order", { order: Number.POSITIVE_INFINITY });
  assert.match(text, /^Nothing was executed/);
  assert.deepEqual(world.bodies, []);
});

test("what a model repeats is one effect", async () => {
  const once = new Once(world.line.url, { patienceMs: 1_000 });
  world.does = ["drop"];
  for (const clientCallId of ["t:1", "t:2"]) {
    const text = await once.forModel("order", ORDER, { clientCallId });
    assert.match(text, /may or may not have executed/);
    assert.doesNotMatch(text, /only the program/);
  }
  assert.match(await once.forModel("order", { order: "2" }), /^\{"made"/);
  assert.match(await once.forModel("order", { order: "2" }), /^Stored result of this same call/);
  assert.deepEqual(new Set(keys()), new Set([undefined]));
  assert.deepEqual(world.effects, [ORDER, { order: "2" }]);
});

test("an answer to the second try is no stored result to a model", async () => {
  world.faults = ["drop"];
  assert.match(await new Once(world.line.url).forModel("order", ORDER), /^\{"made"/);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a try after the window of its arguments has no second effect", async () => {
  world.faults = ["late"];
  const text = await new Once(world.line.url).forModel("short", ORDER);
  assert.match(text, /the same call was made with this key before/);
  assert.deepEqual(world.effects, [ORDER]);
});

test("the model is not told to repeat a call whose key it has not", async () => {
  world.does = ["drop"];
  const error = await fails(new Once(world.url).call("order", ORDER, { patienceMs: 0 }), ProblemError);
  assert.match(outcomeForModel(error), /only the program that has its key/);
});

test("arguments are read once", async () => {
  const args = { order: "1" };
  world.faults = ["cut"];
  const call = new Once(world.line.url).call("order", args);
  args.order = "2";
  await call;
  assert.deepEqual(world.effects, [ORDER]);
});

test("a caller that gives up ends its wait, and not the call", async () => {
  world.does = ["slow"];
  const once = new Once(world.url);
  const call = once.call("order", ORDER, { key: "k", signal: AbortSignal.timeout(300) });
  await assert.rejects(call, { name: "TimeoutError" });
  assert.ok((await once.call("order", ORDER, { key: "k" })).replayed);
  assert.deepEqual(world.effects, [ORDER]);
});

test("a typed tool is sent, and equal calls are one", async () => {
  const order = new Once(world.url).tool<{ order: string }, { made: boolean }>({
    name: "order",
    description: "Order something.",
    input_schema: { type: "object", properties: { order: { type: "string" } } },
  });
  assert.equal(order.name, "order");
  assert.equal((await order(ORDER)).made, true);
  assert.equal((await order(ORDER)).made, true);
  assert.deepEqual(world.effects, [ORDER]);
});

test("what cannot be sent is not sent", async () => {
  const once = new Once(world.line.url);
  for (const key of ["", "a b", "k".repeat(256), "é"])
    await assert.rejects(once.call("order", ORDER, { key }), TypeError);
  for (const value of [Number.NaN, 1n, () => 1, new Map(), [undefined]]) {
    await assert.rejects(once.call("order", { value }), TypeError);
  }
  for (const patienceMs of [-1, Number.NaN, Number.POSITIVE_INFINITY]) {
    await assert.rejects(once.call("order", ORDER, { patienceMs }), RangeError);
  }
  assert.throws(() => new Once("127.0.0.1:8080"), TypeError);
  assert.throws(() => new Once(world.url, { token: "a b" }), TypeError);
  assert.doesNotMatch(JSON.stringify(new Once(world.url, { token: "secret" })), /secret/);
  assert.deepEqual(world.bodies, []);
});
