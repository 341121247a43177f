// Elements from names, attributes and children. Text is always text: nothing here reads markup.

/** @typedef {string | number | Node | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

/**
 * @template {Element} E
 * @param {E} element
 * @param {Attributes} attributes  `on...` is an event listener; true is an attribute without a value, false and null are none
 * @param {(Child | Child[])[]} children
 * @returns {E}
 */
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child instanceof Node ? child : String(child));
  }
  return element;
};

/**
 * An HTML element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 */
export const svg = (tag, attributes = {}, ...children) =>
  fill(/** @type {SVGElementTagNameMap[K]} */ (document.createElementNS("http://www.w3.org/2000/svg", tag)), attributes, children);

/**
 * The fragment of a report, which the server has rendered and escaped.
 * @param {string} markup
 */
export const fragment = (markup) => {
  const template = document.createElement("template");
  template.innerHTML = markup;
  return template.content;
};

/**
 * A share as a percentage.
 * @param {number} share
 * @param {number} [digits]
 */
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
