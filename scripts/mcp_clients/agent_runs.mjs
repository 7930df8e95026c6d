// What the agents in TypeScript share (agent_runs.py has the same): when a model has done its work, a model that asks for
// the order until it is told of one, and runs that are begun again after an error.
import { MockLanguageModelV4 } from "ai/test";

// Does the jobs of the command line. `run(place, job, model)` runs the agent once.
export async function work(run) {
  // A client that waits for a stream that has ended does not keep Node.js running.
  setInterval(() => {}, 1000);
  const [place, jobs] = process.argv.slice(2);
  for (const job of JSON.parse(jobs)) {
    const told = [];
    for (let turn = 0; turn < job.turns; turn++) {
      try {
        await run(place, job, modelOf(job, told));
        break;
      } catch (error) {
        told.push(String(error));
      }
    }
    console.log(JSON.stringify({ order: job.order, told }));
  }
  process.exit(0);
}

// A model that asks, and once more if it was told of no order. What it is told goes to the list.
function modelOf({ order, fault, turns }, told) {
  const before = told.length;
  const zero = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 };
  const usage = { inputTokens: zero, outputTokens: { total: 0, text: 0, reasoning: 0 } };
  const generate = ({ prompt }) => {
    const results = prompt.at(-1).role === "tool" ? prompt.at(-1).content : [];
    told.push(...results.filter((part) => part.type === "tool-result").map((part) => textOf(part.output)));
    const heard = told.slice(before);
    const isOver = heard.length >= turns || heard.some((text) => text.includes("order_id"));
    // A model makes a new id for each call.
    const call = { type: "tool-call", toolCallId: `call_${told.length}`, toolName: toolName(), input: JSON.stringify({ order, fault }) };
    return isOver ? [{ type: "text", text: "Done." }] : [call];
  };
  let name = "create_order";
  const toolName = () => name;
  const answer = (asked) => {
    name = asked.tools?.find((tool) => tool.name.endsWith("create_order"))?.name ?? name;
    return generate(asked);
  };
  const finishOf = (content) => ({ unified: content[0].type === "text" ? "stop" : "tool-calls", raw: undefined });
  return new MockLanguageModelV4({
    doGenerate: async (asked) => {
      const content = answer(asked);
      return { content, finishReason: finishOf(content), usage, warnings: [] };
    },
    doStream: async (asked) => {
      const content = answer(asked);
      const parts = content.flatMap((part) =>
        part.type === "text"
          ? [{ type: "text-start", id: "t" }, { type: "text-delta", id: "t", delta: part.text }, { type: "text-end", id: "t" }]
          : [part],
      );
      const all = [{ type: "stream-start", warnings: [] }, ...parts, { type: "finish", finishReason: finishOf(content), usage }];
      return { stream: ReadableStream.from(all) };
    },
  });
}

// What the model sees of a tool's result.
function textOf({ type, value }) {
  if (type === "content") return value.map((part) => part.text ?? "").join("\n");
  return typeof value === "string" ? value : JSON.stringify(value);
}
