// Commands, and a button that copies a text and says so.
import { h } from "./dom.js";

/**
 * @param {string} words
 * @param {() => string} text
 * @param {string} [label]  for screen readers, if the words are too short for them
 */
export const copyButton = (words, text, label) => {
  const said = h("span", { role: "status", class: "copied" });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  const button = h("button", {
    type: "button",
    "aria-label": label,
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

/** A word of a command as a shell reads it back. @param {string} word */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

/** The command that trains a first model in a folder of runs. @param {string} root */
export const firstRun = (root) => commandLine(`attnlab run recall --quick --out ${quoted(`${root}/recall-1`)}`, "Command that trains a model");

/** What a static site says in place of what a server computes. @param {string} what @param {string} [command]  that does it */
export const needsServer = (what, command = "attnlab serve") =>
  h("div", { class: "notice" }, h("p", {}, `${what} needs a computer with attnlab: this site is plain files. There, type:`), commandLine(command));

/** A command, ready to copy. @param {string} command @param {string} [label] */
export const commandLine = (command, label = "Command") =>
  h("div", { class: "command", role: "group", "aria-label": label }, h("code", {}, command), copyButton("Copy", () => command, "Copy the command"));
