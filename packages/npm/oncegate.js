#!/usr/bin/env node
// Starts the program of this platform's package. Writes nothing to standard output, and downloads nothing.
const { spawn } = require("node:child_process");
const packages = Object.keys(require("./package.json").optionalDependencies);
const name = `@oncegate/${process.platform}-${process.arch}`;
const fail = (why) => {
  process.stderr.write(`oncegate: ${why}\n`);
  process.exit(1);
};
if (!packages.includes(name)) fail(`there is no package ${name} for this platform, only ${packages.join(", ")}`);
let program;
try {
  program = require.resolve(`${name}/bin/oncegate`);
} catch {
  fail(`the package ${name} is not installed; install oncegate without --omit=optional`);
}
// In a session of its own: a terminal and npm each send Ctrl-C to this process, and the program must get it once.
const child = spawn(program, process.argv.slice(2), { stdio: "inherit", detached: true });
let last = {};
const pass = (signal) => {
  if (last.signal !== signal || performance.now() - last.at > 500) child.kill(signal);
  last = { signal, at: performance.now() };
};
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) process.on(signal, pass);
// npm starts this by a shell, which ends on SIGTERM and passes nothing on.
const parent = process.ppid;
const orphaned = () => process.ppid !== parent && pass("SIGTERM", clearInterval(watch));
const watch = process.env.npm_command && setInterval(orphaned, 300);
child.on("error", (error) => fail(`${program}: ${error.message}`));
child.on("exit", (code, signal) => process.exit(signal ? 128 + require("node:os").constants.signals[signal] : code));
