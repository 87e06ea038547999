"""Trials of configurations by the ranks of one attempt: ``hpcrun tune``.

In reading order: `trial_log` (the block ``trials`` of a run's spec, and the run's
``trials.jsonl``), `trial_search` (which trial comes next, and when one ends; pure), `trial_ranks`
(the session that a program gets in a trial, which measures steps and saves and logs nothing, and
the loop over trials, in place of a run's own training). The worker calls it where the spec has a
block ``trials``. A trial that fails ends the attempt, as any failure does; the next one, in the
same allocation, records that and goes on.

To change how a search goes, change `trial_search` and its table of cases.
"""
