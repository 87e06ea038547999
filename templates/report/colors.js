// Colours of runs: one each, or by the value of a parameter.

// Colours of the style sheet, as they are now.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASHES = [[], [6, 3], [2, 3]];
const RAMP = ["--r0", "--r1", "--r2", "--r3"];
const MOST_VALUES = 12;

const isNumber = (value) => Number.isFinite(value);
const named = (value) => {
  if (value === null || value === undefined) return "(none)";
  return isNumber(value) && !Number.isInteger(value) ? format(value) : String(value);
};
// The last part of a dotted key, where no other key ends in it.
function shortened(keys) {
  const ends = keys.map((key) => key.split(".").pop());
  return (key) => (ends.filter((end) => end === key.split(".").pop()).length > 1 ? key : key.split(".").pop());
}

// The colour of a share from 0 to 1, between those of the style sheet.
function ramp(share) {
  const stops = RAMP.map((name) => color(name).match(/[\da-f]{2}/gi).map((part) => parseInt(part, 16)));
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const first = Math.min(Math.floor(at), stops.length - 2);
  const parts = stops[first].map((part, place) => Math.round(part + (at - first) * (stops[first + 1][place] - part)));
  return `rgb(${parts.join(" ")})`;
}

// Where values lie from 0 to 1: numbers by size or logarithm, others one after the other. Unless `all` are
// to be shown, few of many numbers that lie far from the rest lie on the edge.
const FEW_MARKS = 8;
function scale(values, all) {
  const known = [...new Set(values.filter((value) => value !== null && value !== undefined))];
  const numeric = known.length > 0 && known.every(isNumber);
  if (!numeric) {
    const order = known.sort((one, other) => natural.compare(named(one), named(other)));
    const at = (value) => (order.length > 1 ? order.indexOf(value) / (order.length - 1) : 0.5);
    return { at, numeric, values: order, isBeyond: () => false, ticks: order.map((value) => [at(value), named(value)]) };
  }
  known.sort((one, other) => one - other);
  let [low, high] = [known[0], known[known.length - 1]];
  const log = low > 0 && high / low >= 20;
  const isBeyond = (value) => isNumber(value) && (value < core[0] || value > core[1]);
  let core = [low, high];
  if (known.length > FEW_MARKS) {
    const { beyond } = fit(known.map((value) => [value]), log ? "log" : "linear");
    const rest = known.filter((_, at) => !beyond[at]);
    core = [rest[0], rest[rest.length - 1]];
    if (!all) [low, high] = core;
  }
  const of = log ? Math.log : (value) => value;
  const at = (value) => (high > low ? Math.min(Math.max((of(value) - of(low)) / (of(high) - of(low)), 0), 1) : 0.5);
  const marks = known.length > FEW_MARKS ? ticksOf(low, high, log) : known;
  return { at, numeric, log, values: known, low, high, isBeyond, ticks: marks.map((value) => [at(value), format(value)]) };
}

const experimentOf = (run) => run.name.split("/")[0];

// {of(run), legend(runs)}: an entry of the legend has a label, a style and the runs that it means.
function coloring(data, by) {
  const column = data.parameters.keys.indexOf(by);
  if (column < 0 && by !== "experiment") {
    const of = (run) => ({ color: color(`--c${data.slots[run] % 10}`), dash: DASHES[Math.floor(data.slots[run] / 10) % 3] });
    const label = (run) => `${data.runs[run].name} ${data.runs[run].label}`.trim();
    return { of, legend: (runs) => runs.map((run) => ({ label: label(run), style: of(run), runs: [run] })) };
  }
  const values = column < 0 ? data.runs.map(experimentOf) : data.parameters.values[column];
  const name = shortened(data.parameters.keys)(by);
  const known = scale(values);
  const few = known.values.length <= MOST_VALUES;
  const style = (value) => {
    if (value === null || value === undefined) return { color: color("--c9"), dash: [] };
    const place = known.values.indexOf(value);
    if (known.numeric) return { color: ramp(few ? place / Math.max(1, known.values.length - 1) : known.at(value)), dash: [] };
    return { color: color(`--c${place % 10}`), dash: DASHES[Math.floor(place / 10) % 3] };
  };
  const styles = new Map(values.map((value) => [value, style(value)]));
  return {
    of: (run) => styles.get(values[run]),
    legend: (runs) => {
      const shown = known.values.filter((value) => runs.some((run) => values[run] === value));
      const rest = runs.filter((run) => values[run] === null || values[run] === undefined);
      const entries = shown.map((value) => ({ label: `${name} = ${named(value)}`, style: style(value), runs: runs.filter((run) => values[run] === value) }));
      return rest.length ? [...entries, { label: `${name}: none`, style: style(null), runs: rest }] : entries;
    },
  };
}
