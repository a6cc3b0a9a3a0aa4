// Elements, and what is shown in them. Whatever comes from a sandbox is hostile: it becomes text here, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element. A property that is a function listens to that event; `null` and `false` are left out. */
export function element(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

/** Makes an element of a drawing. */
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

/** A button that says what goes wrong with what it does, in `trouble`, and cannot be pressed meanwhile. */
export function button(label, act, trouble, properties = {}) {
  const node = element("button", { type: "button", ...properties }, label);
  node.addEventListener("click", () => attempt(act, trouble, node));
  return node;
}

/** Does something, and shows in `trouble` why it fails. Returns whether it went well. */
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
    // What is disabled loses it, and a dialog cannot give it back.
    if (hadFocus && document.activeElement === document.body) node.focus();
  }
}

/** Marks a link as the one that leads to what is shown, or no longer. */
export function mark(link, isCurrent) {
  if (isCurrent) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

/** Where trouble is shown, and read aloud. */
export function troubleLine() {
  return element("p", { class: "trouble", role: "alert" });
}

/** What an error says, as a sentence. */
export function inWords(error) {
  const text = String(error?.message ?? error);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** Asks before something is done that cannot be undone. Returns whether to do it. */
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

/** Shows a dialog, and returns what it is closed with; nothing when it is dismissed. */
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

/** An amount of bytes, for people. */
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

/** A stretch of time, for people. */
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

/** The time of day. */
export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

/** Does something now and again, while the page is in view. Returns what ends that. */
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
