// The form of a command, generated from its declaration.
import { h } from "../../lib/dom.js";

/**
 * @typedef {object} Option
 * @property {string} name
 * @property {string} label
 * @property {string} help
 * @property {"text" | "whole" | "number" | "flag" | "switch" | "choice" | "list" | "table"} kind
 * @property {string} default
 * @property {string[]} choices
 * @property {string} group
 * @property {string} suggestions
 * @property {boolean} required
 */

/** @typedef {{ command: string, help: string, more: string, options: Option[] }} Form */
/** @typedef {Record<string, string | boolean>} Values */

/** @param {Option} option @param {string | boolean | undefined} value */
const control = (option, value) => {
  const text = typeof value === "string" ? value : "";
  const named = { name: option.name, autocomplete: "off", spellcheck: "false" };
  switch (option.kind) {
    case "flag":
      return h("input", { type: "checkbox", name: option.name, checked: value === true || value === "true" });
    case "switch":
    case "choice": {
      const choices = option.kind === "switch" ? ["true", "false"] : option.choices;
      return h("select", { name: option.name }, h("option", { value: "" }, ""),
        choices.map((one) => h("option", { value: one, selected: one === text }, one)));
    }
    case "list":
    case "table":
      return h("textarea", { ...named, rows: 2, placeholder: option.kind === "list" ? "one per line" : "NAME=VALUE per line" }, text);
    default:
      // Numbers are checked by the server, which also takes what HTML's number fields do not.
      return h("input", {
        ...named, value: text, inputmode: option.kind === "whole" ? "numeric" : option.kind === "number" ? "decimal" : "text",
        list: option.suggestions && `suggest-${option.suggestions}`,
      });
  }
};

/** @param {Option} option @param {string | boolean | undefined} value */
const labelled = (option, value) => {
  const about = h("span", { class: "note", id: `about${option.name}` }, option.help);
  const made = control(option, value);
  made.setAttribute("aria-describedby", about.id);
  if (option.kind === "flag") return h("div", { class: "option" }, h("label", { class: "inline" }, made, option.label), about);
  if (option.default && "placeholder" in made && !made.placeholder) made.placeholder = option.default;
  return h("div", { class: `option of-${option.kind}` }, h("label", {}, option.label, made), about);
};

/**
 * The controls of a form: the command's own options, and its settings folded by group.
 * @param {Form} form
 * @param {Values} values
 */
export const controls = (form, values) => {
  const own = form.options.filter((one) => !one.group);
  const groups = [...new Set(form.options.map((one) => one.group).filter(Boolean))];
  const given = (/** @type {Option[]} */ some) => some.some((one) => values[one.name]);
  const settings = form.options.filter((one) => one.group);
  return [
    h("div", { class: "options" }, own.map((one) => labelled(one, values[one.name]))),
    h("details", { class: "settings", open: given(settings) }, h("summary", {}, `Settings (${settings.length})`),
      h("p", { class: "quiet" }, "Empty fields use the preset's value."),
      groups.map((group) => {
        const some = settings.filter((one) => one.group === group);
        return h("details", { open: given(some) }, h("summary", {}, group), h("div", { class: "options" }, some.map((one) => labelled(one, values[one.name]))));
      })),
  ];
};

/**
 * The values that differ from nothing, by name.
 * @param {HTMLFormElement} form
 * @param {Option[]} options
 * @returns {Values}
 */
export const valuesOf = (form, options) => {
  /** @type {Values} */
  const values = {};
  for (const option of options) {
    const found = form.elements.namedItem(option.name);
    if (found instanceof HTMLInputElement && found.type === "checkbox") {
      if (found.checked) values[option.name] = true;
    } else if (found instanceof HTMLInputElement || found instanceof HTMLSelectElement || found instanceof HTMLTextAreaElement) {
      if (found.value.trim()) values[option.name] = found.value.trim();
    }
  }
  return values;
};

/**
 * Shows the values of a preset where settings are left empty.
 * @param {HTMLFormElement} form
 * @param {Option[]} options
 * @param {Record<string, string> | undefined} preset
 */
export const showPreset = (form, options, preset) => {
  for (const option of options.filter((one) => one.group)) {
    const found = form.elements.namedItem(option.name);
    const value = preset?.[option.name] ?? "";
    if (found instanceof HTMLInputElement) found.placeholder = value;
    else if (found instanceof HTMLSelectElement) found.options[0].textContent = value ? `(${value.toLowerCase()})` : "";
  }
};
