"""The fuzzer: broken and hostile files, specs and arguments, thrown at hpcrun in one process.

``python -m tests.security.fuzz --cases 1000000 --output bench/results`` is the long run,
``--replay NUMBER`` repeats one case and prints what it threw. A case is its number and a seed:
everything in it is drawn from these two, so that any machine repeats it.

In reading order: `mutations` (how bytes, JSON, text and specs are broken), `world` (recorded
experiments, a clock that stands still, Slurm's canned answers, and the command line called in
process), `targets` (what is broken and which command reads it), `campaign` (many cases within
limits of time and memory, findings grouped and made small).

To add a target, write a function in `targets` and name it in its table with its share of the cases.

Why not Hypothesis: its search costs milliseconds an example, as much as a whole command here, and
a million cases would take a day. The price is a plainer search and a plainer shrinking: mutations
that are not needed for a finding are left out one by one.
"""
