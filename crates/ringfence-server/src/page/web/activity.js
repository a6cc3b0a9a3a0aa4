// Activity of a sandbox: commands, their results, and denied connections.

import { events } from "./api.js";
import { clock, element, inWords, span, troubleLine } from "./dom.js";
import { SHELL as OWN_SHELL } from "./terminal.js";
import { shortened, visible } from "./text.js";

const MOST = 300;
const PAUSE = 3000;
/** Ways in which the SDKs and this page run a line of shell. For these, only the line is shown. */
const SHELLS = [
  ["/bin/bash", "-l", "-c"],
  ["/bin/bash", "-c"],
  ["/bin/sh", "-c"],
];
/** Status texts of the guest. Code in the sandbox made up any other status text. */
const STATUS = /^(exit status \d{1,3}|signal: [a-z0-9 ]{1,30}|not started)$/;
const ERROR_NAME = /^[A-Za-z_][\w.]{0,60}$/;

/** Returns the exact command: one line of shell, or the words with the quotes that a shell would need. */
export function typed({ kind, words, omitted }) {
  if (!words) return "(too long to be shown)";
  const more = omitted ? ` … and ${omitted} more characters, which are not kept` : "";
  const shell = SHELLS.find((shell) => shell.length + 1 === words.length && shell.every((word, at) => word === words[at]));
  if (kind === "terminal" && shell?.length === 2 && words[2] === OWN_SHELL) return "a terminal that was opened in this web page";
  if (kind === "code" || shell) return visible(words.at(-1)) + more;
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : quoted(word))).join(" ") + more;
}

function quoted(word) {
  return `'${visible(word).replaceAll("'", "'\\''")}'`;
}

/** Returns the working directory and the variables of a command, as text. */
function surroundings({ directory, variables, omittedVariables }) {
  const names = variables.map(visible).join(", ") + (omittedVariables ? ` and ${omittedVariables} more` : "");
  return (directory ? `; in ${visible(directory)}` : "") + (names ? `; with ${names} set` : "");
}

/** Returns the class and the text of the badge for a result, as the sandbox reports it. */
function ending({ ok, status, kind }) {
  if (ok) return ["good", "ok"];
  const isUsual = STATUS.test(status) || (kind === "code" && ERROR_NAME.test(status));
  return ["bad", isUsual ? status : `failed: ${shortened(visible(status || "no message"), 40, 20)}`];
}

/** Returns a short text as it is, or a shortened text with a button that shows all of it. */
function folded(text) {
  const short = shortened(text, 240, 120);
  if (short === text) return [text];
  const shown = element("span", {}, short);
  const all = element("button", { type: "button", class: "quiet" }, "Show all");
  all.addEventListener("click", () => {
    shown.textContent = text;
    all.remove();
  });
  return [shown, " ", all];
}

export class Activity {
  constructor(id, onEnded) {
    this.id = id;
    this.rows = new Map();
    this.leaving = new AbortController();
    this.trouble = troubleLine();
    this.entries = element("ol", { class: "events" });
    this.nothing = element("p", { class: "hint" }, "Nothing was run or denied since the server started.");
    this.root = element(
      "section",
      { class: "card activity" },
      element("h2", {}, "Activity"),
      element(
        "p",
        { class: "hint" },
        "Commands are shown as the server passed them on. The sandbox itself reports how a command ended.",
      ),
      this.trouble,
      this.nothing,
      this.entries,
    );
    this.follow(onEnded);
  }

  close() {
    this.leaving.abort();
  }

  /** Follows the events until the sandbox ends, and reconnects when the connection breaks. */
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
    const row = this.rows.get(one.id) ?? this.add(one.id, one.began, typed(one), one.kind);
    const [kind, words] = { running: ["busy", "running"], left: ["dim", "client left"] }[one.state] ?? ending(one);
    row.badge.className = `badge ${kind}`;
    row.badge.textContent = words;
    const took = one.at ? `, ${span(new Date(one.at) - new Date(one.began))}` : "";
    const left = one.state === "left" ? "; the client disconnected, and the command may still run" : "";
    row.note.textContent = one.kind + took + surroundings(one) + left;
  }

  denied({ at, target, reason, allow }) {
    const row = this.add(null, at, visible(target), "denial");
    row.badge.className = "badge bad";
    row.badge.textContent = "denied";
    row.note.append(visible(reason), ...(allow ? ["; to allow this target: ", element("code", {}, visible(allow))] : []));
  }

  add(id, at, text, kind) {
    this.nothing.hidden = true;
    const row = { badge: element("span", { class: "badge" }), note: element("span", { class: "dim note" }) };
    const item = element(
      "li",
      { "data-kind": kind, "data-at": new Date(at).getTime() },
      element("time", { class: "dim" }, clock(at)),
      row.badge,
      element("code", {}, ...folded(text)),
      row.note,
    );
    // Insert by time, newest first, because executions and denials arrive from two sources.
    const after = [...this.entries.children].find((other) => Number(other.dataset.at) <= Number(item.dataset.at));
    this.entries.insertBefore(item, after ?? null);
    while (this.entries.children.length > MOST) this.entries.lastChild.remove();
    if (id !== null) this.rows.set(id, row);
    return row;
  }
}
