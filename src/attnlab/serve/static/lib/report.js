// Reports: fragments that the server renders, made interactive, with export of every chart and table.
import { enhancements } from "../report.js";
import { h, fragment } from "./dom.js";
import { gloss } from "./glossary.js";
import { asCsv, asLatex } from "./tables.js";

/**
 * Saves a file in the browser.
 * @param {Blob} content
 * @param {string} name
 */
export const save = (content, name) => {
  const link = h("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

// What a drawing takes from the style sheet, written into a copy of it, so that it looks the same elsewhere.
const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "fill-opacity", "stroke-opacity", "opacity",
  "font-size", "font-family", "font-weight", "text-anchor", "paint-order", "visibility", "display"];

/**
 * A copy that carries its own style.
 * @template {Element} E
 * @param {E} original
 * @returns {E}
 */
const styled = (original) => {
  const copy = /** @type {E} */ (original.cloneNode(true));
  const originals = [original, ...original.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((one, number) => {
    const style = getComputedStyle(originals[number]);
    for (const name of KEPT) {
      const value = style.getPropertyValue(name);
      if (value) one.setAttribute(name, value);
    }
    one.removeAttribute("class");
  });
  return copy;
};

/** What a chart looks like elsewhere: in light colours, which can be printed. @param {SVGSVGElement} chart */
export const standalone = (chart) => {
  const { dataset } = document.documentElement;
  const { theme } = dataset;
  dataset.theme = "light";
  try {
    return written(chart);
  } finally {
    if (theme) dataset.theme = theme;
    else delete dataset.theme;
  }
};

/** @param {SVGSVGElement} chart */
const written = (chart) => {
  const copy = styled(chart);
  copy.removeAttribute("display"); // of the two drawings of a chart, the wide one is saved, whichever is shown
  // The cells of heads are drawn once, in another picture of the page.
  copy.querySelectorAll("use").forEach((use) => {
    const target = document.querySelector(use.getAttribute("href") ?? "#none");
    target && use.getAttribute("display") !== "none" ? use.replaceWith(styled(target)) : use.remove();
  });
  const box = chart.viewBox.baseVal;
  const paper = document.createElementNS(chart.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ x: box.x, y: box.y, width: box.width, height: box.height, fill: getComputedStyle(document.body).backgroundColor })) {
    paper.setAttribute(name, String(value));
  }
  copy.prepend(paper);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  return new XMLSerializer().serializeToString(copy);
};

/**
 * @param {SVGSVGElement} chart
 * @param {number} [scale]
 * @returns {Promise<Blob>}
 */
export const asPng = (chart, scale = 2) =>
  new Promise((resolve, reject) => {
    const { width, height } = chart.viewBox.baseVal;
    const image = new Image();
    image.onload = () => {
      const canvas = h("canvas", { width: width * scale, height: height * scale });
      const context = canvas.getContext("2d");
      context?.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))));
    };
    image.onerror = () => reject(new Error("the chart cannot be drawn"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(chart))}`;
  });

/** The text of a cell: what was typed into it, or its lines with commas between them. @param {HTMLTableCellElement} cell */
const textOf = (cell) =>
  (cell.querySelector("input")?.value ?? cell.innerText ?? cell.textContent ?? "").trim().replace(/\s*\n\s*/g, ", ").replace(/\s+/g, " ");

/** @param {HTMLTableElement} table */
const cells = (table) =>
  [...table.rows].map((row) => [...row.cells].filter((cell) => !cell.classList.contains("no-export")).map(textOf));

/** A caption without the notes in it. @param {Element | null | undefined} caption */
const titleOf = (caption) => {
  const copy = /** @type {Element | undefined} */ (caption?.cloneNode(true));
  copy?.querySelectorAll(".quiet, .note").forEach((note) => note.remove());
  return copy?.textContent?.trim() ?? "";
};

/** The name of a file: the title up to its first colon or the like, in whole words. @param {string} title */
const fileName = (title) => {
  const name = title.toLowerCase().split(/[:;.?!](?=\s|$)|\s[(–]/)[0].replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return (name.length > 48 ? name.slice(0, 49).replace(/-[^-]*$/, "") : name) || "attnlab";
};

/** @param {string} label @param {[string, () => void][]} choices */
const buttons = (label, choices) =>
  h("div", { class: "export", role: "group", "aria-label": label }, choices.map(([name, act]) => h("button", { type: "button", onclick: act }, name)));

/**
 * Buttons that save a chart.
 * @param {SVGSVGElement} chart
 * @param {string} title
 * @param {() => void} [draw]  called first, for a chart that is drawn only to be saved
 */
export const chartExports = (chart, title, draw = () => {}) =>
  buttons(`Export: ${title}`, [
    ["SVG", () => {
      draw();
      save(new Blob([standalone(chart)], { type: "image/svg+xml" }), `${fileName(title)}.svg`);
    }],
    ["PNG", async () => {
      draw();
      save(await asPng(chart), `${fileName(title)}.png`);
    }],
  ]);

/**
 * Adds buttons that export every chart and table below an element.
 * @param {Element} root
 */
export const addExports = (root) => {
  root.querySelectorAll("figure").forEach((figure) => {
    const chart = figure.querySelector("svg.chart");
    if (!(chart instanceof SVGSVGElement)) return;
    const title = titleOf(figure.querySelector("figcaption")) || "chart";
    figure.append(chartExports(chart, title));
  });
  root.querySelectorAll("table").forEach((table) => {
    if (table.closest(".no-export")) return;
    const title = titleOf(table.caption) || "table";
    (table.closest(".scroll") ?? table).after(buttons(`Export: ${title}`, [
      ["CSV", () => save(new Blob([asCsv(cells(table))], { type: "text/csv" }), `${fileName(title)}.csv`)],
      ["LaTeX", () => save(new Blob([asLatex(cells(table))], { type: "text/x-tex" }), `${fileName(title)}.tex`)],
    ]));
  });
};

/**
 * Shows a fragment of a report in an element, in place of what it held.
 * @param {Element} root
 * @param {string} markup
 */
export const showReport = (root, markup) => {
  root.replaceChildren(fragment(markup));
  for (const enhance of enhancements) enhance(root);
  addExports(root);
  gloss(root);
};
