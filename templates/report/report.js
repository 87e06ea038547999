// The page: its data, its filters, and what is drawn.

const inflate = async (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

function start(data) {
  document.documentElement.classList.add("live");
  const table = $("results-table");
  const rows = [...table.tBodies[0].rows];
  const bars = [...document.querySelectorAll("#timeline-rows .bar")];
  const state = { text: "", values: new Map() };

  const texts = rows.map((row) => `${row.textContent} ${data.runs[row.dataset.run].label}`.toLowerCase());
  const cell = (row, column) => row.cells[column].textContent.trim();
  const matching = rows.map(() => true);
  const matches = (element) => matching[element.dataset.run];
  const results = pages(rows, $("results-pages"), matches);
  const timeline = pages(bars, $("timeline-pages"), matches);
  sortable(table, results.sort);
  const paged = [results, timeline];
  for (const other of document.querySelectorAll("table.sortable")) {
    const turned = $(other.id.replace("-table", "-pages"));
    if (other === table) continue;
    if (!turned) { sortable(other); continue; }
    const rest = pages([...other.tBodies[0].rows], turned, () => true);
    sortable(other, rest.sort);
    rest.show();
    paged.push(rest);
  }
  const byRun = [];
  for (const row of rows) byRun[row.dataset.run] = row;

  function filter() {
    byRun.forEach((row, run) => {
      const wanted = [...state.values].every(([column, value]) => cell(row, column) === value);
      matching[run] = wanted && state.text.split(/\s+/).every((word) => texts[run].includes(word));
    });
    results.first();
    timeline.first();
  }

  // Filters: text, the state, and each swept key.
  const filters = $("filters");
  const search = make("input", { type: "search", placeholder: "Filter", ariaLabel: "Filter the runs by text", id: "filter-text" });
  search.oninput = () => { state.text = search.value.trim().toLowerCase(); filter(); };
  filters.append(search);
  const choices = (column, name) => {
    const values = [...new Set(rows.map((row) => cell(row, column)))].sort(natural.compare);
    if (values.length < 2 || values.length > 50) return;
    const select = make("select", { ariaLabel: `Only ${name}` }, make("option", { value: "any", textContent: "any" }));
    values.forEach((value, place) => select.append(make("option", { value: place, textContent: value || "(none)" })));
    select.onchange = () => {
      if (select.value === "any") state.values.delete(column);
      else state.values.set(column, values[select.value]);
      filter();
    };
    filters.append(make("label", {}, name, select));
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if ("swept" in head.dataset || "state" in head.dataset) choices(column, head.textContent);
  });
  if ($("curve-chart")) choosing();
  filter();
  telemetry(data);

  // Which runs are drawn: a box and a swatch in each row, and buttons for all that match.
  function choosing() {
    const wanted = new Set(data.shown);
    const charts = curves(data, wanted);
    const boxes = byRun.map((row, run) => {
      const head = row.cells[0];
      const box = make("input", { type: "checkbox", ariaLabel: `Draw ${data.runs[run].name}` });
      box.onchange = () => {
        if (box.checked) wanted.add(run);
        else wanted.delete(run);
        show();
      };
      const slot = data.slots[run];
      let swatch = head.querySelector(".swatch");
      if (!swatch) {
        swatch = make("i", { className: `swatch c${slot % 10}${slot % 30 > 9 ? " dashed" : ""}` });
        head.prepend(swatch);
      }
      head.prepend(box);
      return { box, swatch };
    });
    const show = () => {
      boxes.forEach(({ box, swatch }, run) => {
        box.checked = wanted.has(run);
        swatch.style.visibility = box.checked ? "visible" : "hidden";
      });
      charts.draw();
    };
    const button = (textContent, choose) =>
      filters.append(make("button", { type: "button", textContent, onclick: () => { wanted.clear(); choose(); show(); } }));
    button("Draw these", () => matching.forEach((does, run) => does && wanted.add(run)));
    button("Draw none", () => {});
    show();
  }

  addEventListener("beforeprint", () => {
    for (const each of paged) each.all();
    if (data.runs.length <= 50) for (const each of document.querySelectorAll("details")) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of paged) each.show(); });
  const open = () => {
    const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (wanted instanceof HTMLDetailsElement) wanted.open = true;
  };
  addEventListener("hashchange", open);
  open();
}

if (typeof DecompressionStream === "function") inflate($("data").textContent).then(start);
