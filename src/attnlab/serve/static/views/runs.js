// Runs: the list, one folder, or several runs side by side, as the address says.
import { mountComparison } from "./run/compare.js";
import { mountDetail } from "./run/detail.js";
import { mountList } from "./run/list.js";

export const title = "Runs";

/** @param {HTMLElement} root @param {string[]} path @param {AbortSignal} signal */
export const mount = (root, path, signal) => {
  const names = new URLSearchParams(location.search).getAll("with");
  if (path.length) return mountDetail(root, path.join("/"), signal);
  return names.length ? mountComparison(root, names, signal) : mountList(root, signal);
};
