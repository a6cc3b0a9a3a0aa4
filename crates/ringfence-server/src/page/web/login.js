// Login form, which asks for a key, or for one click as long as no key exists.

import { logIn, needsKey } from "./api.js";
import { attempt, element, inWords, troubleLine } from "./dom.js";

/** Shows the login form with the message `said`, and calls `onIn` after the login. */
export async function showLogin(root, onIn, said = "") {
  const trouble = troubleLine();
  trouble.textContent = said && inWords(said);
  const card = element("section", { class: "card login" }, element("h1", {}, "Log in"), trouble);
  root.replaceChildren(card);
  let isNeeded = true;
  await attempt(
    async () => {
      isNeeded = await needsKey();
    },
    said ? element("p") : trouble,
  );
  card.append(isNeeded ? keyForm(trouble, onIn) : openDoor(trouble, onIn));
  card.querySelector("input, button").focus();
}

function keyForm(trouble, onIn) {
  const input = element("input", {
    type: "password",
    id: "key",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const enter = element("button", { type: "submit" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    if (await attempt(() => logIn(input.value.trim()), trouble, enter)) onIn();
    else input.select();
  };
  return element(
    "form",
    { submit },
    element("label", { for: "key" }, "API key"),
    input,
    enter,
    element(
      "p",
      { class: "hint" },
      "Create a key with ",
      element("code", {}, "ringfence keys create NAME"),
      ". The page keeps the key only as long as this tab is open.",
    ),
  );
}

function openDoor(trouble, onIn) {
  const enter = element("button", { type: "button" }, "Enter");
  enter.addEventListener("click", async () => {
    if (await attempt(() => logIn("any"), trouble, enter)) onIn();
  });
  return element(
    "div",
    {},
    element("p", {}, "No API key exists yet, so every program on this machine may use the server."),
    enter,
    element(
      "p",
      { class: "hint" },
      element("code", {}, "ringfence keys create NAME"),
      " creates the first key. From then on, every program needs a key.",
    ),
  );
}
