// `@e2b/code-interpreter` for JavaScript against `ringfence serve`. The last argument is the
// directory in which the package is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const place = process.argv.at(-1);
const load = createRequire(`${place}/package.json`);
const { Sandbox, NotFoundError, TimeoutError } = load("@e2b/code-interpreter");

const sandbox = await Sandbox.create({ timeoutMs: 120_000 });
const first = await sandbox.runCode("x = 41; print('out'); x + 1");
assert.deepEqual([first.text, first.logs.stdout, first.executionCount], ["42", ["out\n"], 1]);
assert.equal((await sandbox.runCode("x")).text, "41");

const heard = [];
const failed = await sandbox.runCode("import sys\nprint('why', file=sys.stderr)\n1 / 0", {
  onStderr: (message) => void heard.push(message.line),
  onError: (error) => void heard.push(error.name),
});
assert.deepEqual(heard, ["why\n", "ZeroDivisionError"]);
assert.equal(failed.error.value, "division by zero");
const rich = await sandbox.runCode(
  "class A:\n def _repr_html_(self): return '<b>'\ndisplay(A())\nA()",
);
const shown = rich.results.map((result) => [result.html, result.isMainResult]);
assert.deepEqual(shown, [["<b>", false], ["<b>", true]]);

assert.equal((await sandbox.runCode("let y = 1; y + 1", { language: "js" })).text, "2");
assert.equal((await sandbox.runCode("y", { language: "javascript" })).text, "1");
const shell = await sandbox.runCode("echo $WORD", { language: "bash", envs: { WORD: "said" } });
assert.deepEqual(shell.logs.stdout, ["said\n"]);

await sandbox.files.write("note", "written");
const context = await sandbox.createCodeContext({ cwd: "/home/user", language: "python" });
assert.equal((await sandbox.runCode("z = open('note').read(); z", { context })).text, "written");
assert.ok((await sandbox.runCode("z")).error, "a context has its own names");
assert.equal((await sandbox.listCodeContexts()).length, 4);
await sandbox.restartCodeContext(context);
assert.equal((await sandbox.runCode("z", { context })).error.name, "NameError");
await assert.rejects(
  sandbox.runCode("import time; time.sleep(600)", { context, timeoutMs: 1000 }),
  TimeoutError,
);
assert.equal((await sandbox.runCode("1", { context })).text, "1");
await sandbox.removeCodeContext(context);
await assert.rejects(sandbox.runCode("1", { context }), NotFoundError);

const again = await Sandbox.connect(sandbox.sandboxId);
assert.equal((await again.runCode("x")).text, "41");
assert.equal(await sandbox.kill(), true);
await assert.rejects(sandbox.runCode("1"), TimeoutError);
// The package leaves a timer behind that would keep this process for a minute.
process.exit();
