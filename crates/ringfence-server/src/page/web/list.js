// List of sandboxes, and the form that creates a sandbox.

import { create, sandboxes, templates } from "./api.js";
import { asked, attempt, button, element, every, mark, span, troubleLine } from "./dom.js";

const REST = 3000;
/** Template that the form selects by default. */
const USUAL = "base";
const STAY = 1800;
const STAYS = [
  [300, "5 minutes"],
  [1800, "30 minutes"],
  [3600, "1 hour"],
  [28800, "8 hours"],
];

/** Returns the title of a sandbox: the name in its metadata, or else its id. */
export function title(sandbox) {
  return sandbox.metadata?.name || sandbox.sandboxID;
}

/** Creates the badge for the state of a sandbox. */
export function badge(state) {
  return element("span", { class: `badge ${state === "running" ? "good" : "dim"}` }, state);
}

/** Returns the remaining lifetime of a sandbox as text. The lifetime of a paused sandbox does not pass. */
export function remaining(sandbox) {
  return sandbox.state === "paused" ? "lifetime paused" : `${span(new Date(sandbox.endAt) - Date.now())} left`;
}

export class List {
  constructor() {
    this.rows = new Map();
    this.current = null;
    this.trouble = troubleLine();
    this.entries = element("ul", { class: "sandboxes" });
    this.nothing = element(
      "div",
      { class: "empty", hidden: true },
      element("p", {}, "No sandbox is running."),
      element("p", {}, "Create a sandbox here, or with a program:"),
      element(
        "pre",
        {},
        `export E2B_API_URL=${location.origin} \\\n  E2B_SANDBOX_URL=${location.origin}\n`,
        "python3 -c 'from e2b import Sandbox; Sandbox.create()'",
      ),
    );
    this.root = element(
      "section",
      { class: "list", "aria-label": "Sandboxes" },
      element(
        "div",
        { class: "row" },
        element("h1", {}, "Sandboxes"),
        element("span", { class: "stretch" }),
        button("New", () => this.create(), this.trouble, { id: "new" }),
      ),
      this.trouble,
      this.entries,
      this.nothing,
    );
    this.stop = every(REST, () => this.refresh());
  }

  close() {
    this.stop();
    this.stop = null;
  }

  mark(id) {
    this.current = id;
    for (const [own, row] of this.rows) mark(row.link, own === id);
  }

  async refresh() {
    await attempt(async () => this.render(await sandboxes()), this.trouble);
  }

  render(all) {
    const there = new Set(all.map((one) => one.sandboxID));
    for (const [id, row] of this.rows) {
      if (there.has(id)) continue;
      row.item.remove();
      this.rows.delete(id);
    }
    all.forEach((one, index) => {
      const row = this.rows.get(one.sandboxID) ?? this.add(one);
      row.left.textContent = remaining(one);
      row.state.replaceChildren(badge(one.state));
      if (this.entries.children[index] !== row.item)
        this.entries.insertBefore(row.item, this.entries.children[index] ?? null);
    });
    this.nothing.hidden = all.length > 0;
    this.mark(this.current);
  }

  /** Creates the row of a sandbox. The row stays the same element, so that it keeps focus and pointer. */
  add(one) {
    const [state, left] = [element("span"), element("span", { class: "stretch" })];
    const more = Object.entries(one.metadata ?? {}).filter(([name]) => name !== "name");
    const link = element(
      "a",
      { href: `#/sandboxes/${encodeURIComponent(one.sandboxID)}` },
      element(
        "span",
        { class: "row" },
        element("strong", { class: "cut" }, title(one)),
        element("span", { class: "stretch" }),
        state,
      ),
      element("span", { class: "row dim" }, left, element("span", { class: "cut" }, one.templateID)),
      more.length === 0
        ? null
        : element(
            "span",
            { class: "tags" },
            ...more.map(([name, value]) => element("span", { class: "tag cut" }, `${name}: ${value}`)),
          ),
    );
    const row = { item: element("li", {}, link), link, state, left };
    this.rows.set(one.sandboxID, row);
    return row;
  }

  async create() {
    const known = await templates();
    const made = await asked((close) => this.form(known, close));
    if (!made) return;
    location.hash = `#/sandboxes/${encodeURIComponent(made.sandboxID)}`;
    await this.refresh();
  }

  form(known, close) {
    const trouble = troubleLine();
    const name = element("input", { id: "new-name", maxlength: "60", autocomplete: "off" });
    const template = element(
      "select",
      { id: "new-template" },
      ...known.map((one) =>
        element("option", { value: one.name, selected: one.name === USUAL }, `${one.name}, network ${one.network}`),
      ),
    );
    const stay = element(
      "select",
      { id: "new-stay" },
      ...STAYS.map(([seconds, words]) => element("option", { value: seconds, selected: seconds === STAY }, words)),
    );
    const make = element("button", { type: "submit" }, "Create");
    const submit = (event) => {
      event.preventDefault();
      const metadata = name.value.trim() ? { name: name.value.trim() } : {};
      const wish = { templateID: template.value, timeout: Number(stay.value), metadata };
      attempt(async () => close(await create(wish)), trouble, make);
    };
    return [
      element(
        "form",
        { submit },
        element("h2", {}, "New sandbox"),
        trouble,
        element("label", { for: "new-template" }, "Template"),
        template,
        element("label", { for: "new-stay" }, "Lifetime"),
        stay,
        element("label", { for: "new-name" }, "Name (optional)"),
        name,
        element(
          "div",
          { class: "row end" },
          element("button", { type: "button", class: "quiet", click: () => close() }, "Cancel"),
          make,
        ),
      ),
    ];
  }
}
