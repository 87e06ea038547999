"""Whether hpcrun's promises hold on a cluster, and whether its nodes are well: ``hpcrun doctor``.

In reading order: `promise` (a judgement: works, works less, does not, not known), `slurm_promises`
(the table of promises, judged from the site), `machine_promises` (storage, Python, compiler, this
machine), `doctor_profile` (which cluster profile), `machine_facts` (what is measured and asked
here), `examination` (asks, judges, reports). For ``--nodes``: `node_choice` (which nodes),
`node_job` (the job, from its directory to its result), `site_baseline` (what nodes did when they
were well), `node_verdict` (which nodes are not, and why), `node_examination` (all of it, and the
user's suspect nodes). `doctor_command` is the command. What runs on the nodes is
`hpcrun.tools.doctor.on_nodes`.

To add a promise: a line in ``SLURM_PROMISES`` with a pure function of the site, and its cases in
``tests/tools/doctor/test_slurm_promises.py``; what is judged has to be a field of the site.
"""

from hpcrun.command import HOUSE, Command

COMMANDS = (
    Command(
        "doctor",
        HOUSE,
        "What of hpcrun's promises holds on this cluster; --nodes tests its nodes.",
        "hpcrun.tools.doctor.doctor_command:command",
        after="init",
        other_names="diagnose health nccl-tests selftest",
        examples={
            "hpcrun doctor": "what hpcrun can promise on this cluster, and what to change",
            "hpcrun doctor --nodes 4": "four nodes, tested in a job of a minute",
            "hpcrun doctor --nodes node[01-04]": "these ones",
        },
    ),
)
