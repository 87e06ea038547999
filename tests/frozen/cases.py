"""The commands whose words are held."""

from __future__ import annotations

from tests.frozen.desk import Case


def _cases(lines: str, **changes: str | bool | dict[str, str]) -> list[Case]:
    return [
        Case(tuple(_split(line)), **changes)  # type: ignore[arg-type]
        for line in lines.strip().splitlines()
        if line and not line.startswith("#")
    ]


def _split(line: str) -> list[str]:
    """Words of a line; those that hold spaces stand between vertical bars."""
    words: list[str] = []
    for number, part in enumerate(line.split("|")):
        words += [part] if number % 2 else part.split()
    return words


# Over the old tree.
READING = """
list
list --json
list -q
status
status study
status study --json
status study/4 study/5 measure/0-2
status study --where fault=kill
status measure --where method=nr --where rate=0.25 --json
status long absent after
status torn-drill
status half doomed
status half doomed --json
status half -q
status half --watch --json -q --where part=0
status 7_3
status study --cost
status study study-wide measure --cost
status study --cost --json
status half --cost
status measure --cost --watch
why
why study
why study/4
why study/4 --json
why study/5
why study/0
why measure
why measure/5
why absent
why long
why long/1
why torn-drill
why torn-drill --json
why half
why half/1
why half/3
why half/5
why doomed
why study measure absent half
why --json half
results
results study
results study --json
results study --format csv
results study --format latex
results study --format json --filter state=completed
results study --sort -eval/loss
results study --over-repeats
results study --over-repeats --format csv
results study --columns lr,seed,eval/loss --sort lr
results measure
results measure --group-by method
results measure --group-by method,rate --format json
results measure --group-by rate --format latex
results measure --over-repeats
results measure --filter loss<0.1 --filter state=completed --format csv
results measure --filter |method = nr| --sort loss
results study study-wide
results half --format csv
results after
results measure --group-by nothing
results measure --sort nothing
results measure --filter nothing
results measure --over-repeats --group-by method
logs study/0
logs study/0 --tail 3
logs study/5 --attempt all
logs study/5 --attempt 1 --rank 1 --raw
logs study/5 --attempt all --timestamps
logs study/0 --timestamps --no-fold --tail 4
logs study/0 --json --tail 3
logs study --tail 1
logs study --grep saw
logs study --grep |step [0-9]* of| --exclude |step .*[1-8] | --tail 50
logs study/4 --stream all
logs study/4 --attempt all --stream all --no-fold
logs study/4 --stream agent
logs study/4 --stream batch
logs study/0 --stream other
logs study/0 --node 0 --tail 1
logs study/0 --node local7
logs study/0 --rank 0 --highlight begins --raw
logs study/0 --since 2026-11-23T00:00:00 --tail 2
logs study/0 --since 30m
logs study/0 --grep nothing-like-it
logs study/0 --grep |(|
logs study/0 --attempt 0
logs study/0 --attempt 9
logs study/0 --rank x
logs study/0 --raw --json
logs study/0 --exit-with-run
logs -f study/0 --exit-with-run --tail 2
logs -f study/4 --exit-with-run --tail 2
logs measure
logs measure/0 --raw
logs measure/5
logs after
logs after --no-fold --rank 0,2-3
logs absent
logs absent --stream all
logs long
logs long/1
logs half --tail 2
logs half/1 --stream all --attempt all
logs doomed --stream all --tail 5
show study/0
show study/0 --json
show study/0 --config
show study/4 --config --json
show study/5 --script
show study/5 --deepspeed
show study/4 --code
show study/4 --code --json
show study/4 --path
show study/4 --path --json
show measure/3
show measure/3 --config
show measure/3 --deepspeed
show long/1
show torn-drill/0
show half/3
show half/3 --script
show half/3 --script --json
show half/3 --config
show half/5 --deepspeed
show study
show study/17
show study/0 --config --script
diff study study-wide
diff study study-wide --json
diff study study-wide --code
diff study/0 study/2
diff study/0 study/4 --json
diff study/0 study/4 --code
diff measure/0 measure/7
diff study measure
diff half doomed
diff study/0 study/0
diff study nothing
clean study --dry-run
clean study --dry-run --json
clean study --dry-run --checkpoints all --logs
clean study --dry-run --older-than 1h
clean study --dry-run --older-than 30d
clean torn-drill measure absent --dry-run --logs
clean half doomed --dry-run --logs
clean long
clean
cancel study --dry-run
cancel half doomed --dry-run
cancel half doomed --dry-run --json
cancel half/5-6 --dry-run
cancel half
cancel
requeue study --dry-run
requeue study/4 --dry-run --json
requeue study/0 --dry-run
requeue measure --dry-run
requeue long --dry-run
requeue half doomed --dry-run
requeue half doomed --dry-run --json
requeue
export study -o @/out/dry.tar.gz --dry-run
export measure/0-2 half -o @/out/dry.tar.gz --dry-run --logs --json
export study -o @/out/dry.zip
export study -o @/absent/dry.tar.gz
report study -o @/absent/study.html
report study -o @/specs/train.py
report study -o - --json
# What is wrong.
status nothing
status stud
status study/99
status study/x
status 4711
status --where nothing=3
status study --where fault=none
status study --where lr
status study --no-such-option
status @/root/study/runs/4
status @/root/measure
status @/out
list extra
no-such-command
statsu
show
logs --tail -1
logs --tail x
results --format xml
--version
--help
-h
completion bash
completion zsh
completion fish
completion tcsh
"""

