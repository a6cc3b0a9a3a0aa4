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
const LONGEST_MESSAGE = 16 << 20;
// How long an error's words may be, in characters.
const LONGEST_WORDS = 512 << 10;
// How deep a form of a result may be nested: the host reads no more than 127 levels.
const DEEPEST = 100;
const UNTOLD = '<an error that cannot be told>';
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

// Halves of characters, which JSON has words for and the host has none, are replaced.
const whole = (key, value) => (typeof value === 'string' ? value.replace(/\p{Surrogate}/gu, '\ufffd') : value);

function tell(descriptor, message) {
  send(descriptor, Buffer.from(JSON.stringify(message, whole)));
}

function send(descriptor, bytes) {
  for (let start = 0; start < bytes.length; start += PIECE) {
    const piece = bytes.subarray(start, start + PIECE);
    const kind = start + PIECE < bytes.length ? '+' : '.';
    const head = `\x1e${mark}${kind}${piece.length.toString(16).padStart(4, '0')}`;
    write(descriptor, Buffer.concat([Buffer.from(head), piece]));
  }
}

const isNested = (part, depth) =>
  part !== null && typeof part === 'object' && (!depth || Object.values(part).some((inner) => isNested(inner, depth - 1)));

// A form of a result in JSON, unless it cannot be told so.
function said(part) {
  try {
    const text = JSON.stringify(part, whole);
    return isNested(part, DEEPEST) ? undefined : text;
  } catch {
    return undefined;
  }
}

function show(value, isMain) {
  const plain = util.inspect(value);
  const bundle = value?.[Symbol.for('Jupyter.display')]?.() ?? {};
  const encode = (formats) => {
    const parts = Object.entries(formats).map(([kind, part]) => [said(kind), said(part)]);
    const told = parts.filter(([, text]) => text !== undefined).map(([kind, text]) => `${kind}:${text}`);
    return Buffer.from(`{"type":"result","is_main_result":${isMain},"formats":{${told.join()}}}`);
  };
  let bytes = encode({ 'text/plain': plain, ...bundle });
  if (bytes.length > LONGEST_MESSAGE) {
    console.error('a result was too long to be shown');
    bytes = encode({ 'text/plain': plain.slice(0, PIECE) });
  }
  send(OUTPUT, bytes);
}

// What can be told of something that code threw, which may throw again when it is looked at.
function words(look, otherwise) {
  let text;
  try {
    text = String(look());
  } catch {
    text = otherwise;
  }
  const left = text.length - LONGEST_WORDS;
  if (left <= 0) return text;
  const half = LONGEST_WORDS / 2;
  return `${text.slice(0, half)}\n[${left} characters left out]\n${text.slice(-half)}`;
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
const thrown = (error) => {
  if (fail) return fail(error);
  write(ERRORS, Buffer.from(`Uncaught ${words(() => util.inspect(error), UNTOLD)}\n`));
};
process.on('uncaughtException', thrown);
interpreter._domain?.removeAllListeners('error').on('error', thrown);

const AWAIT = /\bawait\b/;

// Whether code that is a script says `await` outside of functions all the same: `await (x)` is a call there.
function waits(code) {
  const isBlock = (text) => {
    try {
      return Boolean(new vm.Script(`class _ { static { ${text}\n} }`)); // where it is nobody's name
    } catch {
      return false;
    }
  };
  return !isBlock(code) && isBlock(code.replaceAll(new RegExp(AWAIT, 'g'), 'call'));
}

function evaluate(code, filename) {
  return new Promise((resolve, reject) => {
    fail = reject;
    const mayWait = AWAIT.test(code);
    let script = null;
    try {
      const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER;
      script = new vm.Script(code, { filename, importModuleDynamically });
    } catch (error) {
      if (!mayWait) throw error;
    }
    if (script === null || (mayWait && waits(code))) {
      // The REPL alone knows `await` outside of functions, but an interrupt of code that only computes ends it.
      // Code may throw anything, `undefined` too.
      const done = (error, value) => (error === null ? resolve({ value }) : reject(error));
      return interpreter.eval(code, interpreter.context, filename, done);
    }
    resolve({ value: script.runInThisContext({ breakOnSigint: true }) });
  });
}

function told(raised) {
  let error = raised;
  let isInterrupt = false;
  try {
    error = raised?.err ?? raised; // what the REPL takes for unfinished is the error in it
    isInterrupt = error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
  } catch {
    // It is told as it is.
  }
  const looks = words(() => util.inspect(error), UNTOLD);
  return {
    name: isInterrupt ? 'Interrupted' : words(() => error?.name ?? 'Error', 'Error'),
    value: words(() => error?.message ?? error, looks),
    traceback: words(() => error?.stack ?? looks, looks),
  };
}

async function execute(number, code, variables) {
  const before = { ...process.env };
  Object.assign(process.env, variables);
  tell(OUTPUT, { type: 'begun', cell: number });
  try {
    const { value } = await evaluate(code, `cell ${number}`);
    if (value !== undefined) show(value, true);
  } catch (raised) {
    tell(OUTPUT, { type: 'error', ...told(raised) });
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
