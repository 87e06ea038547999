// Charts with uPlot: curves of the runs that are drawn, and the telemetry of one.

// The width in pixels of an axis, ticks and gap included, for the longest of its values.
function wideEnough(plot, values) {
  const longest = Math.max(0, ...(values || []).map((value) => String(value ?? "").length));
  return Math.max(70, 34 + 6.5 * longest);
}

const format = (value) => {
  if (value == null) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en-GB");
  return size && (size < 1e-3 || size >= 1e7)
    ? Number(value.toPrecision(5)).toExponential()
    : String(Number(value.toPrecision(6)));
};

const theme = matchMedia("(prefers-color-scheme: dark)");

const sums = (differences) => {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
};
function decode({ steps, times, columns }, run) {
  const usual = sums(steps[run]);
  const metrics = columns.map((column) => {
    const { s, v, d } = column[run] ?? {};
    return column[run] && { steps: s ? sums(s) : usual, values: v ?? sums(d) };
  });
  return { times: { steps: usual, values: sums(times[run]).map((tenths) => tenths / 10) }, metrics };
}

// The index of the last number that is at most `wanted`; 0 where all are greater.
function below(numbers, wanted) {
  let low = 0;
  let high = numbers.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (numbers[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}
function interpolate({ steps, values }, step) {
  const place = below(steps, step);
  if (place + 1 >= steps.length || step <= steps[place]) return values[place];
  const share = (step - steps[place]) / (steps[place + 1] - steps[place]);
  return values[place] + share * (values[place + 1] - values[place]);
}
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let rest = 1;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    rest *= weight;
    return mean / (1 - rest);
  });
}

const UNITS = [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];
const unitOf = (length) => UNITS.find(([, size]) => length >= 2 * size) ?? UNITS[3];
const BEHIND = 20;

const axisStyle = () => ({
  stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 },
  values: (_, splits) => splits.map(format),
});

// The mean of lines, from the least to the greatest of them, at no more than so many places.
const MOST_PLACES = 500;
function meanOf(lines) {
  const all = [...new Set(lines.flatMap(({ xs }) => xs))].sort((one, other) => one - other);
  const every = Math.max(1, all.length / MOST_PLACES);
  const xs = all.filter((_, at) => at === all.length - 1 || Math.floor(at / every) !== Math.floor((at - 1) / every));
  const found = { xs, ys: [], low: [], high: [], counts: [] };
  for (const x of xs) {
    const here = lines.filter((each) => each.xs[0] <= x && x <= each.xs[each.xs.length - 1]);
    const values = here.map((each) => interpolate({ steps: each.xs, values: each.ys }, x));
    found.ys.push(values.reduce((sum, value) => sum + value, 0) / values.length);
    found.low.push(Math.min(...values));
    found.high.push(Math.max(...values));
    found.counts.push(values.length);
  }
  return found;
}

// Steps and tokens are whole numbers, and so are their ticks.
const WHOLE = Array.from({ length: 16 }, (_, ten) => [1, 2, 5].map((factor) => factor * 10 ** ten)).flat();

