// A button that copies a text, and says so.
import { h } from "../../lib/dom.js";

/**
 * @param {string} words
 * @param {() => string} text
 */
export const copyButton = (words, text) => {
  const said = h("span", { role: "status", class: "copied" });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  const button = h("button", {
    type: "button",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text());
        said.textContent = "copied";
      } catch {
        said.textContent = "The browser does not allow copying: select the text instead.";
      }
      clearTimeout(later);
      later = setTimeout(() => (said.textContent = ""), 4000);
    },
  }, words);
  return h("span", { class: "copy" }, button, said);
};

/** A command, ready to copy. @param {string} command */
export const commandLine = (command) =>
  h("div", { class: "command" }, h("pre", { tabindex: 0, "aria-label": "Command" }, h("code", {}, command)), copyButton("Copy", () => command));
