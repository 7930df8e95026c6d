/** The kit's types are those of /openapi.json: both are written as types, and tsc must find them equal. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { World } from "./world.ts";

interface Schema {
  $ref?: string;
  type?: string | string[];
  pattern?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  allOf?: Schema[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
}
type Schemas = Record<string, Schema>;

const SIMPLE: Record<string, string> = { string: "string", integer: "number", boolean: "boolean", null: "null" };

/** A schema as a type. */
function typeOf(schema: Schema, schemas: Schemas): string {
  if (schema.$ref) return typeOf(schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {}, schemas);
  if (schema.allOf) return schema.allOf.map((part) => typeOf(part, schemas)).join(" & ");
  if (schema.properties) {
    const members = Object.entries(schema.properties).map(([name, member]) => {
      const mark = schema.required?.includes(name) ? "" : "?";
      return `"${name}"${mark}: ${typeOf(member, schemas)};`;
    });
    return `{ ${members.join(" ")} }`;
  }
  const words = /^\^\(?([a-z|]+)\)?\$$/.exec(schema.pattern ?? "")?.[1];
  if (words)
    return words
      .split("|")
      .map((word) => JSON.stringify(word))
      .join(" | ");
  const names = [schema.type ?? []].flat();
  if (names.length === 0) return "unknown";
  return names.map((name) => SIMPLE[name] ?? container(name, schema, schemas)).join(" | ");
}

function container(name: string, schema: Schema, schemas: Schemas): string {
  if (name === "array") return `(${typeOf(schema.items ?? {}, schemas)})[]`;
  const { additionalProperties: inner } = schema;
  return `Record<string, ${typeof inner === "object" ? typeOf(inner, schemas) : "unknown"}>`;
}

const EQUAL = `
type Flat<T> = T extends (infer I)[] ? Flat<I>[] : T extends object ? { [K in keyof T]: Flat<T[K]> } : T;
type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
`;

/** What tsc says of these types beside the kit's own. */
function compared(types: Record<string, string>): string {
  const lines = Object.entries(types).map(
    ([name, type]) => `export const ${name}: Equal<Flat<kit.${name}>, Flat<${type}>> = true;`,
  );
  const file = join(import.meta.dirname, "wire.generated.ts");
  writeFileSync(file, ['import type * as kit from "@oncegate/client";', EQUAL, ...lines].join("\n"));
  const tsc = join(dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin/tsc");
  const flags = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--target", "es2022", "--skipLibCheck"];
  const modules = ["--module", "nodenext", "--types", "node", "--ignoreConfig"];
  const done = spawnSync(process.execPath, [tsc, ...flags, ...modules, file], { encoding: "utf8" });
  rmSync(file);
  return done.stdout + done.stderr;
}

test("the kit's types are those of the gateway", async (context) => {
  const world = await World.begin();
  context.after(() => world.end());
  const document = (await (await fetch(`${world.url}/openapi.json`)).json()) as { components: { schemas: Schemas } };
  const { schemas } = document.components;
  const names = ["CallRequest", "CallResult", "Problem", "Mistake", "Tool"];
  const types = Object.fromEntries(names.map((name) => [name, typeOf(schemas[name] ?? {}, schemas)]));
  assert.equal(compared(types), "");
  // The comparison finds a difference.
  assert.match(compared({ Mistake: "{ pointer: string; detail?: string }" }), /error TS2322/);
});
