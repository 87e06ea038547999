// The language of --where: lr>=1e-3 and (state=failed or metric.loss<2), study/0-3, fine*, words.

const TOKEN = /\s+|([(),])|(<=|>=|!=|==|[=<>])|"([^"]*)"|'([^']*)'|([^\s()<>=!"']+|!)/gy;

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const at = TOKEN.lastIndex;
    const [all, mark, sign, double, single, word] = TOKEN.exec(text) ?? [];
    if (all === undefined) throw Error(`a quote that does not end: ${text.slice(at)}`);
    if (mark) found.push({ mark });
    else if (sign) found.push({ sign: sign === "==" ? "=" : sign });
    else if (word !== undefined) found.push({ word });
    else if (double !== undefined || single !== undefined) found.push({ word: double ?? single, quoted: true });
  }
  // "warmup=100,seed=0", as labels are written, is two conditions.
  return found.flatMap((token, place) => {
    const comma = !token.quoted && found[place + 1]?.sign ? (token.word ?? "").lastIndexOf(",") : -1;
    return comma < 0 ? [token] : [{ word: token.word.slice(0, comma) }, { word: token.word.slice(comma + 1) }].filter(({ word }) => word);
  });
}

const globbed = (pattern) =>
  new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`, "is");

// Whether a value is what the text writes: 0.0003 is 3e-4, null is what is not there.
function equals(value, text) {
  if (value === null || value === undefined || value === "") return text === "" || text.toLowerCase() === "null";
  if (typeof value === "number") return text.trim() !== "" && Number(text) === value;
  if (typeof value === "boolean") return text.toLowerCase() === String(value);
  return /[*?]/.test(text) ? globbed(text).test(value) : value === text;
}
const ORDER = {
  "<": (one, other) => one < other, "<=": (one, other) => one <= other,
  ">": (one, other) => one > other, ">=": (one, other) => one >= other,
};

// A test of runs by their numbers. `columns` are {key, of(run)}; `names` and `texts` are the runs'.
function parseFilter(text, columns, names, texts) {
  const found = tokens(text);
  let place = 0;
  const is = (word) => !found[place]?.quoted && found[place]?.word?.toLowerCase() === word;

  function column(key) {
    const known = key.startsWith("metric.") ? columns.filter(({ metric }) => metric) : columns;
    const wanted = key.replace(/^metric\./, "").toLowerCase();
    // Swept keys come before all others, as in --where, and whole keys before their ends.
    const tests = [(one) => one === wanted, (one) => one.endsWith(`.${wanted}`) || one.endsWith(`/${wanted}`)];
    const rooms = [known.filter(({ swept }) => swept), known];
    const tries = rooms.flatMap((room) => tests.map((test) => room.filter((one) => test(one.key.toLowerCase()))));
    const matching = tries.find((found) => found.length) ?? [];
    if (matching.length === 1) return matching[0];
    const which = (matching.length ? matching : known).map((one) => one.key);
    const shown = which.slice(0, 12).join(", ") + (which.length > 12 ? " and more" : "");
    throw Error(matching.length ? `${key} is ambiguous: it could be ${shown}` : `no key ends in ${key}; there are ${shown}`);
  }

  function condition() {
    const { word, mark, sign, quoted } = found[place++] ?? {};
    if (sign) throw Error(`before ${sign} comes a key, such as state=failed or lr>=1e-3`);
    if (word === undefined) throw Error(mark ? `${mark} where a condition is due` : "a condition is missing at the end");
    if (!quoted && /^(and|or)$/i.test(word)) throw Error(`${word} where a condition is due`);
    const operator = found[place]?.sign;
    if (operator) {
      const value = found[++place];
      if (value?.word === undefined) throw Error(`after ${word}${operator} comes a value`);
      place++;
      const { of } = column(word);
      if (operator === "=" || operator === "!=") return (run) => equals(of(run), value.word) === (operator === "=");
      const bound = Number(value.word);
      if (Number.isNaN(bound) || value.word === "") throw Error(`after ${word}${operator} comes a number, not ${value.word}`);
      return (run) => typeof of(run) === "number" && ORDER[operator](of(run), bound);
    }
    if (!quoted && /[*?]/.test(word)) {
      const pattern = globbed(word);
      return (run) => pattern.test(names[run]) || pattern.test(names[run].split("/")[0]);
    }
    const runs = !quoted && /^([A-Za-z][\w.+-]*)\/(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)$/.exec(word);
    if (runs) {
      const spans = runs[2].split(",").map((span) => span.split("-").map(Number));
      return (run) => {
        const [name, number] = names[run].split("/");
        return name === runs[1] && spans.some(([first, last = first]) => first <= number && number <= last);
      };
    }
    return (run) => texts[run].includes(word.toLowerCase());
  }

  function negation() {
    if (is("not")) {
      place++;
      const meets = negation();
      return (run) => !meets(run);
    }
    if (found[place]?.mark !== "(") return condition();
    place++;
    const meets = alternatives();
    if (found[place++]?.mark !== ")") throw Error("a bracket is not closed");
    return meets;
  }

  function conjunction() {
    const all = [negation()];
    while (place < found.length && !is("or") && found[place].mark !== ")") {
      if (is("and") || found[place].mark === ",") place++;
      all.push(negation());
    }
    return (run) => all.every((meets) => meets(run));
  }

  function alternatives() {
    const any = [conjunction()];
    while (is("or")) {
      place++;
      any.push(conjunction());
    }
    return (run) => any.some((meets) => meets(run));
  }

  if (!found.length) return () => true;
  const meets = alternatives();
  if (place < found.length) throw Error("a bracket closes that none opened");
  return meets;
}
