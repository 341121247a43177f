// Derivations, with every step checked by the server before it is shown.
import { IS_STATIC } from "../../lib/address.js";
import { ApiError, get, post } from "../../lib/api.js";
import { commandLine } from "../../lib/command.js";
import { h } from "../../lib/dom.js";

/** @typedef {{ statement: string, drawn: string[], reason: string, checked: string }} Step */
/** @typedef {{ names: string[], proof: { name: string, title: string, claim: string, steps: Step[] } }} Found */

export class Proofs {
  /** @param {Record<string, string>} state @param {() => void} changed */
  constructor(state, changed) {
    this.name = state.proof ?? "softmax";
    this.running = new AbortController();
    this.choice = h("select", { onchange: () => {
      this.name = this.choice.value;
      changed();
      this.show();
    } });
    this.place = h("div", { role: "status" });
    this.element = h("div", {}, h("div", { class: "controls" }, h("label", {}, "derivation", this.choice)), this.place);
  }

  get state() {
    return { proof: this.name === "softmax" ? "" : this.name };
  }

  async show() {
    this.running.abort();
    const own = this.running = new AbortController();
    this.place.replaceChildren(h("p", { class: "progress" }, "Checking every step …"));
    try {
      /** @type {Found} */
      const { names, proof } = await (IS_STATIC ? get(`design/proof/${encodeURIComponent(this.name)}`, own.signal) : post("design/proof", { name: this.name }, own.signal));
      this.choice.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      this.choice.value = proof.name;
      this.place.replaceChildren(
        h("h2", {}, proof.title), h("p", {}, proof.claim),
        h("ol", { class: "proof" }, proof.steps.map((step) => h("li", {}, step.statement,
          step.drawn.map((formula) => h("pre", {}, formula)),
          h("p", { class: "quiet" }, step.reason ? `${step.reason} (${step.checked}).` : `${step.checked[0].toUpperCase()}${step.checked.slice(1)}.`)))),
        commandLine(`attnlab design derive ${proof.name}`),
      );
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      this.place.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  end() {
    this.running.abort();
  }
}
