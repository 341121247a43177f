// Tooltips on the map of a head; folded parts are opened for printing. The page is readable without it.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));

const enhanceHeads = (root) => {
  const stored = root.querySelector("#attention-data");
  const tip = root.querySelector(".tip");
  if (!stored || !tip) return;
  const { tokens, heads } = JSON.parse(stored.textContent);
  const draw = root.querySelector(".panels .draw");
  const frame = draw.querySelector(".frame");
  const strip = root.querySelector(".strip");
  const rest = "Each row is a token; its columns are the tokens it looks at. Point at a cell to read its weight.";
  let shown = tokens.length - 1; // the row that the strip shows

  const chosen = () => root.querySelector(".pick:checked").id.slice("pick-".length);
  const verb = () => root.querySelector(`.panels p[data-head="${chosen()}"]`).dataset.verb;
  const weight = (row, column) => (heads[chosen()][row][column] ?? 0) / 1000;

  // The text shaded by the weights of one row.
  const shade = (row) => {
    shown = row;
    [...(strip?.children ?? [])].filter((one) => one.tagName === "SPAN").forEach((one, column) => {
      one.style.setProperty("--share", Math.sqrt(Math.max(0, weight(row, column))));
      one.classList.toggle("asking", column === row);
      one.title = `${(100 * weight(row, column)).toFixed(1)} %`;
    });
  };
  const say = (row, column) => {
    tip.textContent = `“${tokens[row]}” ${verb()} “${tokens[column]}”: ${(100 * weight(row, column)).toFixed(1)} %`;
  };

  tip.hidden = false;
  tip.textContent = rest;
  draw.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * tokens.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * tokens.length);
    if (!(row in tokens && column in tokens)) return void (tip.textContent = rest);
    say(row, column);
    if (row !== shown) shade(row);
  });
  draw.addEventListener("pointerleave", () => (tip.textContent = rest));
  if (!strip) return;
  strip.hidden = false;
  strip.addEventListener("pointerover", (event) => {
    const row = [...strip.querySelectorAll("span")].indexOf(event.target);
    if (row >= 0) shade(row);
  });
  root.querySelectorAll(".pick").forEach((one) => one.addEventListener("change", () => shade(shown)));
  shade(shown);
};
