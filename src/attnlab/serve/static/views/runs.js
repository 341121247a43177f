import { h } from "../lib/dom.js";

export const title = "Runs";

/** @param {HTMLElement} root */
export const mount = (root) => {
  root.append(h("h1", {}, title));
};
