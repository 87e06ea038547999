"""Readers of what every command of observe needs: runs, plans, metrics.

In reading order: `selection` resolves WHERE arguments to runs, from the plans and journals that
`hpcrun.state.history` reads, and from `journal_words`, which keeps the last words of all journals
as `root_cache` keeps what was made of a root's experiments; `expression` is the grammar of
conditions, and `filter` narrows runs by them; `run_values` are a run's keys and values, tags and
notes, and the columns of them that tables show; `detail` reads one run's files, `metric_curves` its
metrics and `node_usage` its nodes' telemetry, averaged.

To add a form of WHERE: a pattern and a method of `selection.Finder`, and its form in `_FORMS`. To
add a key of conditions, beside a run's values: a name in `filter.FACTS`, and how it is read; its
words, if it has some, in `filter.words_of`, which errors and completion name.
"""
