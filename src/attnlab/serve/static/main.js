// The page: chooses the view that the address names, and shows errors.
import { IS_STATIC, ROOT } from "./lib/address.js";
import { ApiError } from "./lib/api.js";
import { needsServer } from "./lib/command.js";
import { h } from "./lib/dom.js";
import { explainTerms } from "./lib/glossary.js";

/**
 * @typedef {object} View
 * @property {string} title
 * @property {(root: HTMLElement, path: string[], signal: AbortSignal) => Promise<void | (() => void)> | void | (() => void)} mount
 *   Shows the view in an empty element; `path` is the rest of the address, and `signal` is aborted when the view is left,
 *   even before it has loaded. May return what else ends it.
 */

/** @type {Record<string, () => Promise<View>>} */
const views = {
  design: () => import("./views/design.js"),
  ask: () => import("./views/ask.js"),
  runs: () => import("./views/runs.js"),
  mechanisms: () => import("./views/mechanisms.js"),
};

const root = /** @type {HTMLElement} */ (document.getElementById("view"));
const message = /** @type {HTMLElement} */ (document.getElementById("message"));
let current = new AbortController();

// On a static site they are relative to where the page was opened, and the address changes.
for (const link of /** @type {NodeListOf<HTMLAnchorElement | HTMLLinkElement>} */ (document.querySelectorAll(".bar a, link"))) link.href = link.href;

/** What is shown at an address that no view has. @type {View} */
const nowhere = {
  title: "Not found",
  mount: (place) => place.append(h("h1", {}, "Not found"), h("p", { class: "notice" }, `There is no page ${location.pathname}: choose one of the views above.`)),
};

/** What a static site shows in place of the view of models. @type {View} */
const ask = {
  title: "Ask",
  mount: (place) => place.append(h("h1", {}, "Ask"), needsServer("Asking a model")),
};

/** An error in words; "" if it is only that something was ended. @param {unknown} error */
const wordsOf = (error) => {
  if (error instanceof DOMException && error.name === "AbortError") return "";
  return error instanceof ApiError ? error.message : `The page failed: ${error}`;
};
/** @param {unknown} error */
export const report = (error) => {
  const text = wordsOf(error);
  if (!text) return;
  /** @type {HTMLElement} */ (message.firstElementChild).textContent = text;
  message.hidden = false;
};
/** Shows why a view could not be loaded, in place of what it was doing. @param {Element} place @param {unknown} error */
const fail = (place, error) => {
  const text = wordsOf(error);
  if (!text) return;
  place.querySelectorAll(".progress").forEach((progress) => progress.remove());
  place.append(h("p", { class: "notice", role: "alert" }, text));
};
const dismiss = () => {
  message.hidden = true;
};
message.lastElementChild?.addEventListener("click", dismiss);
addEventListener("keydown", (event) => { if (event.key === "Escape") dismiss(); });

const show = async () => {
  current.abort();
  const { signal } = current = new AbortController();
  dismiss();
  const place = h("div");
  try {
    const [name = "design", ...path] = location.pathname.slice(ROOT.length).split("/").filter(Boolean).map(decodeURIComponent);
    const known = Object.hasOwn(views, name) && (name === "runs" || !path.length);
    const view = !known ? nowhere : IS_STATIC && name === "ask" ? ask : await views[name]();
    if (signal.aborted) return;
    document.title = `${view.title} – attnlab`;
    document.querySelectorAll("nav a").forEach((link) => {
      const shown = known && /** @type {HTMLAnchorElement} */ (link).pathname.slice(ROOT.length).split("/")[0] === name;
      shown ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    });
    place.className = `view ${name}`;
    root.replaceChildren(place);
    const end = await view.mount(place, path, signal);
    if (end && signal.aborted) end();
    else if (end) signal.addEventListener("abort", end);
  } catch (error) {
    if (!signal.aborted) root.replaceChildren(place);
    fail(place, error);
  }
};

// Links within the page change the view without loading it again.
document.addEventListener("click", (event) => {
  const link = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") || !link.pathname.startsWith(ROOT) || link.pathname.startsWith(`${ROOT}api/`)) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  show().then(() => root.focus({ preventScroll: true }));
  scrollTo(0, 0);
});
addEventListener("popstate", show);
/** Shows an error that nobody caught; one that the user has now been told, or an end on purpose, is no fault of the script. @param {Event} event @param {unknown} error */
const uncaught = (event, error) => {
  if (!error) return;
  report(error);
  if (error instanceof ApiError || !wordsOf(error)) event.preventDefault();
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

explainTerms(document);
show();
