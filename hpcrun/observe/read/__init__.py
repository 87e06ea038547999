"""Readers of what every command of observe needs: runs, plans, metrics.

In reading order: `selection` resolves WHERE arguments to runs, from the plans and journals that
`hpcrun.state.history` reads; `filter` narrows them by values; `run_files` and `detail` read one
run's files, and `metric_curves` its metrics.

To add a form of WHERE: a pattern and a method of `selection.Finder`, and its form in `_FORMS`.
"""
