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
  const method = h("select", {}, h("option", { value: "sampling" }, "sampling"), h("option", { value: "beams" }, "beam search"));
  const sampling = h("fieldset", {},
    field("Temperature", "temperature", { value: 0.8, min: 0, max: 10, step: "any" }),
    field("Top k (0: all)", "top_k", { value: 0, min: 0 }),
    field("Top p", "top_p", { value: 1, min: 0.001, max: 1, step: "any" }),
    field("Seed", "seed", { value: 0, min: 0 }));
  const search = h("fieldset", {},
    field("Beams", "beams", { value: 4, min: 1, max: 64 }),
    field("Length penalty", "length_penalty", { value: 0, min: 0, max: 10, step: "any" }));
  const form = h("form", { class: "controls" },
    h("label", { class: "wide" }, "Prompt", h("input", { name: "prompt", maxlength: 2000, autocomplete: "off" })),
    field("Number of texts", "count", { value: 3, min: 1, max: 10 }),
    field("Maximum tokens", "limit", { value: 60, min: 1, max: 400 }),
    h("label", {}, "Method", method),
    sampling, search,
    h("button", { class: "primary" }, "Write"));

  /** Only the settings of the chosen method are shown and sent. */
  const choose = () => {
    sampling.hidden = sampling.disabled = method.value !== "sampling";
    search.hidden = search.disabled = method.value === "sampling";
  };
  method.addEventListener("change", choose);
  choose();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    request.abort();
    const own = request = new AbortController();
    const settings = [...new FormData(form)].map(([name, value]) => [name, name === "prompt" ? value : Number(value)]);
    const body = { names, ...Object.fromEntries(settings) };
    columns.replaceChildren();
    status.textContent = "Writing …";
    try {
      await stream("samples", body, (one) => {
        columns.append(h("section", { "aria-label": one.run }, h("h3", {}, runLink(one.run, one.run)),
          one.problem ? h("p", { class: "notice" }, one.problem) : one.samples.map((/** @type {string} */ text, /** @type {number} */ i) => h("p", { class: "text" }, text,
            one.log_probabilities.length ? h("small", { class: "quiet" }, ` log probability ${one.log_probabilities[i].toFixed(2)}`) : "")),
          h("p", { class: "quiet" }, one.figures)));
      }, own.signal);
    } finally {
      if (own === request) status.textContent = "";
    }
  });

  const panel = h("section", { class: "samples-panel" }, h("h2", {}, names.length > 1 ? "Samples side by side" : "Samples"),
    h("p", { class: "quiet" }, "Each model continues the same prompt, with the same settings. Repetition: share of 4-grams of words that occurred before in the same text. Diversity: share of distinct pairs of words over all texts."), form, status, columns);
  return [panel, () => request.abort()];
};
