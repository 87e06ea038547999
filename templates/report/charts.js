// Charts with uPlot: curves of the runs that are wanted, and the telemetry of one.

const format = (value) => {
  if (value == null) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en-GB");
  return size && (size < 1e-3 || size >= 1e7)
    ? Number(value.toPrecision(5)).toExponential()
    : String(Number(value.toPrecision(6)));
};

// Colours of the style sheet, as they are now.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASHES = [[], [6, 3], [2, 3]];
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

function curves(data, wanted) {
  const place = $("curve-chart");
  const controls = $("curve-controls");
  const decoded = [];
  const run = (index) => (decoded[index] ??= decode(data.curves, index));
  const tokens = data.metrics.indexOf("tokens");
  const view = { metric: data.metrics.indexOf(data.metric), across: "step", smooth: 0, log: false, zoom: null };
  let plot = null;
  let lines = [];

  const choose = (name, options, change) => {
    const select = make("select", { id: `curve-${name}` });
    for (const [value, text] of options) select.append(make("option", { value, textContent: text }));
    select.onchange = () => { change(select.value); view.zoom = null; draw(); };
    controls.append(make("label", {}, name, select));
    return select;
  };
  choose("metric", data.metrics.map((name, index) => [index, name]), (value) => { view.metric = Number(value); }).value = view.metric;
  const across = [["step", "step"], ["time", "time"]];
  if (tokens >= 0) across.splice(1, 0, ["tokens", "tokens"]);
  choose("against", across, (value) => { view.across = value; });
  const slider = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, id: "curve-smoothing" });
  const told = make("output", { textContent: "0" });
  let waiting = 0;
  slider.oninput = () => {
    view.smooth = Number(slider.value);
    told.textContent = slider.value;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  controls.append(make("label", {}, "smoothing", slider, told));
  const log = make("input", { type: "checkbox", id: "curve-log" });
  log.onchange = () => { view.log = log.checked; view.zoom = null; draw(); };
  controls.append(make("label", {}, log, "log scale"));

  const tooltip = make("div", { className: "tooltip", hidden: true, id: "curve-tooltip" });
  const overlay = make("canvas", { className: "overlay" });

  function line(index) {
    const { metrics, times } = run(index);
    const column = metrics[view.metric];
    const scale = view.across === "time" ? times : view.across === "tokens" ? metrics[tokens] : null;
    if (!column || (view.across !== "step" && !scale?.steps.length)) return null;
    const kept = view.log ? [...column.values.keys()].filter((at) => column.values[at] > 0) : [...column.values.keys()];
    if (!kept.length) return null;
    const steps = kept.map((at) => column.steps[at]);
    const raw = kept.map((at) => column.values[at]);
    const slot = data.slots[index];
    return {
      index, steps, raw,
      xs: scale ? steps.map((step) => interpolate(scale, step)) : steps,
      ys: smoothed(raw, view.smooth),
      color: color(`--c${slot % 10}`), dash: DASHES[Math.floor(slot / 10) % 3],
    };
  }

  function range(key, log) {
    let low = Infinity;
    let high = -Infinity;
    for (const each of lines) for (const value of each[key]) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (log) return low < high ? [low / 1.1, high * 1.1] : [low / 10, high * 10];
    const room = low === high ? Math.abs(low) / 2 || 1 : key === "xs" ? 0 : (high - low) * 0.04;
    return [low - room, high + room];
  }

  function draw() {
    plot?.destroy();
    plot = null;
    tooltip.hidden = true;
    lines = [...wanted].sort((one, other) => one - other).map(line).filter(Boolean);
    place.replaceChildren();
    const name = data.metrics[view.metric];
    place.setAttribute("aria-label", `${name} against ${view.across} of ${lines.length} runs; their values are in the results table`);
    if (!lines.length) {
      place.append(make("p", { className: "empty", textContent: "No selected run has values of this metric. Tick runs in the table above." }));
      return;
    }
    let label = view.across;
    if (view.across === "time") {
      const longest = Math.max(...lines.map((each) => each.xs[each.xs.length - 1]));
      const [unit, size] = unitOf(longest);
      for (const each of lines) each.xs = each.xs.map((seconds) => seconds / size);
      label = `${unit} since the first logged step`;
    }
    const full = { x: range("xs", false), y: range("ys", view.log) };
    const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 }, values: (_, splits) => splits.map(format) };
    const facets = [{ scale: "x", auto: false }, { scale: "y", auto: false }];
    const series = (each, alpha) => ({ facets, stroke: each.color, width: 1.6, dash: each.dash, alpha, paths: uPlot.paths.linear(), points: { show: false } });
    const behind = view.smooth && lines.length <= BEHIND ? lines : [];
    plot = new uPlot(
      {
        mode: 2, width: place.clientWidth, height: 420, legend: { show: false },
        cursor: { points: { show: false }, dataIdx: () => null, drag: { x: true, y: true, uni: 30, setScale: false } },
        scales: {
          x: { time: false, range: () => (view.zoom ?? full).x },
          y: { distr: view.log ? 3 : 1, range: () => (view.zoom ?? full).y },
        },
        axes: [{ ...axis, label, labelSize: 24 }, { ...axis, label: name, labelSize: 24, size: 76 }],
        series: [null, ...behind.map((each) => series(each, 0.25)), ...lines.map((each) => series(each, 1))],
        hooks: { setSelect: [zoom], draw: [dots] },
      },
      [null, ...behind.map((each) => [each.xs, each.raw]), ...lines.map((each) => [each.xs, each.ys])],
      place,
    );
    plot.over.append(overlay, tooltip);
    plot.over.addEventListener("mousemove", hover);
    plot.over.addEventListener("mouseleave", () => { tooltip.hidden = true; overlay.width = 0; });
    plot.over.addEventListener("dblclick", () => { view.zoom = null; draw(); });
  }

  // A line of one point would not be seen.
  function dots(u) {
    for (const each of lines.filter(({ xs }) => xs.length === 1)) {
      u.ctx.fillStyle = each.color;
      u.ctx.beginPath();
      u.ctx.arc(u.valToPos(each.xs[0], "x", true), u.valToPos(each.ys[0], "y", true), 4 * devicePixelRatio, 0, 7);
      u.ctx.fill();
    }
  }

  function zoom(u) {
    const { left, top, width, height } = u.select;
    if (width < 8 && height < 8) return;
    const shown = { x: [u.scales.x.min, u.scales.x.max], y: [u.scales.y.min, u.scales.y.max] };
    view.zoom = {
      x: width < 8 ? shown.x : [u.posToVal(left, "x"), u.posToVal(left + width, "x")],
      y: height < 8 ? shown.y : [u.posToVal(top + height, "y"), u.posToVal(top, "y")],
    };
    queueMicrotask(draw);
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
    const left = event.clientX - box.left;
    const top = event.clientY - box.top;
    const found = nearest(left, top);
    tooltip.hidden = !found;
    overlay.width = found ? box.width * devicePixelRatio : 0;
    if (!found) return;
    highlight(found, box);
    const { line: each, point } = found;
    const { name, label } = data.runs[each.index];
    const { times, metrics } = run(each.index);
    const step = each.steps[point];
    const said = [make("b", { textContent: name })];
    const say = (text) => said.push(make("div", { textContent: text }));
    if (label) say(label);
    say(`step ${format(step)}`);
    if (metrics[tokens]) say(`tokens ${format(Math.round(interpolate(metrics[tokens], step)))}`);
    if (times.steps.length) {
      const seconds = interpolate(times, step);
      const [unit, size] = unitOf(seconds);
      say(`after ${format(Number((seconds / size).toPrecision(4)))} ${unit}`);
    }
    say(`${data.metrics[view.metric]} ${format(each.raw[point])}`);
    if (view.smooth) say(`smoothed ${format(each.ys[point])}`);
    tooltip.replaceChildren(...said);
    const right = left > box.width - tooltip.offsetWidth - 24;
    tooltip.style.left = `${right ? Math.max(0, left - tooltip.offsetWidth - 14) : left + 14}px`;
    tooltip.style.top = `${Math.max(0, Math.min(top + 12, box.height - tooltip.offsetHeight - 4))}px`;
  }

  function highlight({ line: each, point }, box) {
    overlay.height = box.height * devicePixelRatio;
    overlay.style.width = `${box.width}px`;
    overlay.style.height = `${box.height}px`;
    const pen = overlay.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    pen.strokeStyle = pen.fillStyle = each.color;
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.beginPath();
    each.xs.forEach((x, at) => pen.lineTo(plot.valToPos(x, "x"), plot.valToPos(each.ys[at], "y")));
    pen.stroke();
    pen.beginPath();
    pen.arc(plot.valToPos(each.xs[point], "x"), plot.valToPos(each.ys[point], "y"), 5, 0, 7);
    pen.fill();
  }

  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (!place.clientWidth || place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  }).observe(place);
  theme.addEventListener("change", draw);
  return { draw };
}

function telemetry(data) {
  const place = $("telemetry-charts");
  const sampled = [...data.runs.keys()].filter((index) => data.runs[index].telemetry);
  if (!sampled.length) return;
  const select = make("select", { id: "telemetry-run" });
  for (const index of sampled) {
    const { name, label } = data.runs[index];
    select.append(make("option", { value: index, textContent: label ? `${name} ${label}` : name }));
  }
  $("telemetry-controls").append(make("label", {}, "run", select));
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
    const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 }, values: (_, splits) => splits.map(format) };
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
  select.onchange = draw;
  theme.addEventListener("change", draw);
  draw();
}
