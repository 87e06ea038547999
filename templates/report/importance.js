// Which parameters explain a result: of each alone, the share of the variance of the results' ranks.

const FEWEST = 10; // runs; of fewer, chance explains as much as a parameter
const BINS = 5;
const SHUFFLES = 200;

// The rank of each number; those that are equal share theirs.
function ranksOf(numbers) {
  const order = [...numbers.keys()].sort((one, other) => numbers[one] - numbers[other]);
  const found = [];
  for (let first = 0; first < order.length;) {
    let last = first;
    while (last + 1 < order.length && numbers[order[last + 1]] === numbers[order[first]]) last++;
    for (let at = first; at <= last; at++) found[order[at]] = (first + last) / 2;
    first = last + 1;
  }
  return found;
}

// The group of each value: of equal ones, or of many numbers of those in one fifth of their order.
function groupsOf(values) {
  const known = [...new Set(values)];
  if (known.length <= BINS || !known.every(isNumber)) return values.map((value) => known.indexOf(value));
  return ranksOf(values).map((rank) => Math.min(BINS - 1, Math.floor((rank / values.length) * BINS)));
}

// Kelley's epsilon squared: eta squared, corrected for what as many groups explain by chance.
function explained(ranks, groups) {
  const sums = new Map();
  let sum = 0;
  let squares = 0;
  for (const [at, rank] of ranks.entries()) {
    const group = sums.get(groups[at]) ?? [0, 0];
    sums.set(groups[at], [group[0] + rank, group[1] + 1]);
    sum += rank;
    squares += rank * rank;
  }
  const total = squares - (sum * sum) / ranks.length;
  const within = squares - [...sums.values()].reduce((all, [each, count]) => all + (each * each) / count, 0);
  if (!total) return 0;
  return Math.max(0, 1 - within / (ranks.length - sums.size) / (total / (ranks.length - 1)));
}

// Of a result and the values of a key in the same runs: the share, and what 19 of 20 shuffles stay below.
// Null where there are too few runs for it to mean anything.
function importanceOf(results, values) {
  const groups = groupsOf(values);
  const count = new Set(groups).size;
  if (results.length < FEWEST || results.length < 2 * count || count < 2) return null;
  const ranks = ranksOf(results);
  const share = explained(ranks, groups);
  const shuffled = [...groups];
  let seed = 1;
  const chances = Array.from({ length: SHUFFLES }, () => {
    for (let at = shuffled.length - 1; at > 0; at--) {
      seed = (seed * 48271) % 2147483647;
      const other = seed % (at + 1);
      [shuffled[at], shuffled[other]] = [shuffled[other], shuffled[at]];
    }
    return explained(ranks, shuffled);
  });
  return { share, chance: chances.sort((one, other) => one - other)[Math.floor(0.95 * SHUFFLES)] };
}
