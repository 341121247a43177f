// Texts that models write from one prompt, beside each other.
import { stream } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { runLink } from "./parts.js";

/**
 * @param {string} label
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 */
const field = (label, name, attributes) => h("label", {}, label, h("input", { name, type: "number", ...attributes }));

/**
 * A form, and a column of texts for each run.
 * @param {string[]} names
 * @returns {[HTMLElement, () => void]} the panel, and what ends a request
 */
export const samplesPanel = (names) => {
  let request = new AbortController();
  const status = h("p", { class: "progress", role: "status" });
  const columns = h("div", { class: "sampled" });
  const form = h("form", { class: "controls" },
    h("label", { class: "wide" }, "Prompt", h("input", { name: "prompt", maxlength: 2000, autocomplete: "off" })),
    field("Number of texts", "count", { value: 3, min: 1, max: 10 }),
    field("Temperature", "temperature", { value: 0.8, min: 0, max: 10, step: "any" }),
    field("Seed", "seed", { value: 0, min: 0 }),
    field("Maximum tokens", "limit", { value: 60, min: 1, max: 400 }),
    h("button", { class: "primary" }, "Sample"));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    request.abort();
    const own = request = new AbortController();
    const given = new FormData(form);
    const number = (/** @type {string} */ name) => Number(given.get(name));
    const body = {
      names, prompt: String(given.get("prompt") ?? ""), count: number("count"), temperature: number("temperature"),
      seed: number("seed"), limit: number("limit"),
    };
    columns.replaceChildren();
    status.textContent = "Sampling …";
    try {
      await stream("samples", body, (one) => {
        columns.append(h("section", { "aria-label": one.run }, h("h3", {}, runLink(one.run, one.run)),
          one.problem ? h("p", { class: "notice" }, one.problem) : one.samples.map((/** @type {string} */ text) => h("p", { class: "text" }, text))));
      }, own.signal);
    } finally {
      if (own === request) status.textContent = "";
    }
  });

  const panel = h("section", { class: "samples-panel" }, h("h2", {}, names.length > 1 ? "Samples side by side" : "Samples"),
    h("p", { class: "quiet" }, "Each model continues the same prompt, with the same seed."), form, status, columns);
  return [panel, () => request.abort()];
};