// One chart of one metric. `all` is what the charts share: their lines' highlight and their zoom. `fitted` is the range of its values.
function chart(place, name, lines, all, fitted) {
  const overlay = make("canvas", { className: "overlay" });
  const tooltip = make("div", { className: "tooltip", hidden: true });
  const full = { x: all.span, y: room(fitted) };
  const zoomed = () => ({ x: all.zoom.x ?? full.x, y: all.zoom[name] ?? full.y });
  let at = null;

  function room({ low, high, log }) {
    if (log) return low < high ? [low / 1.1, high * 1.1] : [low / 10, high * 10];
    const rest = low === high ? Math.abs(low) / 2 || 1 : (high - low) * 0.04;
    return [low - rest, high + rest];
  }

  const axis = axisStyle();
  const faded = (each) => (all.pinned && !each.runs.some((run) => all.pinned.has(run)) ? 0.12 : 1);
  const facets = [{ scale: "x", auto: false }, { scale: "y", auto: false }];
  const series = (each, alpha, width) => ({
    facets, stroke: each.color, width, dash: each.dash, alpha: alpha * faded(each), paths: uPlot.paths.linear(), points: { show: false },
  });
  const behind = view.smooth && !lines.some(({ low }) => low) && lines.length <= BEHIND ? lines : [];
  const plot = new uPlot(
    {
      mode: 2, width: place.clientWidth, height: all.height, legend: { show: false },
      cursor: { points: { show: false }, dataIdx: () => null, drag: { x: true, y: true, uni: 30, setScale: false } },
      scales: {
        x: { time: false, range: () => zoomed().x },
        y: { distr: fitted.log ? 3 : 1, range: () => zoomed().y },
      },
      axes: [{ ...axis, label: all.across, labelSize: 24, ...(view.across === "time" ? {} : { incrs: WHOLE }) }, { ...axis, label: name, labelSize: 24, size: wideEnough }],
      series: [null, ...behind.map((each) => series(each, 0.25, 1.6)), ...lines.map((each) => series(each, 1, each.best ? 2.6 : 1.6))],
      hooks: { setSelect: [zoom], drawAxes: [bands], draw: [marks] },
    },
    [null, ...behind.map((each) => [each.xs, each.raw]), ...lines.map((each) => [each.xs, each.ys])],
    place,
  );
  plot.over.append(overlay, tooltip);
  plot.over.addEventListener("mousemove", hover);
  plot.over.addEventListener("mouseleave", () => all.highlight(null));
  plot.over.addEventListener("dblclick", () => all.unzoom());
  place.onkeydown = keys;

  // From the least to the greatest of the runs that a line is the mean of.
  function bands(u) {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, top, width, height);
    u.ctx.clip();
    for (const each of lines.filter(({ low }) => low)) {
      const point = (values) => (x, at) => [u.valToPos(x, "x", true), u.valToPos(values[at], "y", true)];
      u.ctx.globalAlpha = 0.18 * faded(each);
      u.ctx.fillStyle = each.color;
      u.ctx.beginPath();
      for (const [x, y] of [...each.xs.map(point(each.high)), ...each.xs.map(point(each.low)).reverse()]) u.ctx.lineTo(x, y);
      u.ctx.fill();
    }
    u.ctx.restore();
  }

  // A line of one point would not be seen; and the best run's best point has a ring.
  function marks(u) {
    const circle = (each, at, size) => {
      u.ctx.beginPath();
      u.ctx.arc(u.valToPos(each.xs[at], "x", true), u.valToPos(each.ys[at], "y", true), size * devicePixelRatio, 0, 7);
    };
    for (const each of lines) {
      u.ctx.fillStyle = u.ctx.strokeStyle = each.color;
      u.ctx.lineWidth = 2 * devicePixelRatio;
      if (each.xs.length === 1) { circle(each, 0, 4); u.ctx.fill(); }
      if (each.best && name === all.objective) { circle(each, each.bestAt, 7); u.ctx.stroke(); }
    }
  }

  function zoom(u) {
    const { left, top, width, height } = u.select;
    if (width < 8 && height < 8) return;
    if (width >= 8) all.zoom.x = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    if (height >= 8) all.zoom[name] = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
    queueMicrotask(all.draw);
  }

  // The point next to the pointer of the curve that passes it most closely.
  function nearest(left, top) {
    const x = plot.posToVal(left, "x");
    let found = null;
    let least = 60 ** 2;
    for (const each of lines) {
      const at = below(each.xs, x);
      const next = Math.min(at + 1, each.xs.length - 1);
      const [x0, x1] = [at, next].map((point) => plot.valToPos(each.xs[point], "x"));
      const [y0, y1] = [at, next].map((point) => plot.valToPos(each.ys[point], "y"));
      const share = x1 > x0 ? Math.min(Math.max((left - x0) / (x1 - x0), 0), 1) : 0;
      const across = x0 + share * (x1 - x0) - left;
      const up = y0 + share * (y1 - y0) - top;
      const distance = across ** 2 + up ** 2;
      if (distance < least) {
        least = distance;
        found = { line: each, point: share < 0.5 ? at : next };
      }
    }
    return found;
  }

  function hover(event) {
    const box = plot.over.getBoundingClientRect();
    at = nearest(event.clientX - box.left, event.clientY - box.top);
    all.highlight(at?.line.key ?? null);
    if (at) show();
  }

  function show() {
    const { line: each, point } = at;
    const [left, top] = [plot.valToPos(each.xs[point], "x"), plot.valToPos(each.ys[point], "y")];
    const [bold, ...said] = all.tell(name, each, point);
    tooltip.replaceChildren(make("b", { textContent: bold }), ...said.map((textContent) => make("div", { textContent })));
    tooltip.hidden = false;
    const { clientWidth: width, clientHeight: height } = plot.over;
    const right = left > width - tooltip.offsetWidth - 24;
    tooltip.style.left = `${right ? Math.max(0, left - tooltip.offsetWidth - 14) : left + 14}px`;
    tooltip.style.top = `${Math.max(0, Math.min(top + 12, height - tooltip.offsetHeight - 4))}px`;
    return [bold, ...said].join(", ");
  }

  function keys(event) {
    const turn = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") { all.highlight(null); all.unzoom(); return; }
    if (turn === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const before = at ?? { line: lines[0], point: 0 };
    const bounded = (index, count) => Math.min(Math.max(index, 0), count - 1);
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const line = lines[bounded(lines.indexOf(before.line) + turn, lines.length)];
      at = { line, point: below(line.xs, before.line.xs[before.point]) };
    } else {
      const step = turn * (event.shiftKey ? 10 : 1);
      at = at ? { line: at.line, point: bounded(at.point + step, at.line.xs.length) } : before;
    }
    all.highlight(at.line.key);
    $("curve-said").textContent = show();
  }

  // Draw the line of this key thicker, over the others; none where there is none.
  function highlight(key) {
    const each = lines.find((one) => one.key === key);
    const { clientWidth: width, clientHeight: height } = plot.over;
    if (at?.line !== each) at = null;
    tooltip.hidden = !at;
    overlay.width = each ? width * devicePixelRatio : 0;
    if (!each) return;
    overlay.height = height * devicePixelRatio;
    overlay.style.width = `${width}px`;
    overlay.style.height = `${height}px`;
    const pen = overlay.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    pen.strokeStyle = pen.fillStyle = each.color;
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.beginPath();
    each.xs.forEach((x, at) => pen.lineTo(plot.valToPos(x, "x"), plot.valToPos(each.ys[at], "y")));
    pen.stroke();
    if (!at) return;
    pen.beginPath();
    pen.arc(plot.valToPos(each.xs[at.point], "x"), plot.valToPos(each.ys[at.point], "y"), 5, 0, 7);
    pen.fill();
  }

  return { destroy: () => plot.destroy(), highlight };
}

