// Client of the server's API: the part that E2B's clients use, and the extensions below /ringfence.

const KEPT = "ringfence-key";
/** Port number that addresses the guest of a sandbox. */
const GUEST = "49983";

/** Refusal of the server, with its status and message. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The key exists only in this tab, and is never part of a URL.
let key = sessionStorage.getItem(KEPT);
let onLocked = () => {};

export const isIn = () => key !== null;

/** Registers a function to call when the server no longer accepts the key. */
export function whenLocked(act) {
  onLocked = act;
}

export async function logIn(given) {
  await ask("GET", "/v2/sandboxes?limit=1", { headers: { "X-API-KEY": given } });
  key = given;
  sessionStorage.setItem(KEPT, key);
}

export function logOut() {
  key = null;
  sessionStorage.removeItem(KEPT);
}

async function ask(method, path, { headers = {}, body, signal, keepalive } = {}) {
  let response;
  try {
    response = await fetch(path, { method, headers, body, signal, keepalive, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Refused(response.status, said.message || `the server answers with status ${response.status}`);
}

async function call(method, path, { message, ...rest } = {}) {
  const headers = { "X-API-KEY": key ?? "" };
  if (message !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await ask(method, path, { headers, body: message && JSON.stringify(message), ...rest });
  } catch (error) {
    if (error.status === 401) onLocked(error.message);
    throw error;
  }
}

const json = async (response) => (await response).json();
const named = (id) => encodeURIComponent(id);

/** Returns whether the server needs a key. */
export const needsKey = async () => (await json(ask("GET", "/ringfence/server"))).needsKey;

/** Returns the sandboxes of this key, newest first, up to ten pages. */
export async function sandboxes() {
  const all = [];
  let next = "";
  for (let page = 0; page < 10 && next !== null; page += 1) {
    const response = await call("GET", `/v2/sandboxes?state=running,paused&nextToken=${encodeURIComponent(next)}`);
    all.push(...(await response.json()));
    next = response.headers.get("X-Next-Token");
  }
  return all;
}

export const templates = () => json(call("GET", "/ringfence/templates"));
export const create = (message) => json(call("POST", "/v2/sandboxes", { message }));
export const detail = (id) => json(call("GET", `/sandboxes/${named(id)}`));
export const facts = (id) => json(call("GET", `/ringfence/sandboxes/${named(id)}`));
export const kill = (id) => call("DELETE", `/sandboxes/${named(id)}`);
export const stay = (id, timeout) => call("POST", `/sandboxes/${named(id)}/timeout`, { message: { timeout } });
export const pause = (id) => call("POST", `/sandboxes/${named(id)}/pause`, { message: {} });
export const resume = (id, timeout) => call("POST", `/sandboxes/${named(id)}/resume`, { message: { timeout } });
export const metrics = (id, since) =>
  json(call("GET", `/sandboxes/${named(id)}/metrics?start=${Math.floor(since / 1000)}`));

/** Yields the events of a sandbox until the sandbox ends. */
export async function* events(id, signal) {
  const response = await call("GET", `/ringfence/sandboxes/${named(id)}/events`, { signal });
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of pieces(response)) {
    text += decoder.decode(bytes, { stream: true });
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

async function* pieces(response) {
  const reader = response.body.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    reader.cancel().catch(() => {}); // the stream may have ended
  }
}

/** Client of the guest in a sandbox, which speaks the protocol of envd: Connect with JSON. */
export class Guest {
  constructor(id, token) {
    this.headers = { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": GUEST, "X-Access-Token": token };
  }

  /** Calls a method that has one answer. */
  async unary(method, message, options = {}) {
    const headers = { ...this.headers, "Content-Type": "application/json", "Connect-Protocol-Version": "1" };
    return json(ask("POST", `/${method}`, { headers, body: JSON.stringify(message), ...options }));
  }

  /** Calls a method that answers with a stream of messages. */
  async *stream(method, message, signal) {
    const headers = {
      ...this.headers,
      "Content-Type": "application/connect+json",
      "Connect-Protocol-Version": "1",
      "Keepalive-Ping-Interval": "50",
    };
    const response = await ask("POST", `/${method}`, { headers, body: framed(message), signal });
    for await (const { isLast, text } of frames(response)) {
      const said = JSON.parse(text);
      if (isLast && said.error) throw new Refused(0, said.error.message || said.error.code);
      if (isLast) return;
      yield said;
    }
  }

  async list(path) {
    const { entries } = await this.unary("filesystem.Filesystem/ListDir", { path, depth: 1 });
    return (entries ?? []).filter((entry) => typeof entry.name === "string");
  }

  remove(path) {
    return this.unary("filesystem.Filesystem/Remove", { path });
  }

  async read(path) {
    return (await ask("GET", `/files?path=${encodeURIComponent(path)}`, { headers: this.headers })).blob();
  }

  write(path, blob) {
    const headers = { ...this.headers, "Content-Type": "application/octet-stream" };
    return ask("POST", `/files?path=${encodeURIComponent(path)}`, { headers, body: blob });
  }
}

/** Returns a message in its frame, which begins with one byte of flags and four bytes of length. */
function framed(message) {
  const text = new TextEncoder().encode(JSON.stringify(message));
  const frame = new Uint8Array(5 + text.length);
  new DataView(frame.buffer).setUint32(1, text.length);
  frame.set(text, 5);
  return frame;
}

async function* frames(response) {
  const decoder = new TextDecoder();
  let held = new Uint8Array(0);
  for await (const piece of pieces(response)) {
    const bytes = new Uint8Array(held.length + piece.length);
    bytes.set(held);
    bytes.set(piece, held.length);
    let from = 0;
    while (bytes.length - from >= 5) {
      const end = from + 5 + new DataView(bytes.buffer, from).getUint32(1);
      if (bytes.length < end) break;
      yield { isLast: (bytes[from] & 2) !== 0, text: decoder.decode(bytes.subarray(from + 5, end)) };
      from = end;
    }
    held = bytes.slice(from);
  }
}
