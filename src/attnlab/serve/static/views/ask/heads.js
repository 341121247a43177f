// The maps of all heads, small, to choose from, and the chosen one large.
import { h, percent, svg } from "../../lib/dom.js";
import { shortName, weightInWords } from "./state.js";
import { isInfluence, mapOf, mean, nameOf, peakOf, shades, shown } from "./weights.js";

/** @typedef {import("./weights.js").Look} Look */
/** @typedef {import("./weights.js").Choice} Choice */

/** @param {Float32Array} map @param {number} size @param {number} count */
const cells = (map, size, count) =>
  shades(map, size, count).map(({ opacity, negative, path }) =>
    svg("path", { class: negative ? "cell negative" : "cell", "fill-opacity": opacity.toFixed(3), d: path, "shape-rendering": "crispEdges" }));

/**
 * Buttons with the map of every head and the averages.
 * @param {Look} look
 * @param {Choice} chosen
 * @param {Set<string>} off  heads that are switched off, as "layer.head" from 1
 * @param {(choice: Choice) => void} choose
 */
export const headGrid = (look, chosen, off, choose) => {
  const size = look.tokens.length;
  const one = (/** @type {Choice} */ choice, /** @type {Float32Array} */ map, /** @type {string} */ label) => {
    const is = choice.layer === chosen.layer && choice.head === chosen.head;
    const without = off.has(`${choice.layer}.${choice.head}`) || off.has(`${choice.layer}.0`);
    return h("button", { type: "button", class: `head${without ? " off" : ""}`, "aria-pressed": String(is), "aria-label": nameOf(look, choice) + (without ? ", switched off" : ""), onclick: () => choose(choice) },
      svg("svg", { viewBox: `0 0 ${size} ${size}`, preserveAspectRatio: "none", "aria-hidden": "true" }, cells(map, size, 8)),
      h("span", {}, label));
  };
  const rows = look.layers.map((layer, number) => {
    const buttons = layer.kind === "influence"
      ? [one({ layer: number + 1, head: 1 }, layer.maps[0], "influence")]
      : layer.maps.map((map, head) => one({ layer: number + 1, head: head + 1 }, map, `head ${head + 1}`));
    if (layer.kind === "pattern" && layer.maps.length > 1) buttons.push(one({ layer: number + 1, head: 0 }, mean(layer.maps), "average"));
    return h("div", { class: "layer-row" },
      h("p", { class: "layer-label" }, `Layer ${number + 1}`, h("span", { class: "quiet", title: layer.mechanism }, shortName(layer.mechanism))),
      h("div", { class: "heads-row" }, buttons));
  });
  const all = h("div", { class: "layer-row" },
    h("p", { class: "layer-label" }, "All layers"),
    h("div", { class: "heads-row" }, one({ layer: 0, head: 0 }, mapOf(look, { layer: 0, head: 0 }), "average")));
  return h("div", { class: "head-grid", role: "group", "aria-label": "Heads" }, rows, look.layers.length > 1 && all);
};

/**
 * The chosen map with names of tokens; pointing at a cell reads its number, a click locks its row.
 * @param {Look} look
 * @param {Choice} choice
 * @param {number | null} locked
 * @param {(token: number) => void} lock
 */
export const largeMap = (look, choice, locked, lock) => {
  const size = look.tokens.length;
  const cell = Math.max(4, Math.min(26, 560 / size));
  const names = look.tokens.map((token) => (shown(token).length > 12 ? `${shown(token).slice(0, 11)}…` : shown(token)));
  const longest = Math.max(...names.map((name) => name.length));
  const legible = cell >= 9;
  const letters = Math.min(13, cell * 0.95);
  const margin = legible ? 10 + longest * letters * 0.6 : 6;
  const side = margin + size * cell + 4;
  const map = mapOf(look, choice);
  const influence = isInfluence(look, choice);
  const at = svg("rect", { class: "at", width: cell, height: cell, visibility: "hidden" });
  const tip = h("p", { class: "tip", role: "status" }, "Point at a cell, or move through the map with the arrow keys.");
  const chart = svg("svg", {
    class: "chart map", viewBox: `0 0 ${side} ${side}`, width: side, height: side, tabindex: 0, role: "img",
    "aria-label": `${nameOf(look, choice)}: a row per token, and in it how much it ${influence ? "depends on" : "looks at"} each token. Arrow keys read the cells, Enter locks a row.`,
  });
  chart.append(svg("rect", { class: "frame", x: margin, y: margin, width: size * cell, height: size * cell }));
  chart.append(svg("g", { transform: `translate(${margin} ${margin}) scale(${cell})` }, cells(map, size, 24)));
  if (legible) {
    const style = `font-size:${letters.toFixed(1)}px`;
    names.forEach((name, place) => {
      const middle = margin + (place + 0.5) * cell;
      chart.append(svg("text", { class: "label", style, x: margin - 5, y: middle + letters / 3, "text-anchor": "end" }, name));
      chart.append(svg("text", { class: "label", style, transform: `translate(${middle + letters / 3} ${margin - 5}) rotate(-90)` }, name));
    });
  }
  if (locked !== null && locked < size) chart.append(svg("rect", { class: "marked", x: margin, y: margin + locked * cell, width: size * cell, height: cell }));
  chart.append(at);
  let [row, column] = [locked ?? size - 1, 0];

  const read = () => {
    at.setAttribute("x", String(margin + column * cell));
    at.setAttribute("y", String(margin + row * cell));
    at.setAttribute("visibility", "visible");
    const weight = map[row * size + column];
    tip.textContent = `“${shown(look.tokens[row])}” (${row + 1}) ${influence ? "depends on" : "looks at"} “${shown(look.tokens[column])}” (${column + 1}): ${weightInWords(weight, 2)}`;
  };
  const place = (/** @type {PointerEvent} */ event) => {
    const box = chart.getBoundingClientRect();
    const scale = side / box.width;
    const [x, y] = [(event.clientX - box.left) * scale - margin, (event.clientY - box.top) * scale - margin];
    if (x < 0 || y < 0 || x >= size * cell || y >= size * cell) return false;
    [row, column] = [Math.floor(y / cell), Math.floor(x / cell)];
    return true;
  };
  chart.addEventListener("pointermove", (event) => place(event) && read());
  chart.addEventListener("pointerleave", () => at.setAttribute("visibility", "hidden"));
  chart.addEventListener("click", (event) => place(/** @type {PointerEvent} */ (event)) && lock(row));
  chart.addEventListener("focus", read);
  chart.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (event.key === "Enter") lock(row);
    if (!down && !right) return;
    event.preventDefault();
    [row, column] = [Math.max(0, Math.min(size - 1, row + down)), Math.max(0, Math.min(size - 1, column + right))];
    read();
  });
  return h("figure", { class: "large" }, h("figcaption", {}, nameOf(look, choice), h("span", { class: "quiet" }, ` rows: the token that ${influence ? "depends" : "looks"}; darkest: ${percent(peakOf(map, size))}`)), h("div", { class: "draw" }, chart), tip);
};
