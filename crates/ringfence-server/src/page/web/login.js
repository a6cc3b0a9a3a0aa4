// The way in: with a key, or where none was made yet, with one click.

import { logIn, needsKey } from "./api.js";
import { attempt, element, inWords, troubleLine } from "./dom.js";

/** Shows the way in, with what there is to say, and calls `onIn` once somebody is. */
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
      "A key is made with ",
      element("code", {}, "ringfence keys create NAME"),
      ". It stays in this tab, and is forgotten with it.",
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
      " makes the first one; then it is needed.",
    ),
  );
}
