// The site's search ranks as `hpcrun help WORDS` does. `site_search.py` puts this behind mkdocs' own
// worker.js, whose functions of these names it replaces, with STOP, SYNONYMS and WORTH before it.

function worth(location) {
  const [page, section] = location.split('#');
  const own = page.startsWith('project/') ? 0.6 : WORTH[page.replace(/\.html$/, '')] || 1;
  return section ? own : 0.5; // a page has the words of all of its sections
}

function onScriptsLoaded() {
  lunr.tokenizer.separator = new RegExp(data.config.separator);
  index = lunr(function () {
    this.field('title', {boost: 3});
    this.field('text');
    this.ref('location');
    for (const doc of data.docs) {
      documents[doc.location] = doc;
      this.add(doc, {boost: worth(doc.location)});
    }
  });
  allowSearch = true;
  postMessage({config: data.config});
  postMessage({allowSearch: allowSearch});
}

function words(text) {
  return lunr.tokenizer(text).map(String).filter((word) => word.length > 1 || /\d/.test(word));
}

// Returns location -> score of what has any of some words; without words lunr would return all.
function found(some) {
  const hits = some.length ? index.query((query) => query.term(some)) : [];
  return new Map(hits.map((hit) => [hit.ref, hit.score]));
}

function search(query) {
  query = query.toLowerCase();
  for (const [phrase, word] of Object.entries(PHRASES)) query = query.replaceAll(phrase, word);
  const every = words(query);
  const asked = every.filter((word) => !STOP.includes(word) && !/^\d+$/.test(word));
  const scores = new Map();
  const met = new Map();
  for (const word of asked.length ? asked : every) {
    const best = found([word]);
    // What was typed counts more than what it is called here.
    for (const [location, score] of found(words(SYNONYMS[word] || SYNONYMS[word.replace(/s$/, '')] || ''))) {
      best.set(location, Math.max(best.get(location) || 0, 0.8 * score));
    }
    for (const [location, score] of best) {
      scores.set(location, (scores.get(location) || 0) + score);
      met.set(location, (met.get(location) || 0) + 1);
    }
  }
  // What has few of the words that were asked for is worth less.
  const rank = (location) => scores.get(location) * met.get(location) ** 2;
  return [...scores.keys()]
    .sort((one, other) => rank(other) - rank(one))
    .map((location) => ({...documents[location], summary: documents[location].text.substring(0, 200)}));
}
