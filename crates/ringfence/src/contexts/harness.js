// Runs cells of code in node's own context, and tells the host what comes of them. Requests and messages are
// as in harness.py.
'use strict';
const fs = require('node:fs');
const net = require('node:net');
const repl = require('node:repl');
const util = require('node:util');
const vm = require('node:vm');
const { PassThrough } = require('node:stream');

const PIECE = 4096 - 64;
const [OUTPUT, ERRORS] = [1, 2];
let mark = null;

// Writes all of it, also while the pipe is full.
function write(descriptor, bytes) {
  for (let start = 0; start < bytes.length; ) {
    try {
      start += fs.writeSync(descriptor, bytes, start);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

// What code writes goes straight out: an interrupt in the midst of a stream's own writing would leave it stuck for good.
for (const [stream, descriptor] of [[process.stdout, OUTPUT], [process.stderr, ERRORS]]) {
  stream.write = (chunk, encoding, callback) => {
    const done = typeof encoding === 'function' ? encoding : callback;
    write(descriptor, typeof chunk === 'string' ? Buffer.from(chunk, done === encoding ? 'utf8' : encoding) : chunk);
    if (done) process.nextTick(done);
    return true;
  };
}

function tell(descriptor, message) {
  const bytes = Buffer.from(JSON.stringify(message).toWellFormed?.() ?? JSON.stringify(message));
  for (let start = 0; start < bytes.length; start += PIECE) {
    const piece = bytes.subarray(start, start + PIECE);
    const kind = start + PIECE < bytes.length ? '+' : '.';
    const head = `\x1e${mark}${kind}${piece.length.toString(16).padStart(4, '0')}`;
    write(descriptor, Buffer.concat([Buffer.from(head), piece]));
  }
}

function show(value, isMain) {
  const bundle = value?.[Symbol.for('Jupyter.display')]?.() ?? {};
  const formats = { 'text/plain': util.inspect(value), ...bundle };
  tell(OUTPUT, { type: 'result', is_main_result: isMain, formats });
}

const interpreter = repl.start({
  input: new PassThrough(),
  output: new PassThrough().resume(),
  prompt: '',
  terminal: false,
  useGlobal: true,
});
globalThis.display = (...values) => values.forEach((value) => show(value, false));

// Ends the cell that runs with an error: one of its own, or an interrupt while it waits for something.
let fail = null;
process.on('SIGINT', () => fail?.(Object.assign(new Error('the cell was interrupted'), { name: 'Interrupted' })));
// What code throws while nobody waits for it, and what the REPL throws.
const thrown = (error) => (fail ? fail(error) : write(ERRORS, Buffer.from(`Uncaught ${util.inspect(error)}\n`)));
process.on('uncaughtException', thrown);
interpreter._domain?.removeAllListeners('error').on('error', thrown);

function evaluate(code, filename) {
  return new Promise((resolve, reject) => {
    fail = reject;
    let script;
    try {
      const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER;
      script = new vm.Script(code, { filename, importModuleDynamically });
    } catch (error) {
      // The REPL alone knows `await` outside of functions, but an interrupt of code that only computes ends it.
      if (!/\bawait\b/.test(code)) throw error;
      const done = (error, value) => (error ? reject(error) : resolve({ value }));
      return interpreter.eval(code, interpreter.context, filename, done);
    }
    resolve({ value: script.runInThisContext({ breakOnSigint: true }) });
  });
}

async function execute(number, code, variables) {
  const before = { ...process.env };
  Object.assign(process.env, variables);
  tell(OUTPUT, { type: 'begun', cell: number });
  try {
    const { value } = await evaluate(code, `cell ${number}`);
    if (value !== undefined) show(value, true);
  } catch (raised) {
    const error = raised?.err ?? raised; // what the REPL takes for unfinished is the error in it
    const isInterrupt = error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
    const name = isInterrupt ? 'Interrupted' : String(error?.name ?? 'Error');
    const traceback = String(error?.stack ?? util.inspect(error));
    tell(OUTPUT, { type: 'error', name, value: String(error?.message ?? error), traceback });
  }
  fail = null;
  for (const name of Object.keys(variables)) {
    if (name in before) process.env[name] = before[name];
    else delete process.env[name];
  }
  tell(ERRORS, { type: 'end', cell: number });
  tell(OUTPUT, { type: 'end', cell: number });
}

async function main() {
  let rest = '';
  let words = [];
  // Not as a file: a thread that waits for one keeps the process from exiting.
  const requests = new net.Socket({ fd: 0, readable: true, writable: false }).setEncoding('utf8');
  for await (const text of requests) {
    const parts = (rest + text).split('\0');
    rest = parts.pop();
    for (const word of parts) {
      if (mark === null) {
        mark = word;
        tell(ERRORS, { type: 'ready' });
        tell(OUTPUT, { type: 'ready' });
      } else if (word !== '' || words.length < 2) {
        words.push(word);
      } else {
        const [number, code, ...pairs] = words;
        words = [];
        const variables = pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]);
        await execute(Number(number), code, Object.fromEntries(variables));
      }
    }
  }
  process.exit(0);
}

main();
