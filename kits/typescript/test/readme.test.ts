/** The lines of README and docs/mcp.md, as printed. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { World } from "./world.ts";

test("the lines of the README run", async (context) => {
  const world = await World.begin();
  const file = join(import.meta.dirname, "readme.generated.ts");
  context.after(() => Promise.all([world.end(), rmSync(file, { force: true })]));
  const readme = readFileSync(join(import.meta.dirname, "..", "README.md"), "utf8");
  const blocks = [...readme.matchAll(/^```ts\n(.*?)^```/gms)].map((found) => found[1]);
  assert.equal(blocks.length, 1);
  writeFileSync(file, blocks.join("\n").replaceAll("http://127.0.0.1:8080", world.url));
  for (let time = 0; time < 2; time += 1) assert.match(await printed(file), /^\{ made: true, large: /);
  assert.equal(world.effects.length, 1);
});

test("the lines of the page about MCP run", async (context) => {
  const world = await World.begin();
  const file = join(import.meta.dirname, "page.generated.ts");
  context.after(() => Promise.all([world.end(), rmSync(file, { force: true })]));
  const page = readFileSync(join(import.meta.dirname, "..", "mcp.md"), "utf8");
  const lines = /^```ts\n(import .*?)^```/ms.exec(page)?.[1] ?? "";
  const calls = [1, 2].map(
    (id) => `console.log(await callTool("create_order", { business_id: "B-1" }, "call_${id}"));`,
  );
  writeFileSync(file, [lines, ...calls].join("\n").replaceAll("http://127.0.0.1:8080", world.url));
  assert.match(await printed(file), /^\{"made":true.*\nStored result/s);
  assert.equal(world.effects.length, 1);
});

async function printed(file: string): Promise<string> {
  const program = spawn(process.execPath, [file], { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  for await (const part of program.stdout) text += part;
  return text;
}
