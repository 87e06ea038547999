// Tables that sort, and lists of rows in pages.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (name, properties = {}, ...children) => {
  const found = Object.assign(document.createElement(name), properties);
  found.append(...children);
  return found;
};
// What the reader chose, by names: a newer page has it too.
const view = {
  filter: "", picks: {}, ticks: null, sorted: {}, metrics: null, across: "step", smooth: 0, scale: "auto",
  color: "run", mean: null, beside: null, x: null, y: null, telemetry: null, unclipped: new Set(),
};
// What is hidden of a list of rows: those that do not match, and those of other pages.
const PAGE = 100;
function pages(rows, place, matches) {
  let page = 0;
  let order = rows;
  const show = () => {
    const matching = order.filter(matches);
    const last = Math.max(0, Math.ceil(matching.length / PAGE) - 1);
    page = Math.min(Math.max(page, 0), last);
    const visible = new Set(matching.slice(page * PAGE, (page + 1) * PAGE));
    for (const row of rows) row.hidden = !visible.has(row);
    place.replaceChildren();
    if (matching.length < rows.length || last) {
      place.append(`${matching.length.toLocaleString("en-GB")} of ${rows.length.toLocaleString("en-GB")} `);
    }
    if (last) {
      const turn = (text, step) =>
        make("button", {
          type: "button", textContent: text, disabled: page + step < 0 || page + step > last,
          onclick: () => { page += step; show(); },
        });
      place.append(turn("Previous", -1), turn("Next", 1), ` page ${page + 1} of ${last + 1}`);
    }
  };
  return {
    show,
    sort: (sorted) => { order = sorted; page = 0; show(); },
    first: () => { page = 0; show(); },
    all: () => { for (const row of rows) row.hidden = !matches(row); },
  };
}

const natural = new Intl.Collator("en", { numeric: true });
const SIZES = { s: 1, min: 60, h: 3600 };
const numberIn = (text) => {
  const [, number, unit] = /^<?([\d.,]+) (s|min|h)$/.exec(text) ?? [];
  if (unit) return parseFloat(number.replaceAll(",", "")) * SIZES[unit];
  return { "": NaN, inf: Infinity, "-inf": -Infinity }[text] ?? parseFloat(text.replaceAll(",", ""));
};
function sortable(table, sorted) {
  const body = table.tBodies[0];
  let again = null;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      view.sorted[table.id] = [head.textContent, down];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = head.classList.contains("number");
      const keyed = [...body.rows].map((row) => {
        const text = row.cells[column].textContent;
        return [numeric ? numberIn(text) : text, row];
      });
      const empty = (key) => (numeric ? Number.isNaN(key) : key === "");
      keyed.sort(([one], [other]) => {
        if (empty(one) || empty(other)) return empty(one) - empty(other);
        const order = numeric ? (one > other) - (one < other) : natural.compare(one, other);
        return down ? -order : order;
      });
      const rows = keyed.map(([, row]) => row);
      body.append(...rows);
      sorted?.(rows);
    };
    const before = view.sorted[table.id];
    if (before?.[0] === head.textContent) again = () => { if (before[1]) head.setAttribute("aria-sort", "ascending"); button.onclick(); };
  });
  again?.();
}
