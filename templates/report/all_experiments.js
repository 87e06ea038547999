// The page of all experiments: its tables sort, and the long one has pages and a filter.

document.documentElement.classList.add("live");
const search = $("experiment-filter");
const paged = [];
for (const table of document.querySelectorAll("table.sortable")) {
  const turned = $(table.id.replace("-table", "-pages"));
  if (!turned) { sortable(table); continue; }
  const words = new Map([...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]));
  const matches = (row) => search.value.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word));
  const rows = pages([...words.keys()], turned, matches);
  sortable(table, rows.sort);
  rows.show();
  search.oninput = rows.first;
  paged.push(rows);
}
addEventListener("beforeprint", () => { for (const each of paged) each.all(); });
addEventListener("afterprint", () => { for (const each of paged) each.show(); });
