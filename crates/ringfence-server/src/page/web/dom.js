// Elements of the page. Data from a sandbox is hostile, so it always becomes text and never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. A function is a listener for the event of that name; `null` and `false` are left out. */
export function element(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

/** Creates an SVG element. */
export function shape(tag, properties = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), properties, children);
}

function furnish(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Creates a button, which is disabled while `act` runs. Errors of `act` are shown in `trouble`. */
export function button(label, act, trouble, properties = {}) {
  const node = element("button", { type: "button", ...properties }, label);
  node.addEventListener("click", () => attempt(act, trouble, node));
  return node;
}

/** Runs `act`, and shows its error in `trouble`. Returns whether `act` succeeded. */
export async function attempt(act, trouble, node = null) {
  const hadFocus = node !== null && document.activeElement === node;
  if (node) node.disabled = true;
  try {
    await act();
    trouble.textContent = "";
    return true;
  } catch (error) {
    trouble.textContent = inWords(error);
    return false;
  } finally {
    if (node) node.disabled = false;
    // A disabled button loses the focus, and a dialog cannot return the focus to it.
    if (hadFocus && document.activeElement === document.body) node.focus();
  }
}

/** Sets or removes the mark of the link to the current view. */
export function mark(link, isCurrent) {
  if (isCurrent) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

/** Creates the line that shows errors, which screen readers announce. */
export function troubleLine() {
  return element("p", { class: "trouble", role: "alert" });
}

/** Returns the message of an error as a sentence. */
export function inWords(error) {
  const text = String(error?.message ?? error);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** Asks the user to confirm an action that cannot be undone. Returns the decision. */
export function confirmed(question, deed) {
  return asked((close) => [
    element("p", {}, question),
    element(
      "div",
      { class: "row end" },
      element("button", { type: "button", class: "quiet", click: () => close(false) }, "Cancel"),
      element("button", { type: "button", class: "danger", click: () => close(true) }, deed),
    ),
  ]);
}

/** Shows a dialog, and returns the value that it is closed with, or undefined when it is dismissed. */
export function asked(fill) {
  return new Promise((resolve) => {
    const dialog = element("dialog", {
      close: () => {
        dialog.remove();
        resolve(answer);
      },
    });
    let answer;
    dialog.append(
      ...fill((given) => {
        answer = given;
        dialog.close();
      }),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Formats a number of bytes for human readers. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let amount = Number(bytes),
    unit = 0;
  while (amount >= 1024 && unit < units.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${amount.toFixed(unit === 0 || amount >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** Formats a duration for human readers. */
export function span(milliseconds) {
  if (milliseconds > 0 && milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  const parts = [
    [Math.floor(seconds / 3600), "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const said = parts
    .filter(([amount]) => amount > 0)
    .slice(0, 2)
    .map(([amount, unit]) => `${amount} ${unit}`);
  return said.join(" ") || "0 s";
}

/** Formats the time of day. */
export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

/** Runs `act` at an interval while the page is visible. Returns a function that stops this. */
export function every(milliseconds, act) {
  let timer,
    over = false;
  const turn = async () => {
    if (!document.hidden) await act();
    if (!over) timer = setTimeout(turn, milliseconds);
  };
  turn();
  return () => {
    over = true;
    clearTimeout(timer);
  };
}
