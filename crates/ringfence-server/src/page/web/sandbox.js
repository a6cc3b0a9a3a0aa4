// View of one sandbox: overview, terminal, files and policy.

import { Activity } from "./activity.js";
import { detail, facts, Guest, kill, pause, resume, stay } from "./api.js";
import { Charts } from "./charts.js";
import { button, confirmed, element, every, inWords, mark, troubleLine } from "./dom.js";
import { Files } from "./files.js";
import { badge, remaining, title } from "./list.js";
import { Terminal } from "./terminal.js";

const REST = 5000;
const MORE = 1800;
const TABS = { overview: "Overview", terminal: "Terminal", files: "Files", policy: "Policy" };

export class Sandbox {
  constructor(id) {
    this.id = id;
    this.panels = {};
    this.isOver = false;
    this.isLost = false;
    this.trouble = troubleLine();
    this.name = element("h1", { class: "cut" }, id);
    this.state = element("span");
    this.left = element("span", { class: "dim" });
    this.tabs = element(
      "nav",
      { class: "tabs", "aria-label": "Parts of the sandbox" },
      ...Object.entries(TABS).map(([tab, label]) =>
        element("a", { href: `#/sandboxes/${encodeURIComponent(id)}/${tab}`, "data-tab": tab }, label),
      ),
    );
    this.isPaused = false;
    this.longer = button("Extend lifetime", () => this.prolong(), this.trouble, { class: "quiet", id: "prolong" });
    this.rest = button("Pause", () => this.pauseOrResume(), this.trouble, { class: "quiet", id: "rest" });
    this.resting = element(
      "p",
      { class: "hint", role: "status", hidden: true },
      "The processes of this sandbox are paused and keep their memory.",
      " Resume the sandbox to use its terminal and files.",
    );
    this.actions = element(
      "span",
      { class: "row" },
      this.longer,
      this.rest,
      button("Kill", () => this.kill(), this.trouble, { class: "quiet danger", id: "kill" }),
    );
    this.panel = element("div", { class: "panel" });
    this.root = element(
      "article",
      {},
      element("a", { class: "back", href: "#/" }, "‹ Sandboxes"),
      element(
        "div",
        { class: "row wrap head" },
        this.name,
        this.state,
        this.left,
        element("span", { class: "stretch" }),
        this.actions,
      ),
      this.trouble,
      this.resting,
      this.tabs,
      this.panel,
    );
    this.known = null;
    this.stop = every(REST, () => this.refresh());
  }

  async learn() {
    const [one, held] = await Promise.all([detail(this.id), facts(this.id)]);
    this.name.textContent = title(one);
    return { one, held, guest: new Guest(this.id, one.envdAccessToken) };
  }

  close() {
    this.stop();
    for (const panel of Object.values(this.panels)) panel.close?.();
  }

  async refresh() {
    if (this.isOver) return;
    try {
      const one = await detail(this.id);
      if (this.isOver) return;
      this.isPaused = one.state === "paused";
      this.state.replaceChildren(badge(one.state));
      this.left.textContent = remaining(one);
      this.rest.textContent = this.isPaused ? "Resume" : "Pause";
      this.longer.hidden = this.isPaused;
      this.resting.hidden = !this.isPaused;
      if (this.isLost) this.trouble.textContent = "";
      this.isLost = false;
    } catch (error) {
      this.failed(error);
    }
  }

  failed(error) {
    if (error.status === 404) return this.over();
    this.isLost = true;
    this.trouble.textContent = inWords(error);
  }

  /** Shows that the sandbox has ended. The panels stay readable. */
  over() {
    this.isOver = true;
    this.stop();
    this.state.replaceChildren(badge("ended"));
    this.left.textContent = "";
    this.resting.hidden = true;
    this.actions.remove();
    this.trouble.textContent = "This sandbox has ended, or it belongs to another key.";
    for (const panel of Object.values(this.panels)) panel.close?.();
  }

  async kill() {
    const question = `Kill ${this.name.textContent}? This ends its processes and deletes its files.`;
    if (!(await confirmed(question, "Kill"))) return;
    await kill(this.id);
    this.over();
    location.hash = "#/";
  }

