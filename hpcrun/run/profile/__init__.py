"""The profile of a rank: where its steps' time goes, the flops of a step, its memory by kind.

In reading order: `step_hooks` (counts the optimizer steps of any program that imports torch),
`step_recorder` (what is done at each step's end: timed, profiled, counted, then the program ends),
`trace_parts` (each moment of a trace counted once; pure), `op_counts` (flops and activations of one
step, the peak of a CPU), `memory_kinds` (which tensor is a parameter, a gradient, optimizer state);
`engine_metrics` (what each run logs of its engine without being asked).

But for the last, only ranks of a run that `hpcrun profile` submitted come here:
`hpcrun.state.spec.profiling` has the variable by which they know. What they write is read by
`hpcrun.observe.profile`.

To count another kind of event: `trace_parts._Kinds`, with a case in its test.
"""
