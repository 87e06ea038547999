// The page: its data, its filters, and what is drawn.

const inflate = async (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};
const AT_ONCE = 20; // runs that are drawn where the reader chose none; of more, the first of the best
const BEST = 12;

const swatch = ({ color: of, dash }) => {
  const found = make("i", { className: dash?.length ? "swatch line dashed" : "swatch line" });
  found.style.setProperty("--c", of);
  return found;
};

// Build what a page needs scripts for; returns what takes its listeners away again.
function start(data) {
  document.documentElement.classList.add("live");
  const ending = new AbortController();
  const { signal } = ending;
  const table = $("results-table");
  const rows = [...table.tBodies[0].rows];
  const bars = [...document.querySelectorAll("#timeline-rows .bar")];
  const details = [...document.querySelectorAll("details.run")];
  const heads = [...table.tHead.rows[0].cells];
  const byRun = [];
  for (const row of rows) byRun[row.dataset.run] = row;
  const names = data.runs.map(({ name }) => name);
  const ranked = new Set(data.ranked);
  const texts = byRun.map((row, run) => `${row.textContent} ${data.runs[run].label} ${data.runs[run].cause} ${data.runs[run].notes.join(" ")}`.toLowerCase());
  const matching = byRun.map(() => true);

  // What one can filter by: parameters as they were given, the table's other columns, the cause.
  const cell = (row, column) => row.cells[column].textContent.trim();
  const { keys, swept, values } = data.parameters;
  const cells = heads.map((head, column) => {
    const numeric = head.classList.contains("number");
    const known = byRun.map((row) => {
      const text = cell(row, column);
      return numeric ? (text === "" ? null : numberIn(text)) : text;
    });
    const fact = head.dataset.own !== undefined;
    return { key: head.title, fact, metric: numeric && !fact, of: (run) => known[run] };
  });
  const columns = [
    ...keys.map((key, at) => ({ key, swept: at < swept, of: (run) => values[at][run] })),
    ...cells.filter(({ key }) => !keys.includes(key)),
    { key: "cause", of: (run) => data.runs[run].cause },
    { key: "tag", of: (run) => data.runs[run].tags },
    { key: "note", of: (run) => data.runs[run].notes },
    { key: "experiment", of: (run) => names[run].split("/")[0] },
  ];
  const facts = ["state", "step", "cause", "tag", "note"];
  const filtered = columns.map((one) => one.fact || facts.includes(one.key) ? { ...one, key: `run.${one.key}`, fact: true } : one);
  const model = {
    data, matching, matchable: [...byRun.keys()], drawn: [], colors: null,
    results: cells.filter(({ key, metric }) => metric && !keys.includes(key)),
    column: (key) => columns.find((one) => one.key === key).of,
    recolor,
  };

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

  // Filters: conditions, the state, and each swept key.
  const filters = $("filters");
  const said = $("filter-said");
  const search = make("input", {
    type: "search", placeholder: "lr>=1e-4 and not state=failed", ariaLabel: "Filter the runs", id: "filter-text", value: view.filter, spellcheck: false,
  });
  search.setAttribute("aria-describedby", "filter-said");
  filters.append(make("label", {}, "filter", search));
  let meets = () => true;
  function read() {
    view.filter = search.value;
    try {
      meets = parseFilter(search.value.trim(), filtered, names, texts);
      said.textContent = "";
    } catch (error) {
      said.textContent = `${error.message}. The runs are those of the filter before.`;
    }
    search.ariaInvalid = String(said.textContent !== "");
  }
  search.oninput = () => { read(); filter(); };
  heads.forEach((head, column) => {
    if (!("swept" in head.dataset || "state" in head.dataset)) return;
    const found = [...new Set(rows.map((row) => cell(row, column)))].sort(natural.compare);
    if (found.length < 2 || found.length > 50) return;
    const select = make("select", { ariaLabel: `Only ${head.textContent}` }, make("option", { value: "any", textContent: "any" }));
    found.forEach((value, place) => select.append(make("option", { value: place, textContent: value || "(none)" })));
    const before = found.indexOf(view.picks[head.title]);
    if (before >= 0) select.value = before;
    select.onchange = () => {
      if (select.value === "any") delete view.picks[head.title];
      else view.picks[head.title] = found[select.value];
      filter();
    };
    filters.append(make("label", {}, head.textContent, select));
  });
  const button = (id, textContent, onclick) => filters.append(make("button", { type: "button", id, textContent, onclick }));
  let boxes = [];
  let draw = () => {};
  if ($("curve-charts")) choosing();
  button("filter-reset", "Reset", () => {
    Object.assign(view, { filter: "", picks: {}, ticks: null });
    search.value = "";
    for (const select of filters.querySelectorAll("select")) select.value = "any";
    read();
    filter();
  });
  const relate = relations(model, signal);
  const box = table.parentElement;
  const measured = new ResizeObserver(() => box.classList.toggle("fits", table.offsetWidth <= box.clientWidth));
  measured.observe(box);
  measured.observe(table);
  signal.addEventListener("abort", () => measured.disconnect());
  read();
  filter(true);
  recolor();
  telemetry(data, signal);

  function filter(only) {
    const picks = heads.flatMap((head, column) => (head.title in view.picks ? [[column, view.picks[head.title]]] : []));
    byRun.forEach((row, run) => {
      matching[run] = meets(run) && picks.every(([column, value]) => cell(row, column) === value);
    });
    results.first();
    timeline.first();
    for (const [run, each] of details.entries()) each.hidden = !matching[run];
    if (only !== true) show();
  }

  // The first of each experiment, then the second of each, and so on.
  function byTurns(order) {
    if (data.slots.length <= AT_ONCE) return order;
    const counts = {};
    const turns = order.map((run) => {
      const name = experimentOf(data.runs[run]);
      counts[name] = (counts[name] ?? 0) + 1;
      return [counts[name], run];
    });
    return turns.sort(([one], [other]) => one - other).map(([, run]) => run);
  }

  // Which runs are drawn: of those that match, those that the reader ticked, else the best.
  function show() {
    const order = data.slots.length > AT_ONCE ? [...data.ranked, ...model.matchable.filter((run) => !ranked.has(run))] : model.matchable;
    const found = byTurns(order.filter((run) => matching[run]));
    model.drawn = view.ticks ? found.filter((run) => view.ticks.has(names[run])) : found.slice(0, found.length > AT_ONCE ? BEST : AT_ONCE);
    model.drawn.sort((one, other) => one - other);
    const drawn = new Set(model.drawn);
    boxes.forEach(({ box, mark }, run) => {
      box.checked = view.ticks ? view.ticks.has(names[run]) : drawn.has(run);
      mark.style.visibility = drawn.has(run) ? "visible" : "hidden";
    });
    draw();
    relate();
  }

  function recolor() {
    model.colors = coloring(data, view.color);
    boxes.forEach((one, run) => {
      const mark = swatch(model.colors.of(run));
      one.mark.replaceWith(mark);
      one.mark = mark;
    });
    show();
  }

  // A box and a swatch in each row, and buttons for all that match.
  function choosing() {
    boxes = byRun.map((row, run) => {
      const head = row.cells[0];
      const box = make("input", { type: "checkbox", ariaLabel: `Draw ${names[run]}` });
      box.onchange = () => {
        view.ticks ??= new Set(model.drawn.map((one) => names[one]));
        if (box.checked) view.ticks.add(names[run]);
        else view.ticks.delete(names[run]);
        show();
      };
      const mark = head.querySelector(".swatch") ?? make("i");
      head.prepend(box, mark);
      return { box, mark };
    });
    button("draw-these", "Draw these", () => { view.ticks = new Set(names.filter((_, run) => matching[run])); show(); });
    button("draw-none", "Draw none", () => { view.ticks = new Set(); show(); });
    draw = curves(model, signal);
  }

  for (const each of document.querySelectorAll(".digest")) {
    const copy = make("button", { type: "button", textContent: "copy", ariaLabel: `Copy ${each.dataset.full}`, className: "copy" });
    copy.onclick = async () => {
      try {
        await navigator.clipboard.writeText(each.dataset.full);
        copy.textContent = "copied";
      } catch {
        each.querySelector("code").textContent = each.dataset.full;
      }
    };
    each.append(copy);
  }

  theme.addEventListener("change", recolor, { signal });
  addEventListener("beforeprint", () => {
    for (const each of paged) each.all();
    if (data.runs.length <= 50) for (const each of document.querySelectorAll("details")) each.open = true;
  }, { signal });
  addEventListener("afterprint", () => { for (const each of paged) each.show(); }, { signal });
  const open = () => {
    const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (wanted instanceof HTMLDetailsElement) wanted.open = true;
  };
  addEventListener("hashchange", open, { signal });
  open();
  return () => ending.abort();
}

let stop = () => {};
if (typeof DecompressionStream === "function") inflate($("data").textContent).then((data) => { stop = start(data); });
