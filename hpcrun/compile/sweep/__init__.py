"""Expand a sweep into points, and resolve each point's data.

In reading order: `point` (a point and its label), `values` (lists, choices and ranges), `draws`
(random and quasi-random samples), `expansion` (the product of a block's parts, and its rules),
`matcher` (which points a rule fits), `references` (the graph of interpolations) and `resolver`
(the data of a point, patched from that of a similar one).

To add a kind of sweep, add its field to `hpcrun.state.spec.sweep_block` and its dimension to
``_block`` in `expansion`; a range goes to `values`, a distribution to `draws`.
"""
