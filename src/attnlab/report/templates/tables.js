// Headings that sort their table: ascending, descending, and back to the original order. The table is complete without it.
const enhanceTables = (root) => {
  const turned = { ascending: "descending", descending: "ascending" };
  const key = (row, column, numbers) => {
    const given = row.cells[column].dataset.value ?? "";
    return numbers ? (given === "" ? NaN : Number(given)) : given.toLowerCase();
  };
  // Cells without a number come last in either direction.
  const compare = (one, other, numbers) => {
    if (!numbers) return one.localeCompare(other, "en", { numeric: true });
    return Number.isNaN(one) || Number.isNaN(other) ? Number.isNaN(one) - Number.isNaN(other) : one - other;
  };

  root.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const numbers = heading.dataset.sort === "number";
      const first = heading.dataset.first ?? "ascending";
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = heading.getAttribute("aria-sort");
        const next = now === "none" ? first : now === first ? turned[first] : "none";
        headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? next : "none"));
        const sign = next === "descending" ? -1 : 1;
        const sorted = rows.map((row) => [key(row, column, numbers), row]);
        if (next !== "none") {
          sorted.sort(([one], [other]) => {
            const order = compare(one, other, numbers);
            return numbers && (Number.isNaN(one) || Number.isNaN(other)) ? order : sign * order;
          });
        }
        body.append(...sorted.map(([, row]) => row));
      });
    });
  });
};
