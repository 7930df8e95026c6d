/** Frameworks as they are, before a gateway: what their models call twice is one effect. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Agent } from "@mastra/core/agent";
import { Once } from "@oncegate/client";
import { aiTools } from "@oncegate/client/ai-sdk";
import { mastraTools } from "@oncegate/client/mastra";
import { generateText, isStepCount } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { World } from "./world.ts";

const ORDER = { order: "1" };
let world: World;
let once: Once;
beforeEach(async () => {
  world = await World.begin();
  once = new Once(world.line.url, { patienceMs: 2_000 });
});
afterEach(() => world.end());

const sent = () => [...new Set(world.bodies.map((body) => JSON.parse(body).client_call_id))];

/** A model that makes the same call in its first two steps. */
function model() {
  let step = 0;
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  return new MockLanguageModelV4({
    doGenerate: async () => {
      step += 1;
      const call = {
        type: "tool-call",
        toolCallId: "call_1",
        toolName: "order",
        input: JSON.stringify(ORDER),
      } as const;
      return step < 3
        ? { content: [call], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] }
        : {
            content: [{ type: "text", text: "done" }],
            finishReason: { unified: "stop", raw: undefined },
            usage,
            warnings: [],
          };
    },
  });
}

test("AI SDK", async () => {
  const tools = aiTools(once, await once.tools(), { thread: "t" });
  assert.deepEqual(Object.keys(tools), ["careful", "create_order", "order", "scarce", "short", "sure"]);
  world.faults = ["drop"];
  const { steps } = await generateText({ model: model(), prompt: "Order it.", tools, stopWhen: isStepCount(3) });
  const told = steps.flatMap((step) => step.toolResults.map((one) => String(one.output)));
  assert.match(told[0] ?? "", /^\{"made"/);
  assert.match(told[1] ?? "", /^Stored result/);
  assert.deepEqual(world.effects, [ORDER]);
  assert.deepEqual(sent(), ["t:call_1"]);
});

test("Mastra", async () => {
  const tools = mastraTools(once, await once.tools(), { thread: "t" });
  world.faults = ["drop"];
  const agent = new Agent({ id: "a", name: "a", instructions: "Order.", model: model() as never, tools });
  const answer = await agent.generate("Order it.", { maxSteps: 3 });
  const told = JSON.stringify(answer.toolResults);
  assert.match(told, /made/);
  assert.deepEqual(world.effects, [ORDER]);
  assert.deepEqual(sent(), ["t:call_1"]);
});

test("Mastra without an agent", async () => {
  const { order } = mastraTools(once, await once.tools());
  assert.match(String(await order?.execute?.(ORDER, {} as never)), /^\{"made"/);
  assert.match(sent()[0], /^[0-9a-f-]{36}$/);
  assert.deepEqual(world.effects, [ORDER]);
});
