// One durable step in a Restate service: the tool is called once for a key, and a repeated request gets the same result.
import * as restate from "@restatedev/restate-sdk";

// The SDK expects it, and Node has it only since version 22.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new this((done, failed) => ([resolve, reject] = [done, failed]));
  return { promise, resolve, reject };
};

const url = `http://${process.env.TOOL}/do`;

const call = async (args) => {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(args) });
  if (!answer.ok) throw new Error(`the tool answered ${answer.status}`);
  return answer.json();
};

const tool = restate.service({
  name: "Tool",
  handlers: { do: async (ctx, asked) => ({ status: "ok", result: await ctx.run(() => call(asked.args)) }) },
});

await restate.serve({ services: [tool], port: Number(process.env.PORT) });
