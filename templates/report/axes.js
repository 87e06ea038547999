// What an axis shows: all values, or where few would flatten the rest, the rest. hpcrun/tools/report/svg.py does the same.

const QUARTER = 4; // what is clipped would leave less than this part of the axis to the rest
const DECADES = 2; // a logarithmic axis spans at least so many

// The range from which a share of the numbers is left out at each end; none of fewer numbers than `few`.
function inner(sorted, few, share) {
  const out = sorted.length < few ? 0 : Math.max(1, Math.floor(sorted.length * share));
  return [sorted[out], sorted[sorted.length - 1 - out]];
}
const ascending = (numbers) => Float64Array.from(numbers).sort();

// The least and the greatest value to show of lines (lists of finite numbers), and which lines go beyond.
function clip(lines) {
  const sorted = lines.map(ascending);
  const full = [Math.min(...sorted.map((each) => each[0])), Math.max(...sorted.map((each) => each[each.length - 1]))];
  const cores = sorted.map((each) => inner(each, 8, 0.02));
  const [low] = inner(ascending(cores.map((each) => each[0])), 3, 0.1);
  const [, high] = inner(ascending(cores.map((each) => each[1])), 3, 0.1);
  const fence = [low - 1.5 * (high - low), high + 1.5 * (high - low)];
  let range = [Infinity, -Infinity];
  for (const each of lines) for (const value of each) {
    if (value >= fence[0] && value <= fence[1]) range = [Math.min(range[0], value), Math.max(range[1], value)];
  }
  if (!(high > low) || QUARTER * (range[1] - range[0]) >= full[1] - full[0]) range = full;
  const beyond = sorted.map((each) => each[0] < range[0] || each[each.length - 1] > range[1]);
  return { range, full, beyond };
}

// `wanted` is linear, log, or auto: log where positive values span decades.
function fit(lines, wanted = "auto", all = false) {
  const known = lines.filter((each) => each.length);
  if (!known.length) return { low: 0, high: 1, log: false, beyond: [] };
  const found = (log) => {
    const of = log ? known.map((each) => each.map(Math.log10)) : known;
    const { range, full, beyond } = clip(of);
    const [low, high] = (all ? full : range).map((value) => (log ? 10 ** value : value));
    let at = 0;
    return { low, high, log, beyond: lines.map((each) => each.length > 0 && beyond[at++]), decades: range[1] - range[0] };
  };
  if (wanted !== "auto") return found(wanted === "log");
  if (known.some((each) => each.some((value) => value <= 0))) return found(false);
  const usual = known.map((each) => inner(ascending(each), 10, 0.1));
  const [low] = inner(ascending(usual.map((each) => each[0])), 10, 0.1);
  const [, high] = inner(ascending(usual.map((each) => each[1])), 10, 0.1);
  const log = high / low >= 10 ** DECADES && found(true);
  return log && log.decades >= DECADES ? log : found(false);
}

// Round numbers within a range, about so many; whole ones of steps.
function ticksOf(low, high, log, about = 5) {
  const found = [];
  if (log) {
    const decades = Math.log10(high) - Math.log10(low);
    const every = Math.max(1, Math.ceil(decades / 8));
    const factors = decades < 3 ? [1, 2, 5] : [1];
    for (let ten = Math.floor(Math.log10(low)); ten <= Math.log10(high); ten += every) found.push(...factors.map((factor) => Number(`${factor}e${ten}`)));
    const inside = found.filter((each) => each >= low && each <= high);
    if (inside.length > 1) return inside;
    found.length = 0;
  }
  const rough = (high - low) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => one >= rough * 0.999);
  for (let each = Math.ceil(low / step); each <= high / step; each++) found.push(Number((each * step).toPrecision(12)));
  return found;
}

// A button that says what an axis leaves out, and shows it; null where nothing is.
function beyondButton(name, { beyond }, what, redraw) {
  const count = beyond.filter(Boolean).length;
  if (!count) return null;
  const all = view.unclipped.has(name);
  const textContent = all
    ? `All shown; leave out what lies far from the rest, of ${count} of ${beyond.length} ${what}`
    : `${count} of ${beyond.length} ${what} beyond; click to see all`;
  const onclick = () => {
    if (all) view.unclipped.delete(name);
    else view.unclipped.add(name);
    redraw();
  };
  return make("button", { type: "button", className: "beyond", textContent, onclick });
}
