// Reports that change while they are shown: parts that are the same stay as they are.
import { events } from "../../lib/api.js";
import { fragment, h } from "../../lib/dom.js";
import { showReport } from "../../lib/report.js";
import { addCopier } from "./parts.js";

const READING = 2000; // milliseconds after the last movement of the pointer
const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

/**
 * Follows events while the page is visible: a browser has few connections, which hidden pages should not hold.
 * @param {string} path
 * @param {(value: any) => void} receive
 * @returns {() => void} what ends it
 */
export const follow = (path, receive) => {
  let end = () => {};
  let over = false;
  const change = () => {
    end();
    end = document.hidden || over ? () => {} : events(path, receive);
  };
  document.addEventListener("visibilitychange", change);
  change();
  return () => {
    over = true;
    document.removeEventListener("visibilitychange", change);
    end();
  };
};

/** The markup of the parts of a report: its head and its sections. @param {string} markup */
const partsOf = (markup) => [...fragment(markup).children].map((part) => part.outerHTML);

/** What the reader has done to a part, to be done again. @param {Element} part */
const remember = (part) => {
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const off = [...part.querySelectorAll(".key.off")].map((one) => one.getAttribute("data-series"));
  const scrolled = [...part.querySelectorAll(".scroll, .draw")].map((one) => one.scrollLeft);
  const focused = [...part.querySelectorAll(FOCUSABLE)].indexOf(/** @type {Element} */ (document.activeElement));
  return () => {
    part.querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
    part.querySelectorAll(".scroll, .draw").forEach((one, number) => { one.scrollLeft = scrolled[number] ?? 0; });
    for (const series of new Set(off)) {
      part.querySelector(`.key[data-series="${Number(series)}"]`)?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    }
    const again = focused < 0 ? null : part.querySelectorAll(FOCUSABLE)[focused];
    if (again instanceof HTMLElement || again instanceof SVGElement) again.focus({ preventScroll: true });
  };
};

/**
 * A report in an element. The returned function shows a newer version: only parts that differ are replaced, and what the
 * reader has opened, scrolled or focused stays so. A chart that is being read with the pointer is replaced a little later.
 * @param {HTMLElement} root
 */
export const liveReport = (root) => {
  /** @type {{ markup: string, place: HTMLElement }[]} */
  let shown = [];
  let moved = -Infinity;
  let timer = 0;
  root.addEventListener("pointermove", ({ movementX, movementY }) => { if (movementX || movementY) moved = performance.now(); });
  const show = (/** @type {string} */ markup) => {
    clearTimeout(timer);
    const parts = partsOf(markup);
    while (shown.length > parts.length) shown.pop()?.place.remove();
    const top = scrollY;
    const reading = performance.now() - moved < READING;
    shown = parts.map((part, number) => {
      const old = shown[number];
      if (old?.markup === part) return old;
      if (old && reading && old.place.querySelector(".chart:hover")) {
        timer = window.setTimeout(() => show(markup), READING);
        return old;
      }
      const place = old?.place ?? root.appendChild(h("div", { class: "part" }));
      const restore = remember(place);
      showReport(place, part);
      addCopier(place);
      restore();
      return { markup: part, place };
    });
    if (scrollY !== top) scrollTo({ top, behavior: "instant" });
  };
  return show;
};

/**
 * Calls a function again after every call while it is running, but never twice at a time.
 * @param {() => Promise<void>} act
 */
export const oneAtATime = (act) => {
  let running = false;
  let again = false;
  const run = async () => {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      await act();
    } finally {
      running = false;
    }
    if (again) {
      again = false;
      await run();
    }
  };
  return run;
};
