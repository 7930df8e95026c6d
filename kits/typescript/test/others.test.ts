/** What answers is an older or a newer gateway, or none. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { NotAGateway, Once, outcomeForModel, ProblemError, UnknownOutcome } from "@oncegate/client";
import { type Asked, fails, type Said, Server } from "./world.ts";

const JSON_TYPE = "application/json";
const PROBLEM = "application/problem+json";

/** A client before something that says this to its first, second, … request. */
async function before(context: TestContext, says: (count: number) => Said | Promise<Said>, patienceMs = 30_000) {
  const asked: Asked[] = [];
  const other = await new Server((one) => says(asked.push(one))).begin();
  context.after(() => other.end());
  return { once: new Once(other.url, { patienceMs }), url: other.url, count: () => asked.length, asked };
}

const DONE = { call_id: "c", status: "ok", result: null };
const done = (members: object = {}) => ({
  status: 200,
  type: JSON_TYPE,
  body: JSON.stringify({ ...DONE, ...members }),
});

const STRANGERS: Said[] = [
  { status: 200, type: "text/html", body: "<html>hello</html>" },
  { status: 200, type: JSON_TYPE, body: '{"ok": true}' },
  { status: 200, type: JSON_TYPE, body: "[1]" },
  { status: 200, body: Buffer.from([0xff, 0]) },
  { status: 204, body: "" },
  { status: 404, type: "text/html", body: "not found" },
  { status: 404, type: JSON_TYPE, body: '{"detail": "Not Found"}' },
  { status: 400, type: JSON_TYPE, body: '{"type": "https://example.org/problems/x", "status": 400}' },
  { status: 302, headers: { location: "http://127.0.0.1:1/" }, body: "" },
  { status: 401, body: "" },
];
for (const [number, said] of STRANGERS.entries()) {
  test(`what is no gateway is one clear error: ${number}`, async (context) => {
    const { once, url, count } = await before(context, () => said);
    const error = await fails(once.call("order", {}), NotAGateway);
    assert.ok(error.message.startsWith(`${url} is not an oncegate gateway`), error.message);
    assert.ok(error.key);
    assert.equal(error.effect, "unknown");
    assert.match(outcomeForModel(error), /Do not make this call again/);
    assert.ok(!outcomeForModel(error).includes(url));
    assert.equal(count(), 1);
  });
}

test("a list of something else is no list of tools", async (context) => {
  const { once } = await before(context, () => ({ status: 200, type: JSON_TYPE, body: '{"tools": [1]}' }));
  await fails(once.tools(), NotAGateway);
});

test("an answer that never comes is given up", async (context) => {
  const { once } = await before(context, () => new Promise<Said>(() => {}), 1_000);
  const begun = performance.now();
  const error = await fails(once.call("order", {}, { key: "k" }), UnknownOutcome);
  assert.equal(error.key, "k");
  assert.ok(performance.now() - begun < 15_000);
});

test("session, user and token are sent", async (context) => {
  const { url, asked } = await before(context, () => done());
  await new Once(url, { token: "t-1", sessionId: "s", userId: "u" }).call("order", {});
  assert.equal(asked[0]?.headers.authorization, "Bearer t-1");
  const { session_id, user_id } = JSON.parse(asked[0]?.body ?? "");
  assert.deepEqual([session_id, user_id], ["s", "u"]);
});

test("the gateway is asked to wait as long as the caller", async (context) => {
  const { once, asked } = await before(context, () => done());
  for (const patienceMs of [7_000, 0, 1_000_000]) await once.call("order", {}, { patienceMs });
  assert.deepEqual(
    asked.map((one) => one.headers.prefer),
    ["wait=7", "wait=1", "wait=60"],
  );
});

for (const [members, words] of [
  [{ compensated: true }, "do not build on it"],
  [{ compensating: true }, "do not build on it"],
  [{ replayed_as_similar: true }, "result of a similar call"],
  [{ similar_to: "c-0" }, "made shortly before: c-0"],
  [{ replayed: true, age_ms: 1_500 }, "2 s ago; nothing was executed again"],
] as [object, string][]) {
  test(`a model is told what a stored result is worth: ${words}`, async (context) => {
    const { once } = await before(context, () => done(members));
    const [told = "", result] = (await once.forModel("order", {})).split("\n\n");
    assert.ok(told.includes(words), told);
    assert.equal(result, "null");
  });
}

test("members that are not known are ignored", async (context) => {
  const body = JSON.stringify({ call_id: "c", status: "ok", result: 1, approved_by: "U1", replayed: true });
  const { once } = await before(context, () => ({ status: 200, type: JSON_TYPE, body }));
  const { result, replayed, fencing, members, text } = await once.call("order", {});
  assert.deepEqual([result, replayed, fencing, members.approved_by, text], [1, true, null, "U1", body]);
});

test("an older gateway without members proves nothing", async (context) => {
  const body = '{"type": "/problems/outcome-unknown"}';
  const { once, count } = await before(context, () => ({ status: 409, type: PROBLEM, body }));
  const error = await fails(once.call("order", {}), ProblemError);
  assert.deepEqual([error.effect, error.keyAction, error.callId, error.errors], ["unknown", "stop", null, []]);
  assert.equal(count(), 1);
});

test("words of a newer gateway prove nothing", async (context) => {
  const body = '{"type": "/problems/new", "effect": "half", "key_action": "dance", "detail": 7, "title": "New"}';
  const { once } = await before(context, () => ({ status: 409, type: PROBLEM, body }));
  const error = await fails(once.call("order", {}), ProblemError);
  assert.deepEqual([error.effect, error.keyAction, error.detail], ["unknown", "stop", "New"]);
});

for (const [action, headers] of [
  ["reuse", { "retry-after": "1" }],
  ["reuse", {}],
  ["wait", {}],
] as [string, Record<string, string>][]) {
  test(`a wait is obeyed in the member or the header: ${action} ${JSON.stringify(headers)}`, async (context) => {
    const wait = Object.keys(headers).length > 0 ? {} : { retry_after_ms: 1_000 };
    const body = JSON.stringify({ type: "/problems/rate-limited", effect: "unknown", key_action: action, ...wait });
    const busy = { status: 429, type: PROBLEM, headers, body };
    const { once } = await before(context, (count) => (count === 1 ? busy : done()));
    const begun = performance.now();
    assert.equal((await once.call("order", {})).tries, 2);
    assert.ok(performance.now() - begun >= 1_000);
  });
}

for (const action of ["rotate", "stop"]) {
  test(`what is final is not sent again: ${action}`, async (context) => {
    const body = JSON.stringify({ type: "/problems/x", effect: "none", key_action: action, retry_after_ms: 0 });
    const { once, count } = await before(context, () => ({ status: 409, type: PROBLEM, body }));
    await fails(once.call("order", {}), ProblemError);
    assert.equal(count(), 1);
  });
}

test("a call that runs elsewhere is asked for again", async (context) => {
  const running = { status: 202, type: JSON_TYPE, body: '{"call_id": "c", "status": "running"}' };
  const { once } = await before(context, (count) => (count === 2 ? done({ result: 1 }) : running));
  assert.equal((await once.call("order", {})).result, 1);
  const error = await fails(once.call("order", {}, { key: "k", patienceMs: 0 }), ProblemError);
  assert.deepEqual([error.slug, error.callId, error.key], ["call-in-progress", "c", "k"]);
});
