"""The mistakes of users at the front door, each a whole command line.

To add one, add a row to ``TABLE``: the line that is typed and three things that its message has to
name: what was ``read``, what is ``accepted``, and what to ``type`` instead. The files and the two
experiments that a line may use are those of `desk`. ``spec`` holds top-level lines in place of
those of ``finetune.yaml``, for a line that names ``edited.yaml``. The exit code is 2; with
``exit=0`` the command did its work, and says on stderr how it took what was typed.

What is wrong inside a spec, field by field, is in tests/compile/spec/test_checks.py.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcrun.cli.main import main
from hpcrun.compile import run_notes
from tests.support.experiment import Experiment, path_with, slurm_shim

SPEC = {
    "entry": "train.py",
    "cluster": "slurm",
    "config": "{lr: 1.0e-3, steps: 100, model: {layers: 2}, method: adam, bf16: true, seed: 0}",
    "flags": '"key=value"',
    "deepspeed_config": "ds.json",
    "resources": '{nodes: 2, ntasks_per_node: 2, time: "12:00:00"}',
}
DEEPSPEED = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.9]}}}


@dataclass(frozen=True)
class Mistake:
    """A command line, and what its message names."""

    id: str
    line: str
    read: str
    accepted: str
    type: str
    spec: dict[str, str] = field(default_factory=dict)
    exit: int = 2


TABLE = [
    # hpcrun and its commands
    Mistake("a command that is none", "hpcrun sumbit finetune.yaml",
            read="no command 'sumbit'", accepted="plan, check, ", type="'submit'"),
    # options of other programs
    Mistake("a flag of argparse", "hpcrun run finetune.yaml --lr=3e-4",
            read="No such option '--lr'", accepted="keys of the spec are typed as key=value",
            type="type\n  hpcrun run finetune.yaml lr=3e-4\n"),
    Mistake("flags of argparse without the sign",
            "hpcrun plan finetune.yaml --lr -0.1 --steps 10 --bf16 --no-compile nodes=1",
            read="No such option '--lr'", accepted="keys of the spec are typed as key=value",
            type="plan finetune.yaml lr=-0.1 steps=10 bf16=true compile=false nodes=1\n"),
    Mistake("Hydra's -m", "hpcrun submit finetune.yaml -m lr=1e-3,1e-4 seed=1",
            read="No such option '-m'", accepted="a key is swept by --sweep KEY=A,B",
            type="hpcrun submit finetune.yaml --sweep lr=1e-3,1e-4 seed=1\n"),
    Mistake("Hydra's --multirun", "hpcrun submit finetune.yaml --multirun",
            read="No such option '--multirun'", accepted="a key is swept by --sweep KEY=A,B",
            type="hpcrun submit finetune.yaml --sweep KEY=A,B\n"),
    Mistake("Hydra's --config-name", "hpcrun run --config-name finetune lr=1",
            read="No such option '--config-name'", accepted="SPEC is the file itself",
            type="hpcrun run finetune.yaml lr=1\n"),
    Mistake("Hydra's --cfg", "hpcrun submit finetune.yaml --cfg job",
            read="No such option '--cfg'", accepted="`hpcrun plan` shows the configuration",
            type="hpcrun plan finetune.yaml\n"),
    Mistake("sbatch's --array", "hpcrun submit finetune.yaml --array=0-9",
            read="No such option '--array'", accepted="an array is made of the runs of a sweep",
            type="hpcrun submit finetune.yaml --sweep KEY=A,B\n"),
    Mistake("sbatch's nodes and GPUs", "hpcrun submit finetune.yaml -N 2 --gres=gpu:a100:8 -t 60",
            read="No such option '-N'", accepted="keys of the spec are typed as key=value",
            type="resources.nodes=2 resources.gpus_per_node=8 resources.time=60\n"),
    Mistake("sbatch's options of one word", "hpcrun submit -Jfine -N2 finetune.yaml --exclusive",
            read="No such option '-J'", accepted="keys of the spec are typed as key=value",
            type="finetune.yaml name=fine resources.nodes=2 'resources.sbatch={exclusive: true}'"),
    Mistake("sbatch's -n, which is hpcrun's too", "hpcrun submit finetune.yaml -n4",
            read="No such option '-4'", accepted="ranks are counted per node",
            type="resources.nodes=N resources.ntasks_per_node=M"),
    Mistake("sbatch's --output", "hpcrun submit finetune.yaml --output=%j.log",
            read="No such option '--output'", accepted="the logs are in the run's directory",
            type="see `hpcrun logs`"),
    Mistake("sbatch's --dependency", "hpcrun submit finetune.yaml -d afterok:7",
            read="No such option '-d'", accepted="what has to end before is named in the spec",
            type="`depends_on: OTHER.yaml`"),
    Mistake("Python's -m", "hpcrun run -m pkg.main --lr 3", read="No such option '-m'",
            accepted="a module is a program", type="hpcrun run python -m pkg.main --lr 3\n"),
    Mistake("an option that sets keys", "hpcrun plan finetune.yaml --set lr=3",
            read="No such option '--set'", accepted="key=value stands by itself",
            type="hpcrun plan finetune.yaml lr=3\n"),
    Mistake("one dash before a key", "hpcrun plan finetune.yaml -lr=3", read="No such option '-l'",
            accepted="keys of the spec are typed as key=value",
            type="hpcrun plan finetune.yaml lr=3\n"),
    Mistake("an option without its number", "hpcrun plan finetune.yaml -c",
            read="No such option '-c'", accepted="keys of the spec are typed as key=value",
            type="hpcrun plan finetune.yaml resources.cpus_per_task=VALUE\n"),
    Mistake("a dry run of run", "hpcrun run finetune.yaml --dry-run",
            read="No such option '--dry-run'", accepted="`hpcrun plan` submits nothing",
            type="hpcrun plan finetune.yaml\n"),
    Mistake("again", "hpcrun run finetune.yaml --force", read="No such option '--force'",
            accepted="did you mean --new", type="hpcrun run finetune.yaml --new\n"),
    Mistake("an option of sbatch before the spec", "hpcrun submit -pgpu finetune.yaml",
            read="No such option '-p'", accepted="keys of the spec are typed as key=value",
            type="hpcrun submit finetune.yaml resources.partition=gpu\n"),
    Mistake("a key before the spec", "hpcrun plan lr=1 finetune.yaml",
            read="no SPEC was typed before 'lr=1'", accepted="the path of a spec",
            type="SPEC stands first: finetune.yaml lr=1"),
    Mistake("a version", "hpcrun version", read="no command 'version'", accepted="plan, check, ",
            type="'hpcrun --version'"),
    Mistake("an option of another command", "hpcrun submit finetune.yaml --watch",
            read="No such option '--watch'", accepted="`hpcrun status --watch`",
            type="hpcrun submit finetune.yaml\n"),
    Mistake("a misspelt option", "hpcrun submit finetune.yaml --swep lr=1,2 --dryrun",
            read="No such option '--swep'", accepted="did you mean --sweep; did you mean --dry-run",
            type="hpcrun submit finetune.yaml --sweep lr=1,2 --dry-run\n"),
    Mistake("a condition as an option", "hpcrun status --state=failed",
            read="No such option '--state'", accepted="conditions are words without dashes",
            type="hpcrun status state=failed\n"),
    Mistake("a condition of list", "hpcrun list --state failed", read="No such option '--state'",
            accepted="conditions are words without dashes",
            type="hpcrun status '*' state=failed\n"),
    Mistake("another command's -f", "hpcrun status study --follow",
            read="No such option '--follow'", accepted="here it is called otherwise",
            type="hpcrun status study -w\n"),
    Mistake("an option of submit", "hpcrun plan finetune.yaml --only failed -y",
            read="No such option '--only'", accepted="--only is an option of `hpcrun submit`",
            type="hpcrun plan finetune.yaml\n"),
    Mistake("the opposite of an option", "hpcrun submit finetune.yaml --no-wait",
            read="No such option '--no-wait'", accepted="submit without --wait does so",
            type="hpcrun submit finetune.yaml\n"),
    Mistake("no nodes", "hpcrun plan -N 0 -- echo", read="-N 0: resources.nodes",
            accepted="a whole number", type="-N 2"),
    Mistake("two forms of results", "hpcrun results study --format csv --json",
            read="--format csv and --json do not go", accepted="leave one out", type="hint"),
    Mistake("columns of costs", "hpcrun status study --cost --columns lr",
            read="--cost and --columns do not go", accepted="leave one out", type="hint"),
    Mistake("a condition as an option, in two words", "hpcrun cancel study --state pending -n",
            read="No such option '--state'", accepted="conditions are words without dashes",
            type="hpcrun cancel study state=pending -n\n"),
    Mistake("a condition as an option, beside others", "hpcrun cancel study --state=pending -n",
            read="No such option '--state'", accepted="conditions are words without dashes",
            type="hpcrun cancel study state=pending -n\n"),
    Mistake("all", "hpcrun why --all", read="No such option '--all'",
            accepted="here it is called otherwise", type="hpcrun why '*'\n"),
    Mistake("all of some", "hpcrun clean study --all", read="No such option '--all'",
            accepted="here it is called otherwise", type="hpcrun clean study\n"),
    Mistake("the best of a metric", "hpcrun results study --best loss",
            read="No such option '--best'", accepted="here it is called otherwise",
            type="hpcrun results study --sort loss\n"),
    Mistake("a report's format", "hpcrun report study --format html",
            read="No such option '--format'", accepted="here it is called otherwise",
            type="hpcrun report study -o report.html\n"),
    Mistake("head's -n", "hpcrun results study -n 2", read="No such option '-n'",
            accepted="here it is called otherwise", type="hpcrun results study | head -n 3\n"),
    Mistake("a state as an option alone", "hpcrun requeue study --failed",
            read="No such option '--failed'", accepted="here it is called otherwise",
            type="hpcrun requeue study state=failed\n"),
    Mistake("rm's -f", "hpcrun delete study -f", read="No such option '-f'",
            accepted="here it is called otherwise", type="hpcrun delete study --yes\n"),
    Mistake("tail's -n", "hpcrun logs study/0 -n 20", read="No such option '-n'",
            accepted="here it is called otherwise", type="hpcrun logs study/0 --tail 20\n"),
    Mistake("a format as an option", "hpcrun results study --csv", read="No such option '--csv'",
            accepted="here it is called otherwise", type="hpcrun results study --format csv\n"),
    Mistake("a file for results", "hpcrun results study -o 'my runs.csv'",
            read="No such option '-o'", accepted="here it is called otherwise",
            type="hpcrun results study --format csv > 'my runs.csv'\n"),
    Mistake("the best", "hpcrun results study --top 3", read="No such option '--top'",
            accepted="here it is called otherwise",
            type="hpcrun results study --sort METRIC | head -n 4\n"),
    Mistake("an option without its value", "hpcrun logs study -n", read="No such option '-n'",
            accepted="Usage: hpcrun logs", type="hpcrun logs --help"),
    Mistake("a misspelt key of the top", "hpcrun plan finetune.yaml nam=foo",
            read="there is no key nam", accepted="config has lr, steps",
            type="did you mean 'name'?"),
    Mistake("a misspelt block", "hpcrun plan finetune.yaml 'resurces={nodes: 2}'",
            read="there is no key resurces", accepted="config has lr, steps",
            type="did you mean 'resources'?"),
    # the spec
    Mistake("a misspelt spec", "hpcrun plan finetun.yaml",
            read="there is no spec 'finetun.yaml'", accepted="experiments that ship",
            type="did you mean 'finetune.yaml'?"),
    Mistake("a program without its ending", "hpcrun plan train", read="there is no spec 'train'",
            accepted="did you mean", type="'train.py'?"),
    Mistake("a notebook", "hpcrun plan notes.ipynb", read="notes.ipynb is a notebook",
            accepted="accepted is a spec", type="`jupyter nbconvert --to script notes.ipynb`"),
    Mistake("a device", "hpcrun plan /dev/null", read="/dev/null is no regular file",
            accepted="accepted is", type="the path of a spec"),
    Mistake("a command with arguments", "hpcrun plan env A=1", read="there is no spec 'env'",
            accepted="for a program", type="hpcrun run -- env ARGUMENTS"),
    Mistake("a directory for a spec", "hpcrun plan .",
            read=". is a directory", accepted="the path of a spec", type="finetune.yaml"),
    # key=value
    Mistake("no key of that name", "hpcrun plan finetune.yaml config.lrr=1e-4",
            read="there is no key config.lrr", accepted="config has lr, steps",
            type="did you mean 'lr'?"),
    Mistake("no short key of that name", "hpcrun plan finetune.yaml lrr=1e-4",
            read="there is no key lrr", accepted="config has lr, steps",
            type="+config.lrr=VALUE adds it"),
    Mistake("no field of that name", "hpcrun plan finetune.yaml resources.nods=3",
            read="there is no key resources.nods", accepted="'resources' accepts nodes",
            type="did you mean 'nodes'?"),
    Mistake("a short key of two fields", "hpcrun plan finetune.yaml every=5",
            read="every: is short for 2 keys", accepted="checkpoint.every, telemetry.every",
            type="type one of them in full"),
    Mistake("a short key of config and a field", "hpcrun plan edited.yaml mode=max",
            spec={"config": "{mode: min, model: 1}"}, read="mode: is short for 3 keys",
            accepted="objective.mode, tracking.wandb.mode, config.mode", type="in full"),
    Mistake("a DeepSpeed key that is none", "hpcrun plan finetune.yaml deepspeed.zero_opt.stage=2",
            read="there is no key deepspeed.zero_opt", accepted="deepspeed",
            type="+deepspeed.zero_opt.stage=VALUE adds it"),
    Mistake("a word for a number of nodes", "hpcrun plan finetune.yaml nodes=two",
            read="a string ('two')", accepted="a whole number", type="resources.nodes"),
    Mistake("blanks around the sign", "hpcrun plan finetune.yaml lr = 1e-3",
            read="found 'lr'", accepted="key=value and +key=value", type="lr=1e-3"),
    Mistake("a blank behind the sign", "hpcrun plan finetune.yaml lr= 3", read="found '3'",
            accepted="key=value and +key=value", type="no blanks around the sign: lr=3"),
    Mistake("a blank before the sign", "hpcrun plan finetune.yaml lr =3", read="found '=3'",
            accepted="key=value and +key=value", type="no blanks around the sign: lr=3"),
    Mistake("braces around a key", "hpcrun plan finetune.yaml '{lr: 3}'", read="found '{lr: 3}'",
            accepted="key=value and +key=value", type="(type lr=3)"),
    Mistake("two specs", "hpcrun plan finetune.yaml other.yaml", read="found 'other.yaml'",
            accepted="one SPEC is accepted", type="key=value behind it"),
    Mistake("a colon for the sign", "hpcrun plan finetune.yaml lr:1e-3",
            read="found 'lr:1e-3'", accepted="key=value and +key=value", type="type lr=1e-3"),
    Mistake("Hydra's two pluses", "hpcrun plan finetune.yaml ++config.lr=1",
            read="found '++config.lr=1'", accepted="key=value and +key=value",
            type="type +config.lr=1"),
    Mistake("Hydra's tilde", "hpcrun plan finetune.yaml ~config.lr",
            read="found '~config.lr'", accepted="key=value and +key=value",
            type="config.lr=null takes a value away"),
    Mistake("Hydra's sweep of numbers", "hpcrun plan finetune.yaml config.lr=1e-3,1e-4",
            read="found '1e-3,1e-4'", accepted="one value, a number (0.001, finetune.yaml:3)",
            type="--sweep config.lr=1e-3,1e-4"),
    Mistake("Hydra's sweep by a short key", "hpcrun plan finetune.yaml lr=1e-3,1e-4",
            read="found '1e-3,1e-4'", accepted="one value, a number",
            type="--sweep config.lr=1e-3,1e-4"),
    Mistake("Hydra's sweep when submitting", "hpcrun submit finetune.yaml lr=1e-3,1e-4",
            read="found '1e-3,1e-4'", accepted="one value, a number",
            type="--sweep config.lr=1e-3,1e-4"),
    Mistake("Hydra's sweep of a field", "hpcrun plan finetune.yaml nodes=1,2",
            read="found '1,2'", accepted="one value, a whole number",
            type="--sweep resources.nodes=1,2"),
    Mistake("Hydra's sweep of truth values", "hpcrun plan finetune.yaml bf16=true,false",
            read="found 'true,false'", accepted="one value, true or false",
            type="--sweep config.bf16=true,false"),
    Mistake("Hydra's sweep of texts", "hpcrun plan finetune.yaml method=adam,sgd", exit=0,
            read="method=adam,sgd: the key is read as config.method",
            accepted="is the one text 'adam,sgd'", type="--sweep config.method=adam,sgd"),
    Mistake("Hydra's choice", "hpcrun plan finetune.yaml 'lr=choice(1,2)'",
            read="found 'choice(1,2)', which is Hydra's", accepted="here a text",
            type="--sweep config.lr=1,2"),
    Mistake("a key twice", "hpcrun plan finetune.yaml lr=1e-3 lr=1e-4", exit=0,
            read="is given twice, lr=1e-3 and lr=1e-4", accepted="the last one counts",
            type="--sweep key=a,b"),
    Mistake("a key that the file sweeps", "hpcrun plan edited.yaml lr=5",
            spec={"sweep": "{grid: {lr: [1, 2]}}"}, read="found lr=5",
            accepted="the spec sweeps config.lr", type="--sweep config.lr=5"),
    Mistake("a key that some runs sweep", "hpcrun plan edited.yaml lr=5", exit=0,
            spec={"sweep": "{union: [{grid: {lr: [1, 2]}}, {grid: {steps: [1]}}]}"},
            read="config.lr: counts in 1 of 3 runs", accepted="the others sweep it", type="lr=5"),
    Mistake("a decimal comma", "hpcrun plan finetune.yaml lr=0,001",
            read="found '0,001'", accepted="a number (0.001", type="--sweep config.lr=0,001"),
    Mistake("a number with a unit", "hpcrun plan finetune.yaml steps=10k", exit=0,
            read="config.steps: is the text '10k'", accepted="was a whole number (100",
            type="steps=10k"),
    Mistake("a number with a tab", "hpcrun plan finetune.yaml 'lr=1e-3\t'", exit=0,
            read=r"is the text '1e-3\t'", accepted="was a number (0.001", type="config.lr"),
    Mistake("a count with an exponent", "hpcrun plan finetune.yaml steps=1e4", exit=0,
            read="is 10000.0", accepted="was a whole number (100", type="type 10000"),
    Mistake("Python's None", "hpcrun plan finetune.yaml method=None", exit=0,
            read="is the text 'None'", accepted="null is none", type="config.method=null"),
    Mistake("a misspelt truth value", "hpcrun plan finetune.yaml bf16=flase", exit=0,
            read="is the text 'flase'", accepted="was true or false (true", type="config.bf16"),
    Mistake("YAML's off", "hpcrun plan finetune.yaml method=off", exit=0,
            read="off is read as false", accepted="as YAML does", type="""the text: '"off"'"""),
    Mistake("YAML's octal", "hpcrun plan finetune.yaml seed=010", exit=0,
            read="010 is read as 8 (octal)", accepted="as YAML does", type="the number: 10"),
    Mistake("YAML's no in a sweep", "hpcrun plan finetune.yaml -s method=lora,no", exit=0,
            read="no is read as false", accepted="as YAML does", type="""the text: '"no"'"""),
    Mistake("a key without a value", "hpcrun plan finetune.yaml lr",
            read="found 'lr'", accepted="key=value and +key=value", type="lr=VALUE"),
    Mistake("a key added to the top level", "hpcrun plan finetune.yaml +dropout=0.1",
            read="+dropout would be a key of the top level", accepted="has its own keys alone",
            type="type +config.dropout=0.1"),
    Mistake("a key added that is there", "hpcrun plan finetune.yaml +lr=0.1",
            read="+lr would be a key of the top level", accepted="config.lr is there",
            type="type config.lr=0.1"),
    Mistake("another launcher's name for a field", "hpcrun plan finetune.yaml +resources.gpus=2",
            read="resources.gpus: unknown key", accepted="'resources' accepts nodes",
            type="did you mean 'resources.gpus_per_node'?"),
    Mistake("a grid as a value", "hpcrun plan finetune.yaml sweep.grid.config.lr=[1,2]",
            read="sweep.grid.config.lr", accepted="cannot be given as key=value",
            type="use --sweep key=a,b"),
    Mistake("a batch that does not fit", "hpcrun plan finetune.yaml deepspeed.train_batch_size=9",
            read="train_batch_size=9", accepted="4 data-parallel ranks",
            type="nearest possible (train = micro x accumulation): 8 = 2 x 1"),
    Mistake("an option of sbatch that is hpcrun's",
            "hpcrun plan finetune.yaml 'resources.sbatch={array: 0-3}'",
            read="resources.sbatch.array", accepted="hpcrun sets this option",
            type="use sweep.max_parallel"),
    Mistake("a misspelt cluster", "hpcrun plan finetune.yaml cluster=slrum",
            read="no cluster profile 'slrum'", accepted="there are local, slurm",
            type="did you mean 'slurm'?"),
    Mistake("a misspelt preset", "hpcrun plan finetune.yaml deepspeed_config=zeroo2",
            read="found 'zeroo2'", accepted="a JSON file and zero0, zero1, zero2, zero3",
            type="did you mean 'zero2'?"),
    Mistake("a misspelt file of DeepSpeed's", "hpcrun plan finetune.yaml deepspeed_config=d.json",
            read="there is no file 'd.json'", accepted="deepspeed_config",
            type="did you mean 'ds.json'?"),
    Mistake("a path from here", "hpcrun plan sub/other.yaml deepspeed_config=ds.json",
            read="there is no file 'ds.json' in", accepted="paths start from the spec's directory",
            type="/desk/ds.json"),
    Mistake("a misspelt program", "hpcrun plan finetune.yaml entry=trian.py",
            read="there is no file 'trian.py'", accepted="entry", type="did you mean 'train.py'?"),
    # --sweep
    Mistake("a sweep of nothing", "hpcrun plan finetune.yaml --sweep config.lr",
            read="found 'config.lr'", accepted="accepted is key=a,b", type="--sweep"),
    Mistake("a sweep of no key", "hpcrun plan finetune.yaml --sweep config.lrr=1,2",
            read="there is no key config.lrr", accepted="config has lr, steps",
            type="did you mean 'lr'?"),
    Mistake("a sweep of two keys", "hpcrun plan finetune.yaml --sweep every=1,2",
            read="every: is short for 2 keys", accepted="checkpoint.every, telemetry.every",
            type="type one of them in full"),
    Mistake("a value twice", "hpcrun plan finetune.yaml --sweep lr=0.1,1e-1",
            read="the value 0.1 is given twice", accepted="config.lr", type="remove one"),
    Mistake("one sweep in two options", "hpcrun plan finetune.yaml --sweep lr=1 --sweep lr=2",
            read="--sweep is given twice", accepted="give all values at once",
            type="--sweep config.lr=a,b"),
    Mistake("a sweep in brackets", "hpcrun plan finetune.yaml --sweep lr=[1e-3,1e-4]", exit=0,
            read="takes the list [0.001, 0.0001]", accepted="as one value",
            type="--sweep config.lr=0.001,0.0001"),
    Mistake("a sweep with blanks", "hpcrun plan finetune.yaml --sweep 'lr=1e-3 1e-4'", exit=0,
            read="is the text '1e-3 1e-4'", accepted="was a number (0.001", type="config.lr"),
    Mistake("a sweep of the cluster", "hpcrun plan finetune.yaml --sweep cluster=slurm,local",
            read="cluster: cannot be swept", accepted="an experiment runs on one cluster",
            type="submit it once for each"),
    # sweeps in the file
    Mistake("a short key of two in a grid", "hpcrun plan edited.yaml",
            spec={"config": "{a: {lr: 1}, b: {lr: 2}}", "sweep": "{grid: {lr: [1, 2]}}"},
            read="lr: is short for 2 keys", accepted="config.a.lr, config.b.lr",
            type="type one of them in full"),
    Mistake("a key by both of its names", "hpcrun plan edited.yaml",
            spec={"sweep": "{grid: {lr: [1], config.lr: [2]}}"}, read="sweep.grid.lr: is config.lr",
            accepted="which is given here too", type="remove one"),
    Mistake("a rule that fits nothing", "hpcrun plan edited.yaml",
            spec={"sweep": "{grid: {lr: [1, 2]}, exclude: [{lr: 3}]}"},
            read="no run has 3 here", accepted="there are 1, 2", type="exclude.0.config.lr"),
    Mistake("more samples than points", "hpcrun plan edited.yaml", exit=0,
            spec={"sweep": "{random: {samples: 20, keys: {lr: [1, 2, 3], seed: [1, 2, 3]}}}"},
            read="20 were asked for", accepted="9 points in all: 9 runs", type="`samples: 9`"),
    Mistake("fractions of a whole number", "hpcrun plan edited.yaml", exit=0,
            spec={"sweep": "{random: {samples: 4, keys: {steps: {uniform: [1, 9]}}}}"},
            read="config.steps: is", accepted="was a whole number (100",
            type="{int_uniform: [LOW, HIGH]}"),
    Mistake("a search of fractions of a whole number", "hpcrun plan edited.yaml", exit=0,
            spec={"sweep": "{search: {trials: 4, space: {steps: {loguniform: [1, 9]}}}}",
                  "objective": "{metric: loss, mode: min}"},
            read="draws fractions", accepted="the whole number 100",
            type="{int_loguniform: [1, 9]}"),
    Mistake("a rate that DeepSpeed's optimizer does not take", "hpcrun plan edited.yaml", exit=0,
            spec={"deepspeed": "{optimizer: {params: {lr: 0.5}}}",
                  "sweep": "{grid: {config.lr: [1, 2]}}"},
            read="deepspeed.optimizer.params.lr is 0.5 in every run",
            accepted="which is what the optimizer that DeepSpeed makes takes",
            type="write ${config.lr} there, or sweep it"),
    # values that stay as they are
    Mistake("a variable in a value", "hpcrun plan finetune.yaml 'method=$SCRATCH/x'", exit=0,
            read="'$SCRATCH/x' stays as it is", accepted="no shell reads it",
            type="${oc.env:SCRATCH}"),
    Mistake("a variable in a variable", "hpcrun plan edited.yaml", exit=0,
            spec={"environment": "{variables: {PATH: '$HOME/bin:$PATH'}}"},
            read="'$HOME/bin:$PATH' stays as it is", accepted="no shell", type="${oc.env:HOME}"),
    Mistake("a home in a value", "hpcrun plan finetune.yaml 'method=~/x'", exit=0,
            read="'~/x' stays as it is", accepted="no shell reads it", type="${oc.env:HOME}/x"),
    Mistake("a shell's variable in braces", "hpcrun plan edited.yaml",
            spec={"config": "{data: '${SCRATCH}/x'}"},
            read="SCRATCH", accepted="which does not exist", type="${oc.env:SCRATCH}"),
    Mistake("GPUs of a machine without", "hpcrun plan edited.yaml cluster=local", exit=0,
            spec={"resources": "{gpus_per_node: 8}"},
            read="resources.gpus_per_node: found 8", accepted="this machine, which has no GPU",
            type="type gpus_per_node=0, or cluster=NAME"),
    # the time
    Mistake("a time without quotes", "hpcrun plan edited.yaml",
            spec={"resources": "{time: 12:00:00}"},
            read="is the number 43200 in YAML", accepted="12:00:00", type='quote it: "12:00:00"'),
    Mistake("a short time without quotes", "hpcrun plan edited.yaml",
            spec={"resources": "{time: 12:00}"},
            read="is the number 720 in YAML", accepted="12:00", type='quote it: "12:00"'),
    Mistake("minutes and seconds for hours", "hpcrun plan edited.yaml", exit=0,
            spec={"resources": '{ntasks_per_node: 8, time: "12:00"}'},
            read="12:00 is read as 12 min (minutes:seconds)", accepted="as sbatch does",
            type='"12:00:00" is 12 h 00 min'),
    Mistake("minutes for hours on the command line", "hpcrun plan finetune.yaml time=12:00", exit=0,
            read="12:00 is read as 12 min", accepted="as sbatch does", type='"12:00:00"'),
    Mistake("seconds for minutes", "hpcrun plan finetune.yaml time=86400", exit=0,
            read="86400 is read as 86400 minutes, 60 d 00 h", accepted="as sbatch does",
            type="resources.time"),
    Mistake("hours with a letter", "hpcrun plan finetune.yaml time=12h",
            read="found '12h'", accepted="minutes, HH:MM:SS", type='write "12:00:00"'),
    # choosing runs
    Mistake("an experiment that is none", "hpcrun status stduy",
            read="'stduy'", accepted="study", type="study"),
    Mistake("a run that is none", "hpcrun status study/9",
            read="study has no run 9", accepted="its runs are 0-2", type="study"),
    Mistake("a job that is none", "hpcrun status 99999",
            read="was submitted as job 99999", accepted="`hpcrun list` shows the experiments",
            type="--root names another"),
    Mistake("a word for a run", "hpcrun why study/x",
            read="'study/x' is not a run of study", accepted="its runs are 0-2",
            type="write study/0"),
    Mistake("three runs for one", "hpcrun show study",
            read="study is 3 runs (study/0-2)", accepted="show takes one", type="such as study/0"),
    Mistake("a column that is none", "hpcrun results study --sort lrr",
            read="there is no column 'lrr'", accepted="there are run, config.lr", type="config.lr"),
    Mistake("a value that no run has", "hpcrun results study --where lr=7",
            read="no run has config.lr=7", accepted="its values are 0.1, 0.2, 0.3", type="0.1"),
    Mistake("nothing to cancel", "hpcrun cancel",
            read="wants to be told which runs", accepted="a job id", type="NAME/3"),
    Mistake("a pattern of no experiment", "hpcrun status 'stdy*'",
            read="'stdy*'", accepted="experiments there: single, study", type="study"),
    Mistake("a pattern of no run", "hpcrun logs '*/7'",
            read="no run under", accepted="study has 0-2", type="'*/7'"),
    Mistake("a state for a name", "hpcrun status failed",
            read="matches 'failed'", accepted="in that state", type="state=failed"),
    Mistake("a state that is none", "hpcrun status study state=faild",
            read="no state 'faild'", accepted="planned, waiting", type="did you mean state=failed"),
    Mistake("a state in which no run is", "hpcrun status study state=running",
            read="no run has state=running", accepted="completed (2), failed (1)", type="state"),
    Mistake("a cause by its initials", "hpcrun why study cause=oom",
            read="no cause 'oom'", accepted="rank_crash", type="cause=out_of_memory?"),
    Mistake("< that the shell took", "hpcrun status lr",
            read="matches 'lr'", accepted="config.lr is a key", type="'lr>=VALUE' in quotes"),
    Mistake("a word compared as a number", "hpcrun results study 'state<3'",
            read="< compares numbers", accepted="state is completed (2)", type="state=VALUE"),
    Mistake("a number that is none", "hpcrun results study 'lr<abc'",
            read="found 'abc' after <", accepted="accepted is a number", type="lr<abc"),
    Mistake("a metric that is none", "hpcrun results study 'metric.los<2'",
            read="a metric 'los'", accepted="logged are loss", type="did you mean loss?"),
    Mistake("a bracket that is left open", "hpcrun status study '(lr=0.1 or lr=0.2'",
            read="'(lr=0.1 or lr=0.2'", accepted="a closing bracket is missing", type="such as"),
    Mistake("a condition for a key", "hpcrun status study --where lr",
            read="--where 'lr' is not", accepted="form key=value", type="'lr>=1e-3'"),
    Mistake("an action on nobody knows what", "hpcrun cancel state=running",
            read="a condition alone", accepted="which runs to cancel", type="'*' state=running"),
    Mistake("an action on a pattern, unasked", "hpcrun requeue 'stu*/2'",
            read="requeue 1 run: study/2", accepted="--dry-run", type="--yes"),
    Mistake("a spec that was not submitted", "hpcrun status finetune.yaml",
            read="'finetune.yaml'", accepted="nothing was submitted", type="submit finetune.yaml"),
    Mistake("a rank that is none", "hpcrun logs study/0 --rank 7",
            read="no rank 7", accepted="study/0 has 0-1", type="leave the option out"),
    Mistake("an attempt that is none", "hpcrun logs study/0 --attempt 5",
            read="no attempt 5", accepted="study/0 has 1", type="leave the option out"),
    Mistake("a node that is none", "hpcrun logs study/0 --node gpu77",
            read="no node 'gpu77'", accepted="study/0 has node1", type="leave the option out"),
    Mistake("one run that is several", "hpcrun show study 'lr<0.3'",
            read="study lr<0.3 is 2 runs", accepted="study/0-1", type="such as study/0"),
    Mistake("signs the other way round", "hpcrun status study 'lr=<0.2'",
            read="'lr=<0.2'", accepted="of the form key=value", type="=< is written <="),
    Mistake("and of other languages", "hpcrun status study 'state=failed && lr=0.3'",
            read="at '&& lr=0.3'", accepted="of the form key=value", type="&& is written and"),
    Mistake("not of other languages", "hpcrun status study '!state=failed'",
            read="'!state=failed'", accepted="of the form key=value", type="! is written not"),
    Mistake("a colon in a condition", "hpcrun status study state:failed",
            read="matches 'state:failed'", accepted="another sign", type="state=failed"),
    Mistake("a state in capitals", "hpcrun status study state=FAILED",
            read="no state 'FAILED'", accepted="accepted are planned", type="mean state=failed?"),
    Mistake("another word for a state", "hpcrun status study state=success",
            read="no state 'success'", accepted="accepted are planned", type="state=completed?"),
    Mistake("a state without its key", "hpcrun status study 'not failed'",
            read="matches 'not failed'", accepted="did you mean", type="'not state=failed'"),
    Mistake("a metric that the shell took", "hpcrun status study metric.loss",
            read="matches 'metric.loss'", accepted="in quotes", type="'metric.loss<VALUE'"),
    Mistake("a run for a condition", "hpcrun status --where study/0",
            read="--where 'study/0'", accepted="form key=value", type="named without --where"),
    Mistake("a run as an array's task", "hpcrun status study_0",
            read="matches 'study_0'", accepted="did you mean", type="study/0?"),
    Mistake("all runs", "hpcrun requeue all",
            read="matches 'all'", accepted="all runs of one are its name", type="'*'"),
    Mistake("a label whose parts no run has", "hpcrun status study lr=0.1,seed=7",
            read="seed=7", accepted="its values are 0", type="config.seed"),
    Mistake("a filter of no metric", "hpcrun results study --filter 'loss.bst<2'",
            read="ends in 'loss.bst'", accepted="logged metrics are loss", type="loss.best"),
    Mistake("a filter that no run meets", "hpcrun results study --filter 'loss.best<0.1'",
            read="metric.loss.best<0.1", accepted="its values are 0.33", type="no run has"),
    Mistake("a filter of no condition", "hpcrun results study --filter loss",
            read="--filter 'loss'", accepted="of the form key=value", type="'lr>=1e-3'"),
    Mistake("a state in words", "hpcrun status study 'state is failed'",
            read="matches 'state is failed'", accepted="did you mean", type="'state=failed'"),
    Mistake("a tag with a colon", "hpcrun status study tag:good", read="matches 'tag:good'",
            accepted="another sign", type="tag=good"),
    Mistake("BASIC's sign", "hpcrun status study 'step<>3'", read="found '>3' after <",
            accepted="accepted is a number", type="<> is written !="),
    Mistake("a name for itself", "hpcrun rename study study", read="study has that name already",
            accepted="another", type="hpcrun rename study NEW"),
    Mistake("a run that has completed", "hpcrun requeue study/0", read="study/0 has completed",
            accepted="never started again", type="`hpcrun submit SPEC --new`"),
    Mistake("two things to show", "hpcrun show single --config --script",
            read="found --config and --script", accepted="one of them", type="leave the others"),
    Mistake("a name to list", "hpcrun list study",
            read="found study", accepted="takes no name", type="hpcrun status study"),
    Mistake("a root that is a file", "hpcrun status --root finetune.yaml",
            read="finetune.yaml is a file", accepted="the directory of your experiments",
            type="leave --root"),
    Mistake("an experiment for a spec", "hpcrun submit study",
            read="there is no spec 'study'", accepted="experiments that ship",
            type="hpcrun requeue NAME"),
    Mistake("a program for a spec", "hpcrun drill train.py",
            read="train.py is a program", accepted="accepted is a spec",
            type="--save train.yaml train.py"),
    Mistake("a sweep in Hydra's words", "hpcrun plan finetune.yaml --sweep 'lr=range(1,3)'",
            read="found 'range(1,3)', which is Hydra's", accepted="accepted are values",
            type="--sweep 'lr={range: [1,3]}'"),
    Mistake("a sweep in numpy's words", "hpcrun plan finetune.yaml --sweep 'lr=logspace(-4,-1,4)'",
            read="found 'logspace(-4,-1,4)', which is", accepted="accepted are values",
            type="--sweep 'lr={geomspace: [1e-4, 1e-1, 4]}'"),
    Mistake("a sweep in Hydra's words without a form", "hpcrun plan finetune.yaml -s 'lr=glob(*)'",
            read="found 'glob(*)', which is Hydra's", accepted="accepted are values",
            type="{linspace: [START, STOP, COUNT]}"),
    Mistake("a sweep in a shell's braces", "hpcrun plan finetune.yaml --sweep 'seed={1..3}'",
            read="found '{1..3}', which is", accepted="accepted are values",
            type="(--sweep seed=1,2,3)"),
    Mistake("a sweep of a set", "hpcrun plan finetune.yaml --sweep 'seed={1, 2}'",
            read="found '{1, 2}', which is", accepted="accepted are values",
            type="(--sweep seed=1,2)"),
    Mistake("a key that is no text", "hpcrun plan finetune.yaml 'model={on: 3}'",
            read="command line: model: the key on is", accepted="keys are strings",
            type='quote it: "on"'),
    Mistake("numbers in a row", "hpcrun plan finetune.yaml --sweep seed=1-4", exit=0,
            read="is the text '1-4'", accepted="was a whole number (0",
            type="--sweep config.seed=1,2,3,4"),
    Mistake("a value for a mapping", "hpcrun plan finetune.yaml config.model=5", exit=0,
            read="config.model: is 5", accepted="was a mapping of layers",
            type="config.model.layers=VALUE"),
    Mistake("--only of runs that --new has none of",
            "hpcrun submit finetune.yaml --dry-run --new --only failed",
            read="--new gives every run a new number, and --only failed",
            accepted="leave --new out", type="--only lr=3e-4"),
    Mistake("--only of two words", "hpcrun submit finetune.yaml --dry-run --only failed,new",
            read="--only 'failed,new'", accepted="new, failed, cancelled",
            type="--only failed --only new"),
    Mistake("--only of numbers", "hpcrun submit finetune.yaml --dry-run --only 0-3",
            read="--only '0-3'", accepted="NAME/3", type="--only '*/0-3'"),
    Mistake("--only of no form", "hpcrun submit finetune.yaml --dry-run --only faild",
            read="--only 'faild'", accepted="new, failed, cancelled", type="--only failed"),
    Mistake("--only of no run", "hpcrun submit finetune.yaml --dry-run --only '*/9'",
            read="--only '*/9'", accepted="runs of the spec: finetune/0", type="finetune/0"),
]  # fmt: skip


def _write(path: Path, spec: dict[str, str]) -> None:
    path.write_text("".join(f"{key}: {text}\n" for key, text in spec.items()))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with ``finetune.yaml``, its files and data, and a root with two experiments.

    Of ``study`` runs 0 and 1 (lr 0.1, 0.2) completed, and 2 (lr 0.3) failed in its second attempt;
    ``single`` has one run, which completed. No Slurm answers.
    """
    directory, root = tmp_path / "desk", tmp_path / "root"
    for made in (directory, tmp_path / "home"):
        made.mkdir()
    _write(directory / "finetune.yaml", SPEC)
    (directory / "sub").mkdir()
    _write(directory / "sub" / "other.yaml", {**SPEC, "entry": "../train.py"})
    (directory / "train.py").write_text("import os, sys\nprint(os.environ['RANK'], sys.argv)\n")
    (directory / "notes.ipynb").write_text('{"cells": []}')
    (directory / "ds.json").write_text(json.dumps(DEEPSPEED))
    study = Experiment(root)
    study.submit((0, 1, 2), swept={n: {"config.lr": (n + 1) / 10} for n in range(3)})
    for number in range(3):
        study.start(number)
        study.log(number, 1, 0, "trained\n")
        study.metrics(number, 1, range(1, 4), loss=lambda step: 1 / step)
        if number < 2:
            study.end(number)
    study.end(2, outcome="failed", kind="rank_crash", message="rank 0 exited with 1")
    study.start(2, attempt=2)
    study.end(2, attempt=2, outcome="failed", kind="rank_crash", message="rank 0 exited with 1")
    single = Experiment(root, "single")
    single.submit(job_id="200")
    single.start(job_id="200")
    single.end()
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("HPCRUN_ROOT", str(root))
    monkeypatch.setattr(run_notes, "_DEVICES", tmp_path / "home")
    for name in ("HPCRUN_CLUSTERS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE])
def test_a_mistake_is_told_with_what_to_type(
    case: Mistake, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.spec:
        _write(desk / "edited.yaml", {**SPEC, **case.spec})
    program, *arguments = shlex.split(case.line)
    assert program == "hpcrun"

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    told = capsys.readouterr()
    assert ended.value.code == case.exit, told.err
    for named in (case.read, case.accepted, case.type):
        assert named in told.err, told.err
    assert "Traceback" not in told.err
    assert bool(told.out.strip()) == (case.exit == 0)


def test_no_two_rows_are_one_mistake() -> None:
    lines = [(case.line, *case.spec.items()) for case in TABLE]
    assert len({case.id for case in TABLE}) == len(TABLE) == len(set(lines))


def test_without_a_mistake_nothing_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "finetune.yaml", "--sweep", "config.lr=0.1,0.2"])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert "2 runs" in told.out


def test_why_runs_would_be_on_this_machine_is_said(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(desk / "edited.yaml", {key: SPEC[key] for key in ("entry", "resources")})
    monkeypatch.setenv("PATH", str(desk))
    for verb in (["plan"], ["submit", "--dry-run"]):
        with pytest.raises(SystemExit) as ended:
            main([*verb, "edited.yaml"])
        assert ended.value.code == 0
        assert (
            "cluster: local, which is this machine, as there is no sbatch on PATH; cluster=NAME"
        ) in capsys.readouterr().err


def test_run_says_that_it_is_not_on_the_cluster(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["run", "finetune.yaml", "nodes=two"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "this machine, as this is no allocation; `salloc` makes one, and `hpcrun submit`" in told
