// Parts that several views of runs share.
import { h } from "../../lib/dom.js";
import { address, last } from "./entries.js";

/**
 * A button that copies the text of an element, and what it says afterwards.
 * @param {HTMLElement} code
 */
export const copier = (code) => {
  const said = h("span", { class: "quiet", role: "status" });
  const button = h("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent ?? "");
      said.textContent = " copied";
    } catch {
      getSelection()?.selectAllChildren(code);
      said.textContent = " selected: press Ctrl-C";
    }
    setTimeout(() => { said.textContent = ""; }, 2500);
  });
  return [button, said];
};

/**
 * A command line that can be copied.
 * @param {string} line
 * @param {string} [label]
 */
export const commandLine = (line, label = "Command") => {
  const code = h("code", {}, line);
  return h("div", { class: "command", role: "group", "aria-label": label }, code, copier(code));
};

/**
 * Makes the command at the head of a report copyable.
 * @param {Element} report
 */
export const addCopier = (report) => {
  const code = report.querySelector("header > p.quiet code");
  if (code instanceof HTMLElement) code.after(...copier(code));
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
