#!/usr/bin/env node
// Starts the program of this platform's package. Writes nothing to standard output, and downloads nothing.
const { spawn } = require("node:child_process");
const name = `@oncegate/${process.platform}-${process.arch}`;
const fail = (why) => {
  process.stderr.write(`oncegate: ${why}\n`);
  process.exit(1);
};
let program;
try {
  program = require.resolve(`${name}/bin/oncegate`);
} catch {
  const known = Object.keys(require("./package.json").optionalDependencies);
  if (known.includes(name)) fail(`the package ${name} is not installed; install oncegate without --omit=optional`);
  fail(`there is no package for this platform (${process.platform}-${process.arch}), only ${known.join(", ")}`);
}
// In a session of its own: Ctrl-C reaches this process, and npm as well, which passes it on. The program gets it once.
const child = spawn(program, process.argv.slice(2), { stdio: "inherit", detached: true });
let last = { at: -1000 };
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    if (last.signal !== signal || performance.now() - last.at > 500) child.kill(signal);
    last = { signal, at: performance.now() };
  });
}
child.on("error", (error) => fail(`${program}: ${error.message}`));
child.on("exit", (code, signal) => {
  if (signal) process.removeAllListeners(signal).kill(process.pid, signal);
  else process.exit(code);
});
