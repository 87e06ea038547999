"""Expand a sweep into points, and resolve each point's data.

In reading order: `point` (a point and its label), `draws` (numbers, the bounds of distributions,
their quantiles, and Halton's sequence), `values` (lists, choices, ranges and random
samples), `foreign_forms` (what others write in their place), `references` (the graph of
interpolations), `resolver` (the data of a point, patched from that of a similar one) and
`expansion` (the product of a block's parts, and its rules). In place of all that, a search:
`search_space` (its block), `placed_points` (those of a grid and quasi-random ones), `optuna_space`
(its forms), `late_values` (what is frozen of a run that has no values yet) and `late_run` (which a
job completes).

To add a kind of sweep, add its field to `hpcrun.state.spec.sweep_block` and its dimension to
``_block`` in `expansion`; a range goes to `values`, a distribution
there and to `draws`.
"""
