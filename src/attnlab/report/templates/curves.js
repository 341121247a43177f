// Curves show their values at the pointer or with the arrow keys; the legend hides and shows them.
const enhanceCurves = (root) => {
  const made = (chart, name, attributes) => {
    const one = document.createElementNS(chart.namespaceURI, name);
    Object.entries(attributes).forEach(([key, value]) => one.setAttribute(key, value));
    return one;
  };
  const round = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const nearest = (xs, x) => {
    let best = 0;
    xs.forEach((one, place) => {
      if (Math.abs(one - x) < Math.abs(xs[best] - x)) best = place;
    });
    return best;
  };

  root.querySelectorAll("figure.curves").forEach((figure) => {
    const { x: unit, series } = JSON.parse(figure.querySelector("script").textContent);
    const hidden = new Set();
    const charts = [...figure.querySelectorAll("svg")];

    const toggle = (number) => {
      hidden.has(number) ? hidden.delete(number) : hidden.add(number);
      figure.querySelectorAll(`[data-series="${number}"]`).forEach((one) => {
        one.classList.toggle("off", hidden.has(number));
        if (one.classList.contains("key")) one.setAttribute("aria-pressed", String(!hidden.has(number)));
      });
    };

    charts.forEach((chart) => {
      const [left, right, low, high, bottom, top, least, most] = chart.dataset.axes.split(" ").map(Number);
      const place = (value) => left + ((value - low) / (high - low)) * (right - left);
      const height = (value) => bottom + ((value - least) / (most - least)) * (top - bottom);
      const cursor = made(chart, "line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
      const spots = series.map((one) => made(chart, "circle", { class: `spot ${one.look}`, r: 4, visibility: "hidden" }));
      const box = document.createElement("div");
      const draw = chart.parentElement;
      const all = [...new Set(series.flatMap((one) => one.x))].sort((one, other) => one - other);
      const slack = (high - low) / 100; // curves that end within a pixel or two of each other end together
      let at = all.length - 1;
      box.className = "values";
      box.setAttribute("role", "status");
      box.hidden = true;
      draw.append(box);
      chart.append(cursor, ...spots);

      const away = () => {
        box.hidden = true;
        [cursor, ...spots].forEach((one) => one.setAttribute("visibility", "hidden"));
      };
      const line = (one, value, spread) => {
        const row = document.createElement("div");
        const name = document.createElement("span");
        const number = document.createElement("b");
        name.textContent = one.name;
        name.className = one.look;
        number.textContent = `${round(value)}${spread}`;
        row.append(name, number);
        return row;
      };
      const show = (where) => {
        const x = all[where];
        if (x === undefined) return;
        at = where;
        const head = document.createElement("div");
        head.textContent = `${round(x)} ${unit}`;
        head.className = "quiet";
        box.replaceChildren(head);
        series.forEach((one, number) => {
          const reached = !hidden.has(number) && one.x.length && x >= one.x[0] - slack && x <= one.x.at(-1) + slack;
          const near = nearest(one.x, x);
          const known = reached && one.y[near] !== null;
          spots[number].setAttribute("visibility", known ? "visible" : "hidden");
          if (!known) return;
          spots[number].setAttribute("cx", place(one.x[near]));
          spots[number].setAttribute("cy", height(one.y[near]));
          const spread = one.low.length ? ` (${round(one.low[near])} to ${round(one.high[near])})` : "";
          box.append(line(one, one.y[near], spread));
        });
        cursor.setAttribute("x1", place(x));
        cursor.setAttribute("x2", place(x));
        cursor.setAttribute("visibility", "visible");
        box.hidden = false;
        const scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
        const beside = place(x) * scale + 12;
        const fits = beside + box.offsetWidth <= draw.clientWidth;
        box.style.left = `${fits ? beside : Math.max(0, place(x) * scale - box.offsetWidth - 12)}px`;
        box.style.top = `${top * scale}px`;
      };

      chart.addEventListener("pointermove", (event) => {
        const frame = chart.getBoundingClientRect();
        const x = ((event.clientX - frame.left) / frame.width) * chart.viewBox.baseVal.width;
        const y = ((event.clientY - frame.top) / frame.height) * chart.viewBox.baseVal.height;
        if (x < left - 6 || x > right + 6 || y < top - 6) return void away();
        show(nearest(all, low + ((x - left) / (right - left)) * (high - low)));
      });
      chart.addEventListener("pointerleave", away);
      chart.setAttribute("tabindex", "0");
      chart.setAttribute("role", "group");
      chart.addEventListener("focus", () => chart.matches(":focus-visible") && show(at));
      chart.addEventListener("blur", away);
      chart.addEventListener("keydown", (event) => {
        const step = Math.max(1, Math.round(all.length / 50));
        const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: all.length - 1 };
        if (event.key === "Escape") return void away();
        if (event.target !== chart || !(event.key in moves)) return;
        event.preventDefault();
        show(Math.min(Math.max(moves[event.key], 0), all.length - 1));
      });
      chart.querySelectorAll(".key").forEach((one) => {
        const number = Number(one.dataset.series);
        const name = `${series[number].name}: hide or show`;
        Object.entries({ tabindex: 0, role: "button", "aria-pressed": "true", "aria-label": name }).forEach((pair) =>
          one.setAttribute(...pair),
        );
        one.addEventListener("click", () => toggle(number));
        one.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          toggle(number);
        });
      });
    });
    const help = figure.querySelector(".help");
    if (help) help.hidden = false;
  });
};
