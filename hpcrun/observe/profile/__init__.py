"""The profile of a run: what its ranks measured, told by rank, and which of them holds up the rest.

In reading order: `step_profile` (what was measured, and what follows from it; pure but for the
readers of its files), `profile_lines` (its tables and lines). ``hpcrun profile`` submits such runs,
and the report shows them; the ranks' side is `hpcrun.run.profile`.

To add a quantity: a field of `RankProfile` with its kind in `_RANK`, written by
`hpcrun.run.profile.step_recorder`; a column in `profile_lines`.
"""
