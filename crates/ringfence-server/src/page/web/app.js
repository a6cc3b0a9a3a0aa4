// Entry point of the page: shows the login form, or the list and the selected sandbox.

import { isIn, logOut, whenLocked } from "./api.js";
import { element } from "./dom.js";
import { List } from "./list.js";
import { showLogin } from "./login.js";
import { Sandbox } from "./sandbox.js";

const main = document.getElementById("main");
const signOut = document.getElementById("sign-out");
let list = null;
let sandbox = null;
let detail = null;

/** Returns the sandbox and the tab that the URL names, as `#/sandboxes/ID/TAB`. */
function place() {
  const [, id, tab] = location.hash.replace(/^#\//, "").split("/");
  return { id: id || null, tab: tab || "overview" };
}

function show() {
  const { id, tab } = place();
  document.body.dataset.view = id ? "sandbox" : "list";
  if (sandbox?.id !== id) {
    sandbox?.close();
    sandbox = id ? new Sandbox(id) : null;
    detail.replaceChildren(sandbox?.root ?? element("p", { class: "empty" }, "Choose a sandbox, or create one."));
  }
  sandbox?.show(tab);
  list.mark(id);
}

function enter() {
  signOut.hidden = false;
  list = new List();
  detail = element("section", { class: "detail", "aria-label": "Sandbox" });
  main.replaceChildren(list.root, detail);
  main.className = "panes";
  show();
}

function leave(said) {
  list?.close();
  sandbox?.close();
  list = sandbox = null;
  logOut();
  signOut.hidden = true;
  main.className = "";
  document.body.dataset.view = "login";
  showLogin(main, enter, said);
}

signOut.addEventListener("click", () => leave(""));
whenLocked((why) => {
  if (list) leave(why);
});
addEventListener("hashchange", () => {
  if (list) show();
});
addEventListener("pagehide", () => sandbox?.close());
// Reload a page that the browser restores from its cache, because the streams of the page have ended.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});
if (isIn()) enter();
else leave("");
