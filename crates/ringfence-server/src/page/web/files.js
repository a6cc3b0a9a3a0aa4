// Files of a sandbox: list, preview, download, upload and delete.

import { attempt, button, confirmed, element, size, troubleLine } from "./dom.js";

const HOME = "/home/user";
/** Maximum number of bytes of a file that the preview shows. */
const SHOWN = 256 * 1024;

const below = (directory, name) => (directory === "/" ? `/${name}` : `${directory}/${name}`);

export class Files {
  constructor(guest) {
    this.guest = guest;
    this.path = HOME;
    this.trouble = troubleLine();
    this.way = element("nav", { class: "way", "aria-label": "Directory" });
    this.chosen = element("input", { type: "file", multiple: true, hidden: true, change: () => this.upload() });
    this.rows = element("tbody");
    this.preview = element("section", { class: "preview", hidden: true, "aria-label": "File" });
    this.root = element(
      "div",
      { class: "card files" },
      element(
        "div",
        { class: "row wrap" },
        this.way,
        element("span", { class: "stretch" }),
        button("Reload", () => this.list(), this.trouble, { class: "quiet" }),
        element("button", { type: "button", click: () => this.chosen.click() }, "Upload"),
        this.chosen,
      ),
      this.trouble,
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element("tr", {}, ...["Name", "Size", "Changed", ""].map((label) => element("th", { scope: "col" }, label))),
        ),
        this.rows,
      ),
      this.preview,
    );
  }

  show() {
    attempt(() => this.list(), this.trouble);
  }

  async go(path) {
    this.path = path;
    this.preview.hidden = true;
    await this.list();
  }

  async list() {
    const entries = await this.guest.list(this.path);
    const isDirectory = (entry) => entry.type === "FILE_TYPE_DIRECTORY";
    entries.sort((left, right) => isDirectory(right) - isDirectory(left) || left.name.localeCompare(right.name));
    const names = this.path.split("/").filter(Boolean);
    const step = (label, path) => button(label, () => this.go(path), this.trouble, { class: "link" });
    this.way.replaceChildren(
      step("/", "/"),
      ...names.flatMap((name, index) => [step(name, `/${names.slice(0, index + 1).join("/")}`), "/"]),
    );
    this.rows.replaceChildren(...entries.map((entry) => this.row(entry, isDirectory(entry))));
    if (entries.length === 0)
      this.rows.append(element("tr", {}, element("td", { colspan: "4", class: "hint" }, "This directory is empty.")));
  }

  row(entry, isDirectory) {
    const path = below(this.path, entry.name);
    const open = () => (isDirectory ? this.go(path) : this.open(path, entry));
    const more = entry.isSymlink ? ` → ${entry.symlinkTarget ?? ""}` : "";
    return element(
      "tr",
      {},
      element(
        "td",
        { class: "name" },
        button(entry.name + (isDirectory ? "/" : ""), open, this.trouble, { class: "link" }),
        more,
      ),
      element("td", { class: "dim number" }, isDirectory ? "" : size(entry.size ?? 0)),
      element("td", { class: "dim when" }, entry.modifiedTime ? new Date(entry.modifiedTime).toLocaleString() : ""),
      element(
        "td",
        { class: "end" },
        isDirectory
          ? null
          : button("Download", () => this.download(path, entry.name), this.trouble, { class: "quiet small" }),
        button("Delete", () => this.remove(path), this.trouble, { class: "quiet small danger" }),
      ),
    );
  }

  async open(path, entry) {
    const close = button(
      "Close",
      () => {
        this.preview.hidden = true;
      },
      this.trouble,
      { class: "quiet small" },
    );
    const head = element(
      "div",
      { class: "row" },
      element("h2", { class: "cut" }, entry.name),
      element("span", { class: "stretch" }),
      close,
    );
    this.preview.replaceChildren(head, await this.shown(path, entry));
    this.preview.hidden = false;
    this.preview.scrollIntoView({ block: "nearest" });
  }

  async shown(path, entry) {
    if (Number(entry.size ?? 0) > 16 * SHOWN)
      return element("p", { class: "hint" }, "This file is too large to show. Download it instead.");
    const blob = await this.guest.read(path);
    const bytes = new Uint8Array(await blob.slice(0, SHOWN).arrayBuffer());
    if (bytes.includes(0)) return element("p", { class: "hint" }, "This file is not text. Download it instead.");
    const rest = blob.size > SHOWN ? `\n… ${size(blob.size - SHOWN)} more` : "";
    return element("pre", { tabindex: "0" }, new TextDecoder().decode(bytes) + rest);
  }

  async download(path, name) {
    // The type is never that of a document, because the URL of the blob has the origin of this page.
    const bytes = new Blob([await this.guest.read(path)], { type: "application/octet-stream" });
    const url = URL.createObjectURL(bytes);
    element("a", { href: url, download: String(name) }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  async remove(path) {
    if (!(await confirmed(`Delete ${path}?`, "Delete"))) return;
    await this.guest.remove(path);
    this.preview.hidden = true;
    await this.list();
  }

  upload() {
    const files = [...this.chosen.files];
    this.chosen.value = "";
    return attempt(async () => {
      for (const file of files) await this.guest.write(below(this.path, file.name), file);
      await this.list();
    }, this.trouble);
  }
}
