// The language of --where: lr>=1e-3 and (state=failed or metric.loss<2). Words alone are looked for, as in hpcrun top: study/0-3, fine*.
// hpcrun/observe/read/expression.py and filter.py read the same; tests/support/filter_cases.py has what both have to answer.

const COMPARISON = /(?:"([^"]+)"|([^\s<>=!()"]+))\s*(<=|>=|!=|==?|<|>|~)\s*/y;
const COMMA = /,\s*(?=(?:"[^"]+"|[^\s<>=!()",]+)\s*(?:[<>=~]|!=))/y;
const QUOTED = /(?:"([^"]*)"|'([^']*)')(?=\s|\)|$|,\s*(?:"[^"]+"|[^\s<>=!()",]+)\s*(?:[<>=~]|!=))/y;
const WORD = /[^\s()<>=]+/y;
const RUNS = /^([^/]+)\/(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)$/;
const NUMBER = /^[+-]?(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+)?$/i;
const OTHER_WORDS = { "&&": "and", "||": "or", "!": "not" };
const ORDER = {
  "<": (one, other) => one < other, "<=": (one, other) => one <= other,
  ">": (one, other) => one > other, ">=": (one, other) => one >= other,
};

const isWild = (text) => /[*?]/.test(text);
const globbed = (pattern) =>
  new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`, "su");

function toNumber(text) {
  const infinite = /^([+-]?)inf(?:inity)?$/i.exec(text.trim());
  if (infinite) return infinite[1] === "-" ? -Infinity : Infinity;
  return NUMBER.test(text.trim()) ? Number(text.replaceAll("_", "")) : NaN;
}

function sameJson(one, other) {
  try {
    return JSON.stringify(JSON.parse(one)) === JSON.stringify(JSON.parse(other));
  } catch {
    return false;
  }
}

// Whether a value is what the text writes: 0.0003 is 3e-4, null is what is not there.
function equals(value, text) {
  if (value === null || value === undefined || value === "") return text.toLowerCase() === "null";
  if (typeof value === "number") return toNumber(text) === value;
  if (typeof value === "boolean") return text.toLowerCase() === String(value);
  return value === text || (isWild(text) && globbed(text).test(value)) || (/^[[{]/.test(value) && sameJson(value, text));
}

// A test of runs by their numbers. `columns` are {key, of(run)}; `names` and `texts` are the runs'.
function parseFilter(text, columns, names, texts) {
  let place = 0;
  let open = 0;
  const rest = () => (text.slice(place).trim() ? ` at ${text.slice(place, place + 60)}` : "");

  function match(pattern) {
    pattern.lastIndex = place;
    return pattern.exec(text);
  }
  function space() {
    while (/\s/.test(text[place] ?? "")) place++;
  }
  function take(character) {
    if (text[place] !== character) return false;
    place++;
    space();
    return true;
  }
  function takeWord(word) {
    const end = place + word.length;
    if (text.slice(place, end).toLowerCase() !== word || !/^[\s()]?$/.test(text[end] ?? "")) return false;
    place = end;
    space();
    return true;
  }

  function column(key) {
    const known = key.startsWith("metric.") ? columns.filter(({ metric }) => metric) : columns;
    const wanted = { tags: "run.tag", notes: "run.note" }[key] ?? key.replace(/^metric\./, "");
    // Swept keys and what is known of a run come before all others, as in --where.
    const rooms = [known.filter(({ swept, fact }) => swept || fact), known];
    for (const room of rooms) {
      const exact = room.filter((one) => one.key === wanted);
      const ending = room.filter((one) => one.key.endsWith(`.${wanted}`) || (one.metric && one.key.endsWith(`/${wanted}`)));
      const matching = exact.length ? exact : ending;
      if (matching.length === 1) return matching[0];
      if (matching.length) throw Error(`${key} is ambiguous: it could be ${listed(matching)}`);
    }
    throw Error(`no key ends in ${key}; there are ${listed(known)}`);
  }
  function listed(some) {
    return some.slice(0, 12).map(({ key, fact }) => fact ? key.replace("run.", "") : key).join(", ") + (some.length > 12 ? " and more" : "");
  }

  function quoted() {
    const found = match(QUOTED);
    if (!found) return null;
    place = QUOTED.lastIndex;
    space();
    return found[1] ?? found[2];
  }
  function value() {
    const whole = quoted();
    if (whole !== null) return whole;
    const begin = place;
    let depth = 0;
    for (; place < text.length; place++) {
      const character = text[place];
      if ("([{".includes(character)) depth++;
      else if (")]}".includes(character)) {
        if (character === ")" && depth === 0 && open) break;
        depth = Math.max(0, depth - 1);
      } else if (depth === 0 && (/\s/.test(character) || (character === "," && match(COMMA)))) break;
    }
    const found = text.slice(begin, place).trim();
    if (!found) throw Error(`after ${text.slice(0, begin).trim()} comes a value`);
    space();
    return found;
  }

  function comparison(key, sign, wanted) {
    const { of } = column(key);
    // Of tags and notes a run has several, or none.
    const held = (run) => { const all = [of(run)].flat(); return all.length ? all : [null]; };
    if (sign === "~") return (run) => held(run).some((one) => String(one ?? "").toLowerCase().includes(wanted.toLowerCase()));
    if (sign in ORDER) {
      const bound = toNumber(wanted);
      if (Number.isNaN(bound)) throw Error(`after ${key}${sign} comes a number, not ${wanted}`);
      return (run) => typeof of(run) === "number" && ORDER[sign](of(run), bound);
    }
    const either = wanted.includes(",") ? [wanted, ...wanted.split(",").map((one) => one.trim())] : [wanted];
    return (run) => held(run).some((value) => either.some((one) => equals(value, one))) === (sign === "=");
  }
  function called(word, isQuoted) {
    if (!isQuoted && isWild(word)) {
      const pattern = globbed(word);
      return (run) => pattern.test(names[run]) || pattern.test(names[run].split("/")[0]);
    }
    const runs = !isQuoted && RUNS.exec(word);
    if (runs) {
      const spans = runs[2].split(",").map((span) => span.split("-").map(Number));
      return (run) => {
        const [name, number] = names[run].split("/");
        return name === runs[1] && spans.some(([first, last = first]) => first <= number && number <= last);
      };
    }
    return (run) => texts[run].includes(word.toLowerCase());
  }

  function one(depth) {
    if (depth > 50) throw Error("more than 50 brackets in one another");
    if (takeWord("not")) {
      const meets = one(depth + 1);
      return (run) => !meets(run);
    }
    if (take("(")) {
      open++;
      const meets = any(depth + 1);
      open--;
      if (!take(")")) throw Error("a bracket is not closed");
      return meets;
    }
    const head = match(COMPARISON);
    if (head) {
      place = COMPARISON.lastIndex;
      if (head[3] === "=" && /[<>]/.test(text[place] ?? "")) throw Error(`=${text[place]} is written ${text[place]}=`);
      return comparison(head[1] ?? head[2], head[3] === "==" ? "=" : head[3], value());
    }
    const alone = quoted();
    if (alone !== null) return called(alone, true);
    const word = match(WORD)?.[0];
    const other = Object.keys(OTHER_WORDS).find((one) => text.startsWith(one, place));
    if (other) throw Error(`${other} is written ${OTHER_WORDS[other]}`);
    if (!word || /^(?:and|or)$/i.test(word)) {
      throw Error(place < text.length ? `a condition is due${rest()}` : "a condition is missing at the end");
    }
    place += word.length;
    space();
    return called(word, false);
  }
  function goesOn() {
    return place < text.length && !/^(?:\)|or(?:[\s()]|$))/i.test(text.slice(place, place + 3));
  }
  function all(depth) {
    const found = [one(depth)];
    while (takeWord("and") || take(",") || goesOn()) found.push(one(depth));
    return (run) => found.every((meets) => meets(run));
  }
  function any(depth) {
    const found = [all(depth)];
    while (takeWord("or")) found.push(all(depth));
    return (run) => found.some((meets) => meets(run));
  }

  space();
  if (!text.trim()) return () => true;
  const meets = any(0);
  if (place < text.length) throw Error("a bracket closes that none opened");
  return meets;
}
