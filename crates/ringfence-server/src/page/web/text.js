// Display of untrusted text. Characters that are invisible, that change the direction of the text, or that push text
// out of sight are shown by name.

/**
 * Characters that are shown by name: controls, formats such as bidirectional overrides and zero-width characters,
 * separators, private and unassigned characters, and the signs that this page uses for other characters.
 */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\p{Cn}\u115f\u1160\u3164\uffa0\u2800\ufe00-\ufe0f\u{e0100}-\u{e01ef}⟨⟩⏎␣⇥]/u;
const RUN = /( {4,}|(?:\r?\n){2,}|\t{2,})|\n|\t|[\p{Zs}]|./gsu;

/** Returns the text with every character visible. */
export function visible(text) {
  return text.replace(RUN, (found, run) => {
    if (run) {
      const [name, end] = { " ": ["␣", ""], "\t": ["⇥", ""] }[run[0]] ?? ["⏎", "\n"];
      const count = name === "⏎" ? run.split("\n").length - 1 : run.length;
      return `⟨${name}×${count}⟩${end}`;
    }
    if (found === " ") return found;
    if (found === "\n") return "⏎\n";
    if (found === "\t") return "⇥";
    const isSeen = !UNSEEN.test(found) && !/\p{Zs}/u.test(found);
    return isSeen ? found : `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** Returns the beginning and the end of a long text, with the number of omitted characters between them. */
export function shortened(text, head, tail) {
  const characters = [...text];
  const lines = text.split("\n");
  if (characters.length <= head + tail + 40 && lines.length <= 8) return text;
  const first = lines.slice(0, 4).join("\n");
  const last = lines.slice(-2).join("\n");
  const start = [...(lines.length > 8 ? first : text)].slice(0, head);
  const end = [...(lines.length > 8 ? last : text)].slice(-tail);
  return `${start.join("")} ⟨… ${characters.length - start.length - end.length} characters …⟩ ${end.join("")}`;
}
