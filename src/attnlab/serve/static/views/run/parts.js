// Parts that several views of runs share.
import { h } from "../../lib/dom.js";
import { address, last } from "./entries.js";

/**
 * A command line with a button that copies it.
 * @param {string} line
 * @param {string} [label]
 */
export const commandLine = (line, label = "Command") => {
  const code = h("code", {}, line);
  const button = h("button", { type: "button", class: "copy" }, "Copy");
  const said = h("span", { class: "quiet", role: "status" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent ?? "");
      said.textContent = "copied";
    } catch {
      getSelection()?.selectAllChildren(code);
      said.textContent = "selected: press Ctrl-C";
    }
    setTimeout(() => { said.textContent = ""; }, 2500);
  });
  return h("div", { class: "command", role: "group", "aria-label": label }, code, button, said);
};

/**
 * Links to the folders above a run.
 * @param {string} name
 */
export const trail = (name) => {
  const parts = name.split("/");
  return h("nav", { class: "trail", "aria-label": "Folders" }, h("a", { href: "/runs" }, "Runs"),
    parts.map((part, number) => [
      h("span", { "aria-hidden": "true" }, " / "),
      number === parts.length - 1 ? h("span", { "aria-current": "page" }, part) : h("a", { href: address(parts.slice(0, number + 1).join("/")) }, part),
    ]).flat());
};

/**
 * A link to a run.
 * @param {string} name
 * @param {string} [text]
 */
export const runLink = (name, text = last(name)) => h("a", { href: address(name) }, text);