HELP = """
plan submit run list status logs results export report why drill show diff cancel requeue clean
help completion
"""

# Specs, compiled beside the old tree; nothing is submitted.
PLANS = """
plan study.yaml
plan study.yaml --json
plan study-wide.yaml -v
plan measure.yaml
plan measure.yaml --json
plan after.yaml --json
plan absent.yaml
plan half.yaml
plan half.yaml --json
plan chain.yaml
plan chain.yaml --json
plan chain-each.yaml
submit chain-each.yaml --dry-run
plan after.yaml resources.nodes=3 +environment.variables.A=1
plan measure.yaml --sweep config.rate=0.5,0.75 --sweep resources.nodes=1,2
plan hello
plan demo cluster=slurm
plan language-model cluster=local --json
submit study.yaml --dry-run
submit study.yaml --dry-run --json
submit study.yaml --dry-run --only failed
submit study.yaml --dry-run --only new
submit study.yaml --dry-run --only fault=raise
submit study.yaml --dry-run --new
submit study.yaml --dry-run config.total_steps=13
submit study.yaml --dry-run --sweep config.seed=0,1,2
submit measure.yaml --dry-run
submit after.yaml --dry-run
submit long.yaml --dry-run
submit half.yaml --dry-run
submit doomed.yaml --dry-run --json
submit chain.yaml --dry-run
drill base.yaml --dry-run +name=hurt
drill base.yaml --dry-run +name=hurt checkpoint.keep=2
drill base.yaml --dry-run +name=hurt --json --fault preempt --fault stop-rank
# What is wrong.
plan
plan nothing.yaml
plan study.yaml config.nothing=1
plan study.yaml resources.nods=2
plan study.yaml resources.nodes=two
plan study.yaml deepspeed.train_batch_size=7
plan study.yaml cluster=nowhere
plan study.yaml --sweep config.nothing=1,2
plan wrong.yaml
plan wrong.yaml --json
plan broken.yaml
plan chain-wrong.yaml
submit wrong.yaml
submit study.yaml --dry-run --only nothing
submit study.yaml entry=absent.py:train
submit chain-wrong.yaml
drill study.yaml --fault nothing
"""

GOLDEN = """
plan finetune.yaml
plan finetune.yaml --json
plan zero-study.yaml
plan zero-study.yaml config.seed=1
plan function.yaml
plan function.yaml --json
plan command.yaml
plan command.yaml --sweep resources.nodes=1,2 --json
submit finetune.yaml --dry-run
"""

CASES = [
    *_cases(READING),
    *_cases(PLANS),
    *_cases(GOLDEN, within="golden"),
    *(Case((command, "--help")) for command in HELP.split()),
    *_cases("list\nstatus study --json\nwhy study/5\nlogs study/0 --tail 2", option=True),
    *(
        case
        for zone in ("Asia/Kathmandu", "America/St_Johns")
        for case in _cases(
            """
            list
            why torn-drill
            show study/4
            logs study/5 --attempt all --timestamps --tail 3
            logs study/0 --since |2026-11-23 12:00|
            """,
            zone=zone,
        )
    ),
    # Somebody else's runs: what only reads says so (once in a process), what acts refuses.
    *_cases(
        """
        status study -v
        list --json -v
        clean study --dry-run
        cancel half
        requeue half
        status -v
        """,
        environment={"LOGNAME": "bob", "USER": "bob"},
    ),
    *(
        case
        for root in ("empty", "absent")
        for case in _cases("list\nlist --json\nstatus\nstatus study\nresults\nlogs", root=root)
    ),
]
