// The official `e2b` package for JavaScript against `ringfence serve`. The last argument is the
// directory in which the package is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const place = process.argv.at(-1);
const { Sandbox, CommandExitError, NotFoundError } = createRequire(`${place}/package.json`)("e2b");

const sandbox = await Sandbox.create({
  timeoutMs: 120_000,
  metadata: { of: "javascript" },
  envs: { GREETING: "hello" },
});
const greeted = await sandbox.commands.run('printf "$GREETING $PWD"');
assert.equal(greeted.stdout, "hello /home/user");
await assert.rejects(sandbox.commands.run("echo why >&2; exit 3"), (error) => {
  assert.ok(error instanceof CommandExitError, String(error));
  assert.deepEqual([error.exitCode, error.stderr], [3, "why\n"]);
  return true;
});

const heard = [];
await sandbox.commands.run("for i in 1 2 3; do echo $i; done", {
  onStdout: (text) => void heard.push(text),
});
assert.equal(heard.join(""), "1\n2\n3\n");
const numbers = [...Array(20).keys()];
const many = await Promise.all(numbers.map((number) => sandbox.commands.run(`echo ${number}`)));
assert.deepEqual(many.map((result) => result.stdout), numbers.map((number) => `${number}\n`));

await sandbox.files.write("note", "ä".repeat(100_000));
assert.equal(await sandbox.files.read("/home/user/note"), "ä".repeat(100_000));
assert.deepEqual((await sandbox.files.list("/home/user")).map((entry) => entry.name), ["note"]);
const seen = new Promise((see) => {
  sandbox.files
    .watchDir("/home/user", (event) => see(event.name))
    .then(() => sandbox.files.write("watched", "x"));
});
assert.equal(await seen, "watched");

let typed = "";
const terminal = await sandbox.pty.create({
  cols: 80,
  rows: 24,
  onData: (data) => (typed += new TextDecoder().decode(data)),
});
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("echo $((6 * 7)); exit\n"));
await terminal.wait().catch((error) => assert.ok(error instanceof CommandExitError, String(error)));
assert.match(typed, /\b42\b/);

const signed = await sandbox.downloadUrl("/home/user/watched", { useSignatureExpiration: 60 });
assert.equal(await (await fetch(signed)).text(), "x");

const info = await sandbox.getInfo();
assert.deepEqual([info.templateId, info.metadata], ["base", { of: "javascript" }]);
const [metric] = await sandbox.getMetrics();
assert.ok(metric.cpuCount > 0, JSON.stringify(metric));
await sandbox.setTimeout(600_000);
assert.ok((await sandbox.getInfo()).endAt > info.endAt);
const page = await Sandbox.list({ query: { metadata: { of: "javascript" } } }).nextItems();
assert.deepEqual(page.map((listed) => listed.sandboxId), [sandbox.sandboxId]);
const again = await Sandbox.connect(sandbox.sandboxId);
assert.equal((await again.commands.run("cat watched")).stdout, "x");

assert.equal(await sandbox.pause(), true);
assert.equal(await sandbox.pause(), false);
assert.equal((await sandbox.getInfo()).state, "paused");
assert.equal(await sandbox.isRunning(), false);
const resumed = await Sandbox.connect(sandbox.sandboxId);
assert.equal((await resumed.commands.run("cat watched")).stdout, "x");

await assert.rejects(sandbox.createSnapshot(), /mode="filesystem"/);
// This package has no word for files alone: the API is asked.
const taken = await fetch(`${process.env.E2B_API_URL}/sandboxes/${sandbox.sandboxId}/snapshots`, {
  method: "POST",
  headers: { "X-API-KEY": process.env.E2B_API_KEY, "Content-Type": "application/json" },
  body: JSON.stringify({ name: "from-javascript", memory: false }),
});
assert.equal(taken.status, 201);
const snapshot = { snapshotId: (await taken.json()).snapshotID };
const copy = await Sandbox.create(snapshot.snapshotId);
assert.equal(await copy.files.read("watched"), "x");
assert.equal(await copy.kill(), true);
const kept = await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems();
assert.deepEqual(kept.map((listed) => listed.snapshotId), [snapshot.snapshotId]);
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false);

assert.equal(await sandbox.isRunning(), true);
assert.equal(await sandbox.kill(), true);
assert.equal(await sandbox.isRunning(), false);
await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError);