  async prolong() {
    await stay(this.id, MORE);
    await this.refresh();
  }

  async pauseOrResume() {
    try {
      await (this.isPaused ? resume(this.id, MORE) : pause(this.id));
    } finally {
      await this.refresh(); // another client may have paused or resumed the sandbox
    }
  }

  /** Shows one tab. The other tabs keep their state, so that a terminal keeps running. */
  async show(tab) {
    this.tab = Object.hasOwn(TABS, tab) ? tab : "overview";
    for (const link of this.tabs.children) mark(link, link.dataset.tab === this.tab);
    let known;
    try {
      known = await (this.known ??= this.learn());
    } catch (error) {
      this.known = null;
      return this.failed(error);
    }
    for (const panel of Object.values(this.panels)) panel.hide?.();
    this.panels[this.tab] ??= this.open(this.tab, known);
    this.panel.replaceChildren(this.panels[this.tab].root);
    this.panels[this.tab].show?.();
  }

  open(tab, { one, held, guest }) {
    switch (tab) {
      case "terminal":
        return new Terminal(guest);
      case "files":
        return new Files(guest);
      case "policy":
        return policy(held);
      default:
        return new Overview(this.id, one, held, () => this.refresh());
    }
  }
}

function policy(held) {
  const trouble = troubleLine();
  // Browsers have no clipboard for a page of another machine that was loaded without TLS.
  const copy = navigator.clipboard
    ? button("Copy", () => navigator.clipboard.writeText(held.policy), trouble, { class: "quiet" })
    : null;
  return {
    root: element(
      "div",
      { class: "card" },
      element("div", { class: "row" }, element("h2", {}, "Policy"), element("span", { class: "stretch" }), copy),
      trouble,
      element(
        "p",
        { class: "hint" },
        "The policy as it is enforced. Defaults are filled in, and the values of variables are left out.",
      ),
      element("pre", { class: "policy", tabindex: "0" }, held.policy),
      element("p", { class: "hint cut" }, `sha256 ${held.policySha256}`),
    ),
  };
}

/** Overview of a sandbox: charts, activity, promises and description. */
class Overview {
  constructor(id, one, held, onEnded) {
    this.charts = new Charts(id);
    this.activity = new Activity(id, onEnded);
    this.root = element(
      "div",
      { class: "overview" },
      this.charts.root,
      this.activity.root,
      promises(held),
      about(one, held),
    );
  }

  show() {
    this.charts.show();
  }

  hide() {
    this.charts.hide();
  }

  close() {
    this.charts.hide();
    this.activity.close();
  }
}

function about(one, held) {
  const lines = [
    ["Name", one.sandboxID],
    ["Template", one.templateID],
    ["Backend", held.backend],
    ["Reason", held.because],
    ["Image", held.image],
    ["Network", held.network === "allow" ? "the hosts that the policy allows" : held.network],
    ["Started", new Date(one.startedAt).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })],
    ...Object.entries(one.metadata ?? {}).filter(([name]) => name !== "name"),
  ];
  return element(
    "section",
    { class: "card about" },
    element("h2", {}, "About"),
    element(
      "dl",
      {},
      ...lines
        .filter(([, value]) => value)
        .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    ),
  );
}

function promises(held) {
  const marks = { held: ["✓", "held"], weaker: ["≈", "weaker"], absent: ["–", "absent"] };
  return element(
    "section",
    { class: "card promises" },
    element("h2", {}, "Promises"),
    element(
      "ul",
      {},
      ...held.promises.map(({ name, promise, state, by }) =>
        element(
          "li",
          { class: state, "data-promise": name },
          element("span", { class: "mark", role: "img", "aria-label": marks[state][1] }, marks[state][0]),
          element(
            "span",
            {},
            element("strong", {}, name),
            ` ${promise}`,
            element("span", { class: "dim by" }, state === "held" ? by : `${state}: ${by}`),
          ),
        ),
      ),
    ),
  );
}
