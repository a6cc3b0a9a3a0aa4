// What happens in a sandbox: what is run, how it ends, and what is denied.

import { events } from "./api.js";
import { clock, element, inWords, span, troubleLine } from "./dom.js";
import { SHELL as OWN_SHELL } from "./terminal.js";

const MOST = 300;
const PAUSE = 3000;
const SHELL = /(^|\/)(ba|z|da|)sh$/;

/** A command as somebody would type it: what a shell is given, or the words. */
function typed(words) {
  if (words.at(-1) === OWN_SHELL) return "the terminal of a page like this";
  if (!words[0]) return "(too long to be shown)";
  if (words.length >= 3 && SHELL.test(words[0]) && words.at(-2) === "-c") return words.at(-1);
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : JSON.stringify(word))).join(" ");
}

export class Activity {
  constructor(id, onEnded) {
    this.id = id;
    this.rows = new Map();
    this.leaving = new AbortController();
    this.trouble = troubleLine();
    this.entries = element("ol", { class: "events" });
    this.nothing = element("p", { class: "hint" }, "Nothing was run or denied since the server was started.");
    this.root = element(
      "section",
      { class: "card activity" },
      element("h2", {}, "Activity"),
      this.trouble,
      this.nothing,
      this.entries,
    );
    this.follow(onEnded);
  }

  close() {
    this.leaving.abort();
  }

  /** Listens until the sandbox ends, and again when the way to the server breaks. */
  async follow(onEnded) {
    const { signal } = this.leaving;
    while (!signal.aborted) {
      try {
        this.rows.clear();
        this.entries.replaceChildren();
        for await (const event of events(this.id, signal)) {
          this.trouble.textContent = "";
          if (event.execution) this.executed(event.execution);
          if (event.denial) this.denied(event.denial);
        }
        onEnded();
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) return onEnded();
        this.trouble.textContent = inWords(error);
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }

  executed(one) {
    const row = this.rows.get(one.id) ?? this.add(one.id, one.began, typed(one.words), one.kind);
    const [kind, words] = {
      running: ["busy", "runs"],
      left: ["dim", "left"],
      ended: one.ok ? ["good", "ok"] : ["bad", one.status || "failed"],
    }[one.state];
    row.badge.className = `badge ${kind}`;
    row.badge.textContent = words;
    const took = one.at ? `, ${span(new Date(one.at) - new Date(one.began))}` : "";
    row.note.textContent =
      one.kind + took + (one.state === "left" ? "; its client has left, and it may still run" : "");
  }

  denied({ at, target, reason, allow }) {
    const row = this.add(null, at, target, "denial");
    row.badge.className = "badge bad";
    row.badge.textContent = "denied";
    row.note.append(reason, ...(allow ? ["; to allow it: ", element("code", {}, allow)] : []));
  }

  add(id, at, text, kind) {
    this.nothing.hidden = true;
    const row = { badge: element("span", { class: "badge" }), note: element("span", { class: "dim note" }) };
    const item = element(
      "li",
      { "data-kind": kind, "data-at": new Date(at).getTime() },
      element("time", { class: "dim" }, clock(at)),
      row.badge,
      element("code", {}, text),
      row.note,
    );
    // The newest first; the two sources are not in step.
    const after = [...this.entries.children].find((other) => Number(other.dataset.at) <= Number(item.dataset.at));
    this.entries.insertBefore(item, after ?? null);
    while (this.entries.children.length > MOST) this.entries.lastChild.remove();
    if (id !== null) this.rows.set(id, row);
    return row;
  }
}
