// Terminal in a sandbox. Each terminal has its own shell, which ends with the panel.

import { button, element, inWords, troubleLine } from "./dom.js";
import { FitAddon } from "./vendor/addon-fit.mjs";
import { Terminal as Screen } from "./vendor/xterm.mjs";

/** Command that starts bash, or sh if the sandbox has no bash. */
export const SHELL = "command -v bash >/dev/null && exec bash -i -l; exec sh -i";
/** Keys that the keyboard of a phone lacks. */
const KEYS = [
  ["Esc", "\x1b"],
  ["Tab", "\t"],
  ["Ctrl-C", "\x03"],
  ["Ctrl-D", "\x04"],
  ["↑", "\x1b[A"],
  ["↓", "\x1b[B"],
];

export class Terminal {
  constructor(guest) {
    this.guest = guest;
    this.trouble = troubleLine();
    this.place = element("div", { class: "screen" });
    this.again = button(
      "New shell",
      () => {
        this.start();
      },
      this.trouble,
      { hidden: true },
    );
    const keys = element(
      "div",
      { class: "keys", "aria-label": "Keys" },
      ...KEYS.map(([label, text]) =>
        element(
          "button",
          {
            type: "button",
            class: "quiet",
            click: () => {
              this.type(text);
              this.screen.focus();
            },
          },
          label,
        ),
      ),
    );
    this.root = element("div", { class: "card console" }, this.trouble, this.place, keys, this.again);
    this.screen = null;
  }

  show() {
    if (!this.screen) this.build();
    this.fit.fit();
    this.screen.focus();
  }

  close() {
    this.watcher?.disconnect();
    this.isClosed = true;
    this.end();
  }

  build() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.screen = new Screen({
      fontSize: 13,
      fontFamily: colour("--mono"),
      cursorBlink: true,
      scrollback: 5000,
      theme: { background: "#10151b", foreground: "#dfe6ee", cursor: "#6cc0a8", selectionBackground: "#33465a" },
    });
    this.fit = new FitAddon();
    this.screen.loadAddon(this.fit);
    this.screen.open(this.place);
    this.screen.onData((text) => this.type(text));
    this.screen.onResize((size) => this.resize(size));
    this.watcher = new ResizeObserver(() => {
      if (this.place.offsetParent) this.fit.fit();
    });
    this.watcher.observe(this.place);
    this.fit.fit();
    this.start();
  }

  async start() {
    this.again.hidden = true;
    this.screen.focus();
    this.pid = null;
    this.typed = "";
    this.leaving = new AbortController();
    const size = { cols: this.screen.cols, rows: this.screen.rows };
    const message = {
      process: { cmd: "/bin/sh", args: ["-c", SHELL], envs: { TERM: "xterm-256color", LANG: "C.UTF-8" } },
      pty: { size },
      stdin: true,
    };
    try {
      for await (const { event } of this.guest.stream("process.Process/Start", message, this.leaving.signal)) {
        if (event.start) this.started(event.start.pid, size);
        if (event.data?.pty) this.screen.write(bytes(event.data.pty));
        if (event.end) this.screen.write(`\r\n[${event.end.status || "ended"}]\r\n`);
      }
    } catch (error) {
      if (this.isClosed) return;
      this.trouble.textContent = inWords(error);
    }
    this.pid = null;
    this.again.hidden = false;
  }

  started(pid, size) {
    this.pid = pid;
    this.trouble.textContent = "";
    if (size.cols !== this.screen.cols || size.rows !== this.screen.rows) this.resize(this.screen);
    this.send();
  }

  /** Kills the shell, because the shell does not end with the stream of its output. */
  end() {
    if (!this.pid) return this.leaving?.abort();
    const message = { process: { pid: this.pid }, signal: "SIGNAL_SIGKILL" };
    this.pid = null;
    const sent = this.guest.unary("process.Process/SendSignal", message, { keepalive: true });
    sent.catch(() => this.leaving.abort()); // the shell has already ended
  }

  type(text) {
    this.typed += text;
    this.send();
  }

  /** Sends the typed text in order, one message at a time. */
  async send() {
    if (this.isSending || !this.pid) return;
    this.isSending = true;
    try {
      while (this.typed && this.pid) {
        const [text] = this.typed.match(/^[^]{1,4096}/u);
        this.typed = this.typed.slice(text.length);
        const pty = btoa(String.fromCharCode(...new TextEncoder().encode(text)));
        await this.guest.unary("process.Process/SendInput", { process: { pid: this.pid }, input: { pty } });
      }
    } catch (error) {
      this.trouble.textContent = inWords(error);
    } finally {
      this.isSending = false;
    }
  }

  resize({ cols, rows }) {
    if (!this.pid) return;
    const message = { process: { pid: this.pid }, pty: { size: { cols, rows } } };
    this.guest.unary("process.Process/Update", message).catch(() => {}); // the shell may have ended
  }
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
