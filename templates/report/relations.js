// How results depend on parameters: a scatter of one, and all of them as parallel coordinates.

const drawing = (name, attributes = {}, ...children) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
};
const words = (x, y, text, anchor = "middle") => drawing("text", { x, y, "text-anchor": anchor }, text);
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const MOST_AXES = 10;
const MOST_RUNS = 800;

function relations(model, signal) {
  const { data, results } = model;
  const { keys, values } = data.parameters;
  const short = shortened(keys);
  const varied = keys.filter((_, at) => new Set(values[at]).size > 1);
  const measured = results.filter(({ key }) => model.matchable.some((run) => isNumber(model.column(key)(run))));
  if (!varied.length || !measured.length) return () => {};
  $("parameters").hidden = $("parameters-link").hidden = false;
  const controls = $("scatter-controls");
  const [objective, mode] = data.objective;
  const choose = (name, id, options, before, change) => {
    const select = make("select", { id });
    for (const option of options) select.append(make("option", { value: option, textContent: keys.includes(option) ? short(option) : option }));
    select.value = options.includes(before) ? before : options[0];
    select.onchange = () => { change(select.value); draw(); };
    controls.append(make("label", {}, name, select));
    return select.value;
  };
  const outcomes = measured.map(({ key }) => key);
  const likely = [`${objective}.best`, data.metric].find((key) => outcomes.includes(key));
  view.y = choose("result", "scatter-y", outcomes, view.y ?? likely, (value) => { view.y = value; });
  view.x = choose("against", "scatter-x", varied, view.x, (value) => { view.x = value; });

  const runLink = (run, title, ...shapes) => {
    const link = drawing("a", { href: `#run-${data.runs[run].name}`, "data-run": run, "aria-label": title }, drawing("title", {}, title), ...shapes);
    return link;
  };
  const titleOf = (run, ...rest) => [data.runs[run].name, data.runs[run].label, ...rest].filter(Boolean).join(", ");

  // Of very many runs the best, or the first where none is known to be: a browser draws so many at once.
  function chosen(meets) {
    const found = model.matchable.filter((run) => model.matching[run] && meets(run));
    if (found.length <= MOST_RUNS) return found;
    const best = data.ranked.filter((run) => model.matching[run] && meets(run));
    $("relations-said").textContent = `Drawn are the ${MOST_RUNS} ${best.length ? "best" : "first"} of ${found.length.toLocaleString("en-GB")} runs; the filter chooses others.`;
    return [...new Set([...best, ...found])].slice(0, MOST_RUNS);
  }

  function scatter() {
    const place = $("scatter");
    const parameter = values[keys.indexOf(view.x)];
    const outcome = model.column(view.y);
    const runs = chosen((run) => isNumber(outcome(run)) && parameter[run] !== null);
    const width = Math.max(280, place.clientWidth);
    const [height, left, bottom, top] = [320, 64, 46, 14];
    const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "relation" });
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `${view.y} against ${view.x} of ${runs.length} runs`);
    place.replaceChildren(svg);
    if (!runs.length) { svg.append(words(width / 2, height / 2, "No run that matches the filter has both.")); return; }
    const all = view.unclipped.has("scatter");
    const [across, up] = [scale(runs.map((run) => parameter[run]), all), outcomeScale(runs.map(outcome), all)];
    const beyond = runs.map((run, at) => up.beyond[at] || across.isBeyond(parameter[run]));
    const told = beyondButton("scatter", { beyond }, "runs", draw);
    if (told) place.prepend(told);
    const x = (run) => left + 24 + across.at(parameter[run]) * (width - left - 64);
    const y = (value) => height - bottom - up.at(value) * (height - bottom - top);
    for (const [share, text] of up.ticks) {
      const at = height - bottom - share * (height - bottom - top);
      svg.append(drawing("line", { x1: left, x2: width - 16, y1: at, y2: at, class: "grid" }), words(left - 6, at + 4, text, "end"));
    }
    for (const [share, text] of spaced(across.ticks, width - left - 64, 46)) svg.append(words(left + 24 + share * (width - left - 64), height - bottom + 18, clipped(text, 12)));
    svg.append(words((left + width) / 2, height - 6, `${short(view.x)}${across.log ? " (log scale)" : ""}`), drawing("text", { transform: `translate(13 ${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, `${view.y}${up.log ? " (log scale)" : ""}`));
    if (across.values.length < runs.length && across.values.length <= 30) {
      for (const value of across.values) {
        const here = runs.filter((run) => parameter[run] === value).map(outcome);
        const mean = here.reduce((sum, each) => sum + each, 0) / here.length;
        const at = left + 24 + across.at(value) * (width - left - 64);
        const text = `${short(view.x)} = ${named(value)}: mean ${format(Number(mean.toPrecision(6)))} of ${here.length} runs`;
        svg.append(drawing("line", { x1: at - 12, x2: at + 12, y1: y(mean), y2: y(mean), class: "mean" }, drawing("title", {}, text)));
      }
    }
    for (const [at, run] of runs.entries()) {
      const best = run === data.ranked[0];
      const name = `point${best ? " best" : ""}${beyond[at] && !all ? " beyond" : ""}`;
      const point = drawing("circle", { cx: x(run), cy: y(outcome(run)), r: best ? 6.5 : 4.5, class: name });
      point.style.fill = model.colors.of(run).color;
      svg.append(runLink(run, titleOf(run, `${view.y} ${format(outcome(run))}`, best ? "the best" : ""), point));
    }
  }

  // How much each swept key explains alone; pressing one draws the result against it.
  function importance() {
    const place = $("importance");
    const outcome = model.column(view.y);
    const runs = model.matchable.filter((run) => model.matching[run] && isNumber(outcome(run)));
    const swept = keys.slice(0, data.parameters.swept).filter((key) => varied.includes(key));
    const found = (swept.length ? swept : varied).map((key) => ({ key, ...importanceOf(runs.map(outcome), runs.map((run) => values[keys.indexOf(key)][run])) }));
    found.sort((one, other) => (other.share ?? -1) - (one.share ?? -1));
    if (runs.length < FEWEST) {
      place.replaceChildren(make("p", { className: "hint", textContent: `Of ${runs.length} runs with ${view.y} nothing can be told: ${FEWEST} or more are wanted.` }));
      return;
    }
    const percent = (share) => `${Math.round(100 * share)} %`;
    place.replaceChildren(...found.map(({ key, share, chance }) => {
      const known = share !== undefined;
      const said = !known ? "too few runs for its values" : `${percent(share)}${share > chance ? "" : `, no more than chance (up to ${percent(chance)})`}`;
      const name = make("button", { type: "button", textContent: short(key), title: key });
      name.onclick = () => { view.x = key; $("scatter-x").value = key; draw(); };
      const bar = make("i", { className: known && share > chance ? "share" : "share faint" });
      bar.style.width = `${100 * (share ?? 0)}%`;
      const mark = make("i", { className: "chance", hidden: !known });
      mark.style.left = `${100 * (chance ?? 0)}%`;
      return make("div", {}, name, make("span", { className: "shares" }, bar, mark), make("span", { textContent: said }));
    }));
  }

  function parallel() {
    const place = $("parallel");
    const axes = varied.slice(0, MOST_AXES).map((key) => [short(key), (run) => values[keys.indexOf(key)][run]]);
    const outcome = model.column(view.y);
    const runs = chosen((run) => isNumber(outcome(run)));
    const width = Math.max(place.clientWidth, 130 * (axes.length + 1));
    const [height, top, bottom, side] = [300, 34, 14, 70];
    const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "relation" });
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `Parameters and ${view.y} of ${runs.length} runs`);
    place.replaceChildren(svg);
    if (!runs.length) { svg.append(words(width / 2, height / 2, "No run that matches the filter has a result.")); return; }
    axes.push([view.y, outcome]);
    const all = view.unclipped.has("parallel");
    const results = outcomeScale(runs.map(outcome), all);
    const beyond = [...results.beyond];
    const labels = [];
    const drawn = axes.map(([key, of], at) => {
      const x = side + (at / (axes.length - 1)) * (width - 2 * side);
      const known = at === axes.length - 1 ? results : scale(runs.map(of), all);
      if (known.isBeyond) runs.forEach((run, place) => { beyond[place] ||= known.isBeyond(of(run)); });
      const y = (value) => height - bottom - known.at(value) * (height - top - bottom);
      svg.append(drawing("line", { x1: x, x2: x, y1: top, y2: height - bottom, class: "axis" }), words(x, 16, clipped(key, 20) + (known.log ? " (log)" : "")));
      const [beside, anchor] = at === axes.length - 1 ? [x + 7, "start"] : [x - 7, "end"];
      const ticks = spaced(known.ticks, height - top - bottom, 14);
      labels.push(...ticks.map(([share, text]) => words(beside, height - bottom - share * (height - top - bottom) + 4, clipped(text, 10), anchor)));
      return { x, y, of };
    });
    const told = beyondButton("parallel", { beyond }, "runs", draw);
    if (told) place.prepend(told);
    const order = [...runs].sort((one, other) => (outcome(one) - outcome(other)) * (mode === "max" ? 1 : -1));
    for (const run of order) {
      const known = drawn.filter(({ of }) => of(run) !== null && of(run) !== undefined);
      const goodness = mode === "max" ? results.at(outcome(run)) : 1 - results.at(outcome(run));
      const line = drawing("path", { d: `M${known.map(({ x, y, of }) => `${x.toFixed(1)} ${y(of(run)).toFixed(1)}`).join("L")}`, class: run === data.ranked[0] ? "run best" : "run" });
      line.style.stroke = ramp(goodness);
      svg.append(runLink(run, titleOf(run, `${view.y} ${format(outcome(run))}`), line));
    }
    svg.append(...labels);
  }

  // A scale of results, with room; what goes beyond it lies on its edge.
  function outcomeScale(numbers, all) {
    const { low, high, log, beyond } = fit(numbers.map((value) => [value]), "auto", all);
    const of = log ? Math.log10 : (value) => value;
    const room = high > low ? (of(high) - of(low)) * 0.06 : log ? 0.5 : Math.abs(high) / 2 || 1;
    const [from, to] = [of(low) - room, of(high) + room];
    const at = (value) => Math.min(Math.max((of(value) - from) / (to - from), 0), 1);
    const ticks = log ? ticksOf(10 ** from, 10 ** to, true) : ticksOf(from, to, false);
    return { at, log, beyond, ticks: ticks.map((value) => [at(value), format(value)]) };
  }

  // Ticks that do not lie upon each other.
  function spaced(ticks, length, apart) {
    let last = -Infinity;
    return [...ticks].sort(([one], [other]) => one - other).filter(([share]) => {
      if (share * length - last < apart) return false;
      last = share * length;
      return true;
    });
  }

  function draw() {
    $("relations-said").textContent = "";
    scatter();
    importance();
    parallel();
  }
  let width = $("scatter").clientWidth;
  const observer = new ResizeObserver(() => {
    if (!$("scatter")?.clientWidth || $("scatter").clientWidth === width) return;
    width = $("scatter").clientWidth;
    draw();
  });
  observer.observe($("scatter"));
  signal.addEventListener("abort", () => observer.disconnect());
  return draw;
}