const MOST_NAMED = 24;
const BESIDE = 3; // experiments that stand beside each other at first

// `model` has the data, the runs that are drawn and their colours.
function curves(model, signal) {
  const { data } = model;
  const place = $("curve-charts");
  const controls = $("curve-controls");
  const legend = $("curve-legend");
  const decoded = [];
  const run = (index) => (decoded[index] ??= decode(data.curves, index));
  const tokens = data.metrics.indexOf("tokens");
  const [objective, mode] = data.objective;
  const { keys, swept, repeats, values } = data.parameters;
  const short = shortened(keys);
  let charts = [];
  const all = {
    objective, zoom: {}, pinned: null, across: "step", height: 420, draw,
    highlight: (key) => { for (const each of charts) each.highlight(key); },
    unzoom: () => { all.zoom = {}; draw(); },
    tell,
  };
  view.metrics ??= [data.metric];
  view.mean ??= repeats.length ? "sweep.repeat" : "";

  const chips = data.metrics.map((name) => {
    const chip = make("button", { type: "button", textContent: name, ariaPressed: "false" });
    chip.onclick = () => {
      view.metrics = view.metrics.includes(name) ? view.metrics.filter((one) => one !== name) : [...view.metrics, name];
      delete all.zoom[name];
      draw();
    };
    return chip;
  });
  $("curve-metrics").append(...chips);

  const choose = (name, options, before, change) => {
    const select = make("select", { id: `curve-${name.replaceAll(" ", "-")}` });
    for (const [value, text] of options) select.append(make("option", { value, textContent: text }));
    select.value = options.some(([value]) => value === before) ? before : options[0][0];
    select.onchange = () => { change(select.value); all.zoom = {}; all.pinned = null; model.recolor(); };
    controls.append(make("label", {}, name, select));
    return select.value;
  };
  const across = [["step", "step"], ["time", "time"]];
  if (tokens >= 0) across.splice(1, 0, ["tokens", "tokens"]);
  view.across = choose("against", across, view.across, (value) => { view.across = value; });
  const experiments = [...new Set(data.runs.map(experimentOf))];
  const several = experiments.length > 1 ? [["experiment", "experiment"]] : [];
  if (several.length) {
    view.beside ??= experiments.length <= BESIDE ? "experiment" : "";
    view.beside = choose("beside each other", [["", "metrics"], ["experiment", "experiments"]], view.beside, (value) => { view.beside = value; });
  }
  if (keys.length || several.length) {
    view.color = choose("colour by", [["run", "run"], ...several, ...keys.map((key) => [key, short(key)])], view.color, (value) => { view.color = value; });
  }
  const averaged = [["", "nothing"], ...(repeats.length ? [["sweep.repeat", `repeats (${repeats.map(short).join(", ")})`]] : []), ...keys.slice(0, swept).map((key) => [key, short(key)])];
  if (averaged.length > 1) view.mean = choose("mean over", averaged, view.mean, (value) => { view.mean = value; });
  view.scale = choose("scale", [["auto", "automatic"], ["linear", "linear"], ["log", "log"]], view.scale, (value) => { view.scale = value; });
  const slider = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, id: "curve-smoothing" });
  const told = make("output", { textContent: String(view.smooth) });
  let waiting = 0;
  slider.oninput = () => {
    view.smooth = Number(slider.value);
    told.textContent = slider.value;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  controls.append(make("label", {}, "smoothing", slider, told));

  function line(index, metric) {
    const { metrics, times } = run(index);
    const column = metrics[metric];
    const scale = view.across === "time" ? times : view.across === "tokens" ? metrics[tokens] : null;
    if (!column || (view.across !== "step" && !scale?.steps.length)) return null;
    const kept = view.scale === "log" ? [...column.values.keys()].filter((at) => column.values[at] > 0) : [...column.values.keys()];
    if (!kept.length) return null;
    const steps = kept.map((at) => column.steps[at]);
    const raw = kept.map((at) => column.values[at]);
    const best = index === data.ranked[0];
    const bestAt = best && raw.indexOf((mode === "max" ? Math.max : Math.min)(...raw));
    return {
      key: data.runs[index].name, name: data.runs[index].name, runs: [index], index, steps, raw, best, bestAt,
      xs: scale ? steps.map((step) => interpolate(scale, step)) : steps,
      ys: smoothed(raw, view.smooth), ...model.colors.of(index),
    };
  }

  // The lines of a metric: one of each run, or one of those that differ in nothing but what is averaged over.
  function linesOf(metric) {
    const lines = model.drawn.map((index) => line(index, metric)).filter(Boolean);
    if (!view.mean) return lines;
    const over = view.mean === "sweep.repeat" ? repeats : [view.mean];
    const by = keys.slice(0, swept).filter((key) => !over.includes(key));
    const groups = new Map();
    for (const each of lines) {
      const parts = by.map((key) => `${short(key)}=${named(values[keys.indexOf(key)][each.index])}`);
      const name = [each.name.split("/")[0], ...parts].join(" ");
      groups.set(name, [...(groups.get(name) ?? []), each]);
    }
    return [...groups].map(([name, members]) => ({
      ...members[0], ...meanOf(members), key: name, name, runs: members.map(({ index }) => index), best: false,
    }));
  }

  function draw() {
    for (const each of charts) each.destroy();
    charts = [];
    place.replaceChildren();
    data.metrics.forEach((name, at) => { chips[at].ariaPressed = String(view.metrics.includes(name)); });
    const chosen = data.metrics.filter((name) => view.metrics.includes(name));
    const found = chosen.map((name) => [name, linesOf(data.metrics.indexOf(name))]).filter(([, lines]) => lines.length);
    key(found.flatMap(([, lines]) => lines));
    if (!found.length) {
      const why = chosen.length ? "No run that is drawn has values of this. Tick runs in the table above, or change the filter." : "Choose a metric above.";
      place.append(make("p", { className: "empty", textContent: why }));
      return;
    }
    all.across = view.across;
    if (view.across === "time") {
      const longest = Math.max(...found.flatMap(([, lines]) => lines.map((each) => each.xs[each.xs.length - 1])));
      const [unit, size] = unitOf(longest);
      for (const [, lines] of found) for (const each of lines) each.xs = each.xs.map((seconds) => seconds / size);
      all.across = `${unit} since the first logged step`;
    }
    const split = view.beside ? experiments.length : 1;
    const parts = found.flatMap(([name, lines]) =>
      split === 1 ? [[name, lines, ""]] : experiments.map((each) => [name, lines.filter(({ key: of }) => of.split(/[/ ]/)[0] === each), each]).filter(([, those]) => those.length));
    all.height = found.length > 1 ? 280 : split > 1 ? 340 : 420;
    place.classList.toggle("several", parts.length > 1);
    const places = parts.map(([name, lines, experiment]) => {
      const runs = new Set(lines.flatMap((each) => each.runs)).size;
      const means = lines.some(({ low }) => low) ? `, ${lines.length} means` : "";
      const one = make("div", { className: "curve-chart", tabIndex: 0 });
      one.setAttribute("role", "group");
      one.setAttribute("aria-label", `${experiment && `${experiment}: `}${name} against ${view.across} of ${runs} runs${means}; their values are in the results table`);
      if (experiment) one.append(make("h3", { textContent: experiment }));
      one.setAttribute("aria-describedby", "curve-keys");
      place.append(one);
      return one;
    });
    const xs = found.flatMap(([, lines]) => lines.flatMap((each) => [each.xs[0], each.xs[each.xs.length - 1]]));
    const [first, last] = [Math.min(...xs), Math.max(...xs)];
    const rest = first === last ? Math.abs(first) / 2 || 1 : 0;
    all.span = [first - rest, last + rest];
    const fits = new Map(found.map(([name, lines]) => [name, fit(lines.map((each) => (each.low ? [...each.low, ...each.high] : each.ys)), view.scale, view.unclipped.has(name))]));
    charts = parts.map(([name, lines], at) => {
      const fitted = fits.get(name);
      const what = lines.some(({ low }) => low) ? "means" : "runs";
      const told = beyondButton(name, fitted, what, () => { delete all.zoom[name]; draw(); });
      if (told && parts.findIndex(([other]) => other === name) === at) places[at].append(told);
      return chart(places[at], name, lines, all, fitted);
    });
  }

  // The legend: what each colour means; pressing one puts the others into the background.
  function key(lines) {
    const drawn = [...new Set(lines.flatMap((each) => each.runs))].sort((one, other) => one - other);
    let entries = model.colors.legend(drawn);
    if (view.mean && view.color === "run") {
      const unique = new Map(lines.map((each) => [each.key, each]));
      entries = [...unique.values()].map((each) => ({ label: `${each.name} (mean of ${each.runs.length})`, style: each, runs: each.runs }));
    }
    const buttons = entries.slice(0, MOST_NAMED).map(({ label, style, runs }) => {
      const isPinned = all.pinned && runs.every((one) => all.pinned.has(one));
      const best = runs.includes(data.ranked[0]) && runs.length === 1 ? ", the best" : "";
      const button = make("button", { type: "button", ariaPressed: String(Boolean(isPinned)) }, swatch(style), label + best);
      button.onclick = () => { all.pinned = isPinned ? null : new Set(runs); draw(); legend.querySelectorAll("button")[buttons.indexOf(button)]?.focus(); };
      return button;
    });
    const rest = entries.length - buttons.length;
    legend.replaceChildren(...buttons.map((button) => make("li", {}, button)), ...(rest > 0 ? [make("li", { textContent: `and ${rest} more` })] : []));
    if (view.mean && drawn.length) legend.append(make("li", { className: "hint", textContent: "bands reach from the least to the greatest" }));
  }

  function tell(metric, each, point) {
    if (each.low) {
      return [
        each.name, `${all.across} ${format(Number(each.xs[point].toPrecision(6)))}`, `mean ${metric} ${format(Number(each.ys[point].toPrecision(6)))}`,
        `from ${format(Number(each.low[point].toPrecision(6)))} to ${format(Number(each.high[point].toPrecision(6)))}, ${each.counts[point]} of ${each.runs.length} runs`,
      ];
    }
    const { times, metrics } = run(each.index);
    const step = each.steps[point];
    const said = [each.name];
    if (data.runs[each.index].label) said.push(data.runs[each.index].label);
    said.push(`step ${format(step)}`);
    if (metrics[tokens]) said.push(`tokens ${format(Math.round(interpolate(metrics[tokens], step)))}`);
    if (times.steps.length) {
      const seconds = interpolate(times, step);
      const [unit, size] = unitOf(seconds);
      said.push(`after ${format(Number((seconds / size).toPrecision(4)))} ${unit}`);
    }
    said.push(`${metric} ${format(each.raw[point])}`);
    if (view.smooth) said.push(`smoothed ${format(each.ys[point])}`);
    return said;
  }

  let width = place.clientWidth;
  const observer = new ResizeObserver(() => {
    if (!place.clientWidth || place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  });
  observer.observe(place);
  signal.addEventListener("abort", () => {
    observer.disconnect();
    for (const each of charts) each.destroy();
  });
  return draw;
}

function telemetry(data, signal) {
  const place = $("telemetry-charts");
  const sampled = [...data.runs.keys()].filter((index) => data.runs[index].telemetry);
  if (!sampled.length) return;
  const select = make("select", { id: "telemetry-run" });
  for (const index of sampled) {
    const { name, label } = data.runs[index];
    select.append(make("option", { value: index, textContent: label ? `${name} ${label}` : name }));
  }
  $("telemetry-controls").append(make("label", {}, "run", select));
  const before = sampled.find((index) => data.runs[index].name === view.telemetry);
  if (before !== undefined) select.value = before;
  let plots = [];
  const draw = () => {
    for (const plot of plots) plot.destroy();
    place.replaceChildren();
    const { times: differences, values } = data.runs[select.value].telemetry;
    const times = sums(differences);
    const usual = times.slice(1).map((time, at) => time - times[at]).sort((one, other) => one - other)[(times.length - 1) >> 1];
    const gap = (at) => at && times[at] - times[at - 1] > 5 * usual;
    const broken = (numbers, between) => numbers.flatMap((number, at) => (gap(at) ? [between(at), number] : [number]));
    const [unit, size] = unitOf(times[times.length - 1] - times[0]);
    const xs = broken(times, (at) => (times[at] + times[at - 1]) / 2).map((time) => (time - times[0]) / size);
    const figures = [];
    for (const [key, title, measure] of data.series) {
      const nodes = Object.keys(values[key]);
      if (!nodes.length) continue;
      const figure = make("div", {}, make("h3", { textContent: `${title} (${measure})` }));
      figure.setAttribute("role", "group");
      figure.setAttribute("aria-label", `${title} of ${nodes.length} nodes`);
      figures.push({ figure, key, measure, nodes });
      place.append(figure);
    }
    const axis = axisStyle();
    plots = figures.map(({ figure, key, measure, nodes }) => new uPlot(
      {
        width: figure.clientWidth, height: 170,
        legend: { show: nodes.length <= 4 },
        cursor: { sync: { key: "telemetry" }, drag: { x: true, y: false } },
        scales: {
          x: { time: false },
          y: { range: (_, low, high) => [Math.min(0, low ?? 0), measure === "%" ? 100 : (high || 1) * 1.05] },
        },
        axes: [{ ...axis, label: unit, labelSize: 18, size: 30 }, { ...axis, size: 54 }],
        series: [
          { label: unit, value: (_, value) => format(value && Number(value.toPrecision(4))) },
          ...nodes.map((node, index) => ({
            label: node, stroke: color(`--c${index % 10}`), dash: DASHES[Math.floor(index / 10) % 3],
            width: 1.4, points: { show: xs.length < 3 }, value: (_, value) => format(value),
          })),
        ],
      },
      [xs, ...nodes.map((node) => broken(values[key][node], () => null))],
      figure,
    ));
  };
  select.onchange = () => { view.telemetry = data.runs[select.value].name; draw(); };
  theme.addEventListener("change", draw, { signal });
  signal.addEventListener("abort", () => { for (const plot of plots) plot.destroy(); });
  draw();
}
