// Runs: the list, one folder, or several runs side by side, as the address says.
import { here } from "../lib/address.js";
import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { showReport } from "../lib/report.js";
import { mountDetail } from "./run/detail.js";
import { mountList } from "./run/list.js";
import { addCopier } from "./run/parts.js";
import { samplesPanel } from "./run/samples.js";

export const title = "Runs";

/**
 * Several runs side by side: the report of `attnlab report RUN RUN`, and samples of each.
 * @param {HTMLElement} root
 * @param {string[]} names
 * @param {AbortSignal} signal
 */
const mountComparison = async (root, names, signal) => {
  const loading = h("p", { class: "progress", role: "status" }, "Making the report …");
  const report = h("div", { class: "report" });
  root.append(h("nav", { class: "trail", "aria-label": "Folders" }, h("a", { href: here("/runs") }, "Runs"), " / side by side"), loading, report);
  const asked = names.map((name) => `name=${encodeURIComponent(name)}`).join("&");
  const found = await get(`comparison?${asked}`, signal);
  loading.remove();
  showReport(report, found.markup);
  addCopier(report);
  const [panel, stop] = samplesPanel(names.slice(0, 6));
  report.after(panel);
  return stop;
};

/** @param {HTMLElement} root @param {string[]} path @param {AbortSignal} signal */
export const mount = (root, path, signal) => {
  const names = new URLSearchParams(location.search).getAll("with");
  if (path.length) return mountDetail(root, path.join("/"), signal);
  return names.length ? mountComparison(root, names, signal) : mountList(root, signal);
};
