// Parts that several views of runs share.
import { here } from "../../lib/address.js";
import { copyButton } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { address, last } from "./entries.js";

/**
 * Makes the command at the head of a report copyable.
 * @param {Element} report
 */
export const addCopier = (report) => {
  const code = report.querySelector("header > p.quiet code");
  if (code instanceof HTMLElement) code.after(copyButton("Copy", () => code.textContent ?? "", "Copy the command"));
};

/**
 * Links to the folders above a run.
 * @param {string} name
 */
export const trail = (name) => {
  const parts = name.split("/");
  return h("nav", { class: "trail", "aria-label": "Folders" }, h("a", { href: here("/runs") }, "Runs"),
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
