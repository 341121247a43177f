// Tooltips of the heat maps, and closed parts opened for printing. The page can be read without it.
(() => {
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  const stored = document.getElementById("attention-data");
  const tip = document.querySelector(".tip");
  if (!stored || !tip) return;
  const { tokens, heads } = JSON.parse(stored.textContent);
  tip.hidden = false;
  const rest = "Point at a cell to read its weight.";
  tip.textContent = rest;
  document.querySelectorAll(".panel").forEach((panel) => {
    const frame = panel.querySelector(".frame");
    const rows = heads[panel.dataset.head];
    panel.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * tokens.length);
      const row = Math.floor(((event.clientY - box.top) / box.height) * tokens.length);
      const inside = row in tokens && column in tokens;
      tip.textContent = inside
        ? `${tokens[row]} looks at ${tokens[column]}: ${((rows[row][column] ?? 0) / 10).toFixed(1)} %`
        : rest;
    });
    panel.addEventListener("pointerleave", () => (tip.textContent = rest));
  });
})();
