// Several runs side by side: the report of `attnlab report RUN RUN`, and samples of each.
import { get } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { showReport } from "../../lib/report.js";
import { addCopier } from "./parts.js";
import { samplesPanel } from "./samples.js";

/**
 * @param {HTMLElement} root
 * @param {string[]} names
 * @param {AbortSignal} signal
 */
export const mountComparison = async (root, names, signal) => {
  const loading = h("p", { class: "progress", role: "status" }, "Making the report …");
  const report = h("div", { class: "report" });
  root.append(h("nav", { class: "trail", "aria-label": "Folders" }, h("a", { href: "/runs" }, "Runs"), " / side by side"), loading, report);
  const asked = names.map((name) => `name=${encodeURIComponent(name)}`).join("&");
  const found = await get(`comparison?${asked}`, signal);
  loading.remove();
  showReport(report, found.markup);
  addCopier(report);
  const [panel, stop] = samplesPanel(names.slice(0, 6));
  report.after(panel);
  return stop;
};
