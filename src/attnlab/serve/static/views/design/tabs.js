// Tabs, which the arrow keys move through as well.
import { h } from "../../lib/dom.js";

/**
 * @param {string} label  of the list of tabs
 * @param {[string, string, HTMLElement][]} parts  name, title, panel
 * @param {string} first  the name of the one to open
 * @param {(name: string) => void} opened
 */
export const tabs = (label, parts, first, opened) => {
  const buttons = parts.map(([name, words], i) =>
    h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => open(i) }, words));
  const panels = parts.map(([name, , panel]) => h("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, panel));
  /** @param {number} place */
  const open = (place) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === place));
      button.tabIndex = i === place ? 0 : -1;
      panels[i].hidden = i !== place;
    });
    opened(parts[place][0]);
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const to = (buttons.findIndex((button) => button === document.activeElement) + step + parts.length) % parts.length;
    open(to);
    buttons[to].focus();
  };
  open(Math.max(0, parts.findIndex(([name]) => name === first)));
  return h("div", { class: "tabs" }, h("div", { role: "tablist", "aria-label": label, onkeydown: key }, buttons), panels);
};
