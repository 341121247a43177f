// The page: chooses the view that the address names, and shows errors.
import { ApiError } from "./lib/api.js";
import { h } from "./lib/dom.js";

/**
 * @typedef {object} View
 * @property {string} title
 * @property {(root: HTMLElement, path: string[]) => Promise<void | (() => void)> | void | (() => void)} mount
 *   Shows the view in an empty element; `path` is the rest of the address. Returns what ends it.
 */

/** @type {Record<string, () => Promise<View>>} */
const views = {
  design: () => import("./views/design.js"),
  ask: () => import("./views/ask.js"),
  runs: () => import("./views/runs.js"),
  mechanisms: () => import("./views/mechanisms.js"),
  start: () => import("./views/start.js"),
};

const root = /** @type {HTMLElement} */ (document.getElementById("view"));
const message = /** @type {HTMLElement} */ (document.getElementById("message"));
/** @type {() => void} */
let leave = () => {};
let shown = 0;

/** @param {unknown} error */
export const report = (error) => {
  if (error instanceof DOMException && error.name === "AbortError") return;
  const text = error instanceof ApiError ? error.message : `The page failed: ${error}`;
  /** @type {HTMLElement} */ (message.firstElementChild).textContent = text;
  message.hidden = false;
};
const dismiss = () => {
  message.hidden = true;
};
message.lastElementChild?.addEventListener("click", dismiss);
addEventListener("keydown", (event) => { if (event.key === "Escape") dismiss(); });

const show = async () => {
  const number = ++shown;
  const [name = "design", ...path] = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  dismiss();
  leave();
  leave = () => {};
  try {
    const view = await views[name in views ? name : "design"]();
    if (number !== shown) return;
    document.title = `${view.title} – attnlab`;
    document.querySelectorAll("nav a").forEach((link) => {
      const here = link.getAttribute("href") === `/${name}`;
      here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    });
    const place = h("div", { class: `view ${name}` });
    root.replaceChildren(place);
    const end = await view.mount(place, path);
    if (number === shown) leave = end ?? leave;
    else end?.();
  } catch (error) {
    report(error);
  }
};

// Links within the page change the view without loading it again.
document.addEventListener("click", (event) => {
  const link = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") || link.pathname.startsWith("/api/")) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  show().then(() => root.focus({ preventScroll: true }));
  scrollTo(0, 0);
});
addEventListener("popstate", show);
/** Shows an error that nobody caught; one that the user has now been told is no fault of the script. @param {Event} event @param {unknown} error */
const uncaught = (event, error) => {
  if (!error) return;
  report(error);
  if (error instanceof ApiError) event.preventDefault();
};
addEventListener("unhandledrejection", (event) => uncaught(event, event.reason));
addEventListener("error", (event) => uncaught(event, event.error));

const theme = /** @type {HTMLElement} */ (document.getElementById("theme"));
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const showTheme = () => theme.setAttribute("aria-pressed", String(dark()));
try {
  const stored = localStorage.getItem("attnlab-theme");
  if (stored) document.documentElement.dataset.theme = stored;
} catch {
  // A browser that stores nothing follows the system.
}
theme.addEventListener("click", () => {
  const chosen = document.documentElement.dataset.theme = dark() ? "light" : "dark";
  showTheme();
  try {
    localStorage.setItem("attnlab-theme", chosen);
  } catch {
    // The choice lasts until the page is closed.
  }
});
system.addEventListener("change", showTheme);
showTheme();

show();
