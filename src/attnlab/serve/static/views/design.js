import { h } from "../lib/dom.js";

export const title = "Design";

/** @param {HTMLElement} root */
export const mount = (root) => {
  root.append(h("h1", {}, title));
};
