"""Wrong inputs: what each says, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hpcrun.compile import compile_spec

BASE = """\
name: demo
entry: train:main
cluster: slurm
config: {lr: 1.0e-3, model: {layers: 2}}
deepspeed_config: ds.json
deepspeed: {train_batch_size: 8}
resources: {nodes: 2, ntasks_per_node: 2}
"""


@dataclass(frozen=True)
class Wrong:
    """One wrong input: a spec (or lines added to BASE), arguments, and the words of the answer."""

    id: str
    words: tuple[str, ...]
    add: str = ""
    drop: str = ""
    spec: str | bytes | None = None
    arguments: tuple[str, ...] = ()
    files: dict[str, str | bytes] = field(default_factory=dict)
    exit: int = 2

    def text(self) -> str | bytes:
        if self.spec is not None:
            return self.spec
        kept = [
            line for line in BASE.splitlines() if not self.drop or not line.startswith(self.drop)
        ]
        return "\n".join([*kept, self.add]) + "\n"


def wrong(id: str, *words: str, **rest: Any) -> Wrong:
    return Wrong(id, words, **rest)


def resources(id: str, text: str, *words: str) -> Wrong:
    return Wrong(id, ("spec.yaml:7", *words), drop="resources", add=f"resources: {{{text}}}")


TABLE = [
    # misspelt keys, at each level
    wrong("top level key", "spec.yaml:8", "resource:", "unknown key", "accepts name, extends",
          "did you mean 'resources'?", add="resource: {nodes: 1}"),
    resources("resources key", "node: 2", "resources.node:", "'resources' accepts nodes",
              "did you mean 'nodes'?"),
    resources("cpus", "cpus: 2", "resources.cpus:", "did you mean 'resources.cpus_per_task'?"),
    resources("memory", "memory: 2G", "did you mean 'resources.mem'?"),
    resources("gpus", "gpus: 2", "did you mean 'resources.gpus_per_node'?"),
    resources("gpu", "gpu: 2", "did you mean 'resources.gpus_per_node'?"),
    resources("walltime", 'walltime: "1:00:00"', "did you mean 'resources.time'?"),
    resources("timeout", "timeout: 60", "did you mean 'resources.time'?"),
    resources("tasks", "tasks: 4", "did you mean 'resources.ntasks_per_node'?"),
    wrong("key at the wrong level", "nodes:", "did you mean 'resources.nodes'?", add="nodes: 4"),
    wrong("environment key", "environment.variable:", "did you mean 'variables'?",
          add="environment: {variable: {A: b}}"),
    wrong("checkpoint key", "checkpoint.evry:", "did you mean 'every'?",
          add="checkpoint: {evry: 5}"),
    wrong("recovery key", "recovery.resume_arg:", "did you mean 'resume_args'?",
          add="recovery: {resume_arg: [--resume]}"),
    wrong("objective key", "objective.metrics:", "did you mean 'metric'?",
          add="objective: {metrics: loss}"),
    wrong("code key", "code.links:", "did you mean 'link'?", add="code: {links: [data]}"),
    wrong("sweep key", "sweep.max_parallell:", "did you mean 'max_parallel'?",
          add="sweep: {max_parallell: 3}"),
    wrong("progress source", "progress.source:", "'tensorbord'", "accepted", "tensorboard",
          add="progress: {source: tensorbord}"),
    wrong("progress pattern", "progress.pattern:", "no regular expression",
          add="progress: {pattern: 'step (?P<step>'}"),
    wrong("progress pattern without a step", "progress.pattern:",
          "no group named step, epoch or one_step", "(?P<step>",
          add="progress: {pattern: 'loss (.*)'}"),
    wrong("progress pattern beside another source", "progress.pattern:", "accepted is log",
          add="progress: {pattern: '(?P<step>x)', source: tensorboard}"),
    wrong("progress saved", "progress.saved.1:", "accepted is a glob",
          add="progress: {saved: [a, '']}"),
    wrong("progress total", "progress.total:", "found 0", add="progress: {total: 0}"),
    # wrong types and values
    resources("nodes is a word", "nodes: two", "resources.nodes:", "a string ('two')",
              "accepted is a whole number"),
    resources("nodes is no digit of ours", "nodes: '²'", "'²'", "accepted is a whole number"),
    resources("nodes is a float", "nodes: 2.5", "a number (2.5)", "accepted is a whole number"),
    resources("nodes is null", "nodes: null", "nothing (null)", "accepted is a whole number"),
    resources("negative nodes", "nodes: -1", "resources.nodes:", "found -1", "from 1"),
    resources("no nodes", "nodes: 0", "resources.nodes:", "found 0", "from 1"),
    wrong("resources is a list", "resources:", "found a list", "accepted is a mapping",
          drop="resources", add="resources: [nodes, 2]"),
    wrong("args is a string", "args:", "found a string ('--fast')", "a list of strings",
          "write a list: [--fast]", add="args: --fast"),
    wrong("config is a string", "config:", "found a string", "a mapping", drop="config",
          add="config: lr=3"),
    wrong("mode", "objective.mode:", "'minimum'", "min or max", "did you mean 'min'?",
          add="objective: {metric: loss, mode: minimum}"),
    wrong("every is zero", "checkpoint.every:", "found 0", "from 1", add="checkpoint: {every: 0}"),
    wrong("telemetry key", "telemetry.evry:", "did you mean 'every'?", add="telemetry: {evry: 5}"),
    wrong("no seconds between samples", "telemetry.every:", "found 0", "from 1",
          add="telemetry: {every: 0}"),
    wrong("tracker", "tracking.tensorbord:", "accepts tensorboard, wandb",
          "did you mean 'tensorboard'?", add="tracking: {tensorbord: true}"),
    wrong("a tracker's key", "tracking.wandb.projct:", "did you mean 'project'?",
          add="tracking: {wandb: {projct: p}}"),
    wrong("a tracker's mode", "tracking.wandb.mode:", "'ofline'", "online or offline",
          "did you mean 'offline'?", add="tracking: {wandb: {mode: ofline}}"),
    wrong("a tracker that is true", "tracking.wandb:", "found true", "accepted is a mapping",
          add="tracking: {wandb: true}"),
    wrong("a project with its team", "tracking.wandb.project:", "'team/study'", "without any of",
          "tracking.wandb.entity", add="tracking: {wandb: {project: team/study}}"),
    wrong("MLflow without an address", "tracking.mlflow.uri:", "found ''", "https://", "sqlite://",
          add="tracking: {mlflow: {}}"),
    wrong("MLflow's directory", "tracking.mlflow.uri:", "'./mlruns'", "sqlite:////PATH",
          add="tracking: {mlflow: {uri: ./mlruns}}"),
    wrong("a database in no place", "tracking.mlflow.uri:", "sqlite:////shared/mlflow.db",
          add="tracking: {mlflow: {uri: 'sqlite:///mlflow.db'}}"),
    wrong("a password that all may read", "tracking.mlflow.uri:", "found a password",
          "environment.secrets_file", add="tracking: {mlflow: {uri: 'https://me:secret@host'}}"),
    wrong("a project without a name", "tracking.wandb.project:", "found 0 characters", "1 to 128",
          add="tracking: {wandb: {project: ''}}"),
    wrong("nearby without shared", "checkpoint.nearby_every: is 5, and checkpoint.every null",
          "accepted is less", add="checkpoint: {nearby_every: 5}"),
    wrong("nearby as seldom as shared", "checkpoint.nearby_every: is 5, and checkpoint.every 5",
          add="checkpoint: {nearby_every: 5, every: 5}"),
    wrong("the file is a list", "spec.yaml:1", "holds a list", "accepted is a mapping",
          spec="- name: demo\n"),
    resources("partition form", 'partition: "gpu fast"', "resources.partition:", "'gpu fast'",
              "the name of a partition"),
    resources("memory form", "mem: 64 gigs", "resources.mem:", "'64 gigs'", "64G"),
    resources("another cluster", "sbatch: {clusters: other}", "resources.sbatch.clusters:",
              "hpcrun asks one cluster only"),
    resources("another cluster by its short name", "sbatch: {M: other}", "asks one cluster only"),
    resources("the beginning of an option's name", "sbatch: {--tim: 0}", "resources.sbatch.--tim:",
              "sbatch has no such option"),
    resources("a torn host list", "exclude: 'n[1-3,m'", "resources.exclude:", "'n[1-3,m' is not un",
              "rack[0-1]n[07-11]"),
    resources("a host list backwards", "sbatch: {nodelist: 'n[3-1]'}", "resources.sbatch.nodelist:",
              "'n[3-1]' is not understood"),
    resources("exclude form", "exclude: 'a b'", "resources.exclude:", "host list"),
    resources("ntasks with gpus", "gpus_per_node: 4, ntasks_per_node: 8", "one rank per GPU"),
    resources("more GPUs than a node has", "gpus_per_node: 8, node_has_gpus: 4",
              "resources.gpus_per_node: found 8; a node has 4", "type gpus_per_node=4 or less"),
    resources("GPUs that nobody knows", "gpu_request: none, gpus_per_node: 2",
              "resources.gpu_request: is none", "add node_has_gpus: N"),
    resources("a type of GPUs that Slurm does not know",
              "gpu_request: none, node_has_gpus: 4, gpu_type: a100", "resources.gpu_type:",
              "Slurm is not asked for a type", "resources.constraint"),
    resources("no such way to ask for GPUs", "gpu_request: gpus", "gpus-per-node or gres or none"),
    # time
    resources("unquoted time", "time: 12:00:00", "resources.time:", "12:00:00", "the number 43200",
              'quote it: "12:00:00"'),
    resources("unquoted short time", "time: 90:00", "the number 5400", 'quote it: "90:00"'),
    resources("bad time", "time: 12h", "resources.time:", "'12h'", "HH:MM:SS", "in quotes"),
    resources("no time at all", 'time: "0"', "resources.time:", "a limit above zero"),
    resources("no limit", "time: UNLIMITED", "resources.time:", "'UNLIMITED', no limit to Slurm",
              "sinfo -o '%P %l'"),
    resources("no limit in small letters", "time: infinite", "resources.time:", "no limit to Slu"),
    wrong("no limit of the profile", "limits.max_time:", "leave it out for no limit",
          drop="cluster", add="cluster: mine",
          files={"configs/clusters/mine.yaml": "limits: {max_time: UNLIMITED}\n"}),
    wrong("a factor that is none", "recovery.grow.mem:", "found 1.0", "more than 1",
          add="recovery: {grow: {mem: 1.0}}"),
    wrong("a factor without end", "recovery.grow.time:", "found inf", "at most 100",
          add="recovery: {grow: {time: .inf}}"),
    wrong("nothing grows", "recovery.grow:", "neither mem nor time", add="recovery: {grow: {}}"),
    wrong("less than there is", "recovery.grow.most.time:", "found 00:01, and resources.time is",
          add="recovery: {grow: {time: 2, most: {time: '00:01'}}}"),
    wrong("the most of nothing", "recovery.grow.most.mem:", "grow.mem says by how much",
          add="recovery: {grow: {time: 2, most: {mem: 4G}}}"),
    wrong("a size that is none", "recovery.grow.most.mem:", "found 'much'", "a size such as 64G",
          add="recovery: {grow: {mem: 2, most: {mem: much}}}"),
    wrong("the most of another key", "recovery.grow.most.nodes:", "accepted are mem and time",
          add="recovery: {grow: {mem: 2, most: {nodes: '4'}}}"),
    wrong("all of the memory already", "recovery.grow.mem:", "resources.mem is 0",
          drop="resources", add="recovery: {grow: {mem: 2}}\nresources: {mem: '0'}"),
    wrong("a stop as it ends", "recovery.stop_before:", "found '0'",
          add="recovery: {stop_before: '0'}"),
    # YAML
    wrong("duplicate key", "spec.yaml:8", "name:", "given twice, first in line 1",
          add="name: again"),
    wrong("duplicate key inside", "config.lr:", "given twice", drop="config",
          add="config:\n  lr: 1\n  lr: 2"),
    resources("no for a string", "exclude: no", "resources.exclude:", "(False)",
              'YAML reads no as a truth value; quote it: "no"'),
    wrong("yes in a list of strings", "args.1:", "YAML reads yes as a truth value",
          add="args: [--fast, yes]"),
    wrong("a truth value that is referred to", "args.0:", "(False)",
          "it is the value of ${config.fast}, to be quoted there", "'--k=${config.fast}'",
          drop="config", add="config: {fast: false}\nargs: ['${config.fast}']"),
    wrong("yes for a variable", "environment.variables.DEBUG:", 'quote it: "on"',
          add="environment: {variables: {DEBUG: on}}"),
    wrong("key that is a truth value", "config:", "the key no is true or false", 'quote it: "no"',
          drop="config", add="config: {no: 1}"),
    wrong("syntax error", "spec.yaml:3", "YAML syntax error",
          "began in line 2", spec="name: demo\nentry: [train.py\n"),
    wrong("tabs", "spec.yaml:2", "YAML syntax error", spec="config:\n\tlr: 3\n"),
    wrong("two documents", "YAML syntax error", "another document",
          spec="name: demo\n---\nname: demo\n"),
    wrong("python tag", "config.x:", "tag", "not accepted", drop="config",
          add="config: {x: !!python/name:os.system }"),
    wrong("alias of itself", "alias refers to itself", drop="config", add="config: &c {a: *c}"),
    wrong("a control character", "spec.yaml:8: found '\\x0c', which YAML does not take", "without",
          add="config: {lr: 1} # \x0c"),
    wrong("UTF-16", "spec.yaml:1: found '\\x00'", "iconv", spec="entry: x\n".encode("utf-16-le")),
    wrong("a no-break space", "spec.yaml:2: YAML syntax error", "type it as a blank",
          spec="entry:\u00a0train:main\ncluster: local\n"),
    wrong("not UTF-8", "spec.yaml:2", "byte 0xe9 is not UTF-8", "iconv",
          spec=b"name: demo\n# caf\xe9\n"),
    # interpolation
    wrong("cycle", "config.a:", "interpolation cycle", "config.b:", drop="config",
          add="config: {a: '${config.b}', b: '${config.a}'}"),
    wrong("cycle through itself", "config.a.b:", "interpolation cycle", drop="config",
          add="config: {a: {b: '${config.a}'}}"),
    wrong("missing variable", "config.a:", "the environment variable HPCRUN_NOT_SET is not set",
          "${oc.env:HPCRUN_NOT_SET,VALUE}", drop="config",
          add="config: {a: '${oc.env:HPCRUN_NOT_SET}'}"),
    wrong("missing key", "config.a:", "refers to the key 'config.lrr'", "did you mean",
          drop="config",
          add="config: {a: '${config.lrr}', lr: 1}"),
    wrong("shell variable", "environment.setup.0:", "$HOME or \\${HOME}", "${oc.env:HOME}",
          add="environment: {setup: ['export PATH=${HOME}/bin:$PATH']}"),
    wrong("bad interpolation", "config.a:", "not a valid interpolation", drop="config",
          add="config: {a: '${oops'}"),
    wrong("unknown resolver", "config.a:", "a resolver 'env' that does not exist",
          "did you mean 'oc.env'?", drop="config", add="config: {a: '${env:HOME}'}"),
    wrong("unknown placeholder", "config.a:", "${hpcrun:dir} does not exist", "${hpcrun:scratch}",
          drop="config", add="config: {a: '${hpcrun:dir}'}"),
    wrong("placeholder too early", "environment.setup.0:", "known only as an attempt starts",
          "config, args", add="environment: {setup: ['cd ${hpcrun:directory}']}"),
    wrong("mandatory value", "config.data:", "must be given", "config.data=VALUE", drop="config",
          add="config: {data: '???'}"),
    # files
    wrong("no spec", "there is no spec 'sepc.yaml'", "did you mean 'spec.yaml'?",
          arguments=("SPEC=sepc.yaml",)),
    wrong("spec is a directory", "is a directory", arguments=("SPEC=.",)),
    wrong("missing extends", "spec.yaml:8", "extends:", "no file 'bas.yaml'",
          "did you mean 'base.yaml'?", add="extends: bas.yaml", files={"base.yaml": "args: []\n"}),
    wrong("circle of extends", "extend each other in a circle", "spec.yaml -> other.yaml",
          add="extends: other.yaml", files={"other.yaml": "extends: spec.yaml\n"}),
    wrong("mistake in another file", "base/other.yaml:1", "resources.nods:",
          "did you mean 'nodes'?",
          add="extends: base/other.yaml", files={"base/other.yaml": "resources: {nods: 1}\n"}),
    wrong("missing DeepSpeed file", "deepspeed_config:", "no file 'ds_zero.json'", "ds.json",
          drop="deepspeed_config", add="deepspeed_config: ds_zero.json"),
    wrong("unknown preset", "deepspeed_config:", "'zeroo2'", "zero0, zero1, zero2, zero3",
          "did you mean 'zero2'?", drop="deepspeed_config", add="deepspeed_config: zeroo2"),
    wrong("DeepSpeed file is no JSON", "ds.json:1", "not JSON", files={"ds.json": "{'a': 1}"}),
    wrong("duplicate key in JSON", "ds.json", "given twice", files={"ds.json": '{"a": 1, "a": 2}'}),
    wrong("missing link", "code.link.0:", "no 'data'", add="code: {link: [data]}"),
    wrong("link that leaves", "code.link.0:", "'../data'", "below the code's root",
          add="code: {link: [../data]}"),
    wrong("the root as the code", "code.root:", "the code to freeze would be all of /",
          add="code: {root: /}"),
    wrong("a reference to what nothing has", "'config.q', which does not exist\n", drop="config",
          add="args: ['${config.q}']"),
    wrong("missing code root", "code.root:", "no directory", add="code: {root: nowhere}"),
    wrong("missing secrets", "environment.secrets_file:", "No such file",
          add="environment: {secrets_file: tokens}"),
    wrong("secrets that others read", "environment.secrets_file:", "read by others", "chmod 600",
          add="environment: {secrets_file: tokens}", files={"tokens": "A=b\n"}),
    # the entry
    wrong("no entry", "entry:", "is missing", "a script (train.py)", drop="entry"),
    wrong("blank entry", "entry:", "is missing", drop="entry", add='entry: " "'),
    wrong("the root as a file", "deepspeed_config:", "no file '/' in /", drop="deepspeed",
          add="deepspeed_config: /"),
    wrong("a cluster with a long name", "cluster:", "there is no cluster profile", drop="cluster",
          add=f"cluster: {'x' * 300}"),
    wrong("missing script", "entry:", "no file 'trian.py'", "did you mean 'train.py'?",
          drop="entry",
          add="entry: trian.py"),
    wrong("missing function", "entry:", "train.py has no 'mian'", "did you mean 'main'?",
          drop="entry", add="entry: train:mian"),
    wrong("missing module", "entry:", "there is no module 'trian'", "did you mean 'train'?",
          drop="entry", add="entry: trian:main"),
    wrong("missing file of a function", "entry:", "no file 'src/train.py'", drop="entry",
          add="entry: src/train.py:main"),
    wrong("entry with a syntax error", "broken.py, line 2", "Python syntax error", drop="entry",
          add="entry: broken:main", files={"broken.py": "def main():\n  return (\n"}),
    wrong("command as a string", "entry:", "write the command as a list", drop="entry",
          add="entry: python train.py"),
    wrong("module without a function", "entry:", "add the function: train:main", drop="entry",
          add="entry: train"),
    wrong("nested flag", "config.model:", "nested mapping", "options in args", drop="entry",
          add="entry: train.py"),
    wrong("args of a function", "args:", "a function takes no arguments", add="args: [--fast]"),
    # overrides and sweeps
    wrong("override of no field", "command line: resources.nods:", "there is no key resources.nods",
          "did you mean 'nodes'?", arguments=("resources.nods=3",)),
    wrong("override of no key", "command line: config.lrr:", "config has lr, model",
          "did you mean 'lr'?", "+config.lrr=VALUE", arguments=("config.lrr=3",)),
    wrong("override without a value", "found 'config.lr'", "key=value and +key=value",
          arguments=("config.lr",)),
    wrong("override of a wrong type", "command line: resources.nodes:", "('many')",
          arguments=("resources.nodes=many",)),
    wrong("override that is no YAML", "command line: config.model:", "YAML syntax error",
          arguments=("config.model={layers: [}",)),
    wrong("sweep without values", "--sweep:", "accepted is key=a,b",
          arguments=("--sweep", "config.lr")),
    wrong("sweep of no key", "command line: config.lrr:", "there is no key",
          arguments=("--sweep", "config.lrr=1,2")),
    wrong("sweep of a short key that nothing has", "no key q (write config: {q: VALUE} into",
          drop="config", arguments=("--sweep", "q=1,2")),
    wrong("sweep of a key that nothing has", "no key config.a.q (write config: {a: {q: VALUE}} i",
          drop="config", arguments=("--sweep", "config.a.q=1,2")),
    wrong("sweep that is empty", "sweep.grid.config.lr:", "the list is empty",
          add="sweep: {grid: {config.lr: []}}"),
    wrong("sweep with a duplicate", "sweep.grid.config.lr:", "0.5 is given twice",
          add="sweep: {grid: {config.lr: [0.5, 5.0e-1]}}"),
    wrong("sweep of a scalar", "sweep.grid.config.lr:", "accepted is a list", "write [3]",
          add="sweep: {grid: {config.lr: 3}}"),
    wrong("sweep of the cluster", "sweep.grid.cluster:", "cannot be swept",
          add="sweep: {grid: {cluster: [local, slurm]}}"),
    wrong("sweep of a range", "sweep.grid.config.lr.linspace:", "found [0, 1]", "count]}",
          add="sweep: {grid: {config.lr: {linspace: [0, 1]}}}"),
    wrong("sweep of an unknown range", "found a mapping of logspace", "did you mean 'geomspace'?",
          add="sweep: {grid: {config.lr: {logspace: [1, 2, 3]}}}"),
    wrong("range from nought", "geomspace:", "both above 0",
          add="sweep: {grid: {config.lr: {geomspace: [0, 1, 3]}}}"),
    wrong("range of nothing", "range:", "holds no number",
          add="sweep: {grid: {config.lr: {range: [3, 3]}}}"),
    wrong("range that is too long", "sweep.grid.config.lr:", "accepted are 100,000",
          add="sweep: {grid: {config.lr: {range: [100001]}}}"),
    wrong("product that is too long", "the sweep has 1,000,000 runs", "accepted are 100,000",
          add="sweep: {grid: {config.lr: {range: [1000]}, config.model.layers: {range: [1000]}}}"),
    wrong("zip of unequal lists", "sweep.zip:", "config.lr 2, config.model.layers 3",
          add="sweep: {zip: {config.lr: [1, 2], config.model.layers: [1, 2, 3]}}"),
    wrong("points that are no list", "sweep.points:", "accepted is a list of mappings",
          "write a list", add="sweep: {points: {config.lr: 1}}"),
    wrong("a point of nothing", "sweep.points.0:", "is empty", add="sweep: {points: [{}]}"),
    wrong("a point of a misspelt key", "spec.yaml:8", "config.lrr:", "there is no key",
          add="sweep: {points: [{config.lrr: 1}]}"),
    wrong("draw of nothing", "sweep.random.keys:", "is empty", add="sweep: {random: {samples: 3}}"),
    wrong("no samples", "sweep.random.samples:", "is missing",
          add="sweep: {random: {keys: {config.lr: {uniform: [0, 1]}}}}"),
    wrong("an unknown distribution", "random.keys.config.lr:",
          "write config.lr: {loguniform: [1, 2]}",
          add="sweep: {random: {samples: 3, keys: {config.lr: {log_uniform: [1, 2]}}}}"),
    wrong("bounds the wrong way", "uniform:", "not below",
          add="sweep: {random: {samples: 3, keys: {config.lr: {uniform: [2, 1]}}}}"),
    wrong("logarithm of nought", "loguniform:", "above 0",
          add="sweep: {random: {samples: 3, keys: {config.lr: {loguniform: [0, 1]}}}}"),
    wrong("fractions of layers", "int_uniform:", "not whole numbers",
          add="sweep: {random: {samples: 3, keys: {config.lr: {int_uniform: [0.5, 1]}}}}"),
    wrong("an unknown method", "sweep.random.method:", "uniform or halton",
          add="sweep: {random: {samples: 3, method: sobol}}"),
    wrong("misspelt label", "sweep.exclude.0.config.model:", "no run has 'smal'", "small, large",
          "did you mean 'small'?",
          add="sweep: {grid: {config.model: {choices: {small: {layers: 1}, large: {layers: 2}}}},\n"
              "  exclude: [{config.model: smal}]}"),
    wrong("rule for a misspelt key", "config.lrr:", "there is no key",
          add="sweep: {when: [{match: {config.lrr: 1}, set: {config.lr: 2}}]}"),
    wrong("rule for everything", "sweep.when.0.match:", "is empty",
          add="sweep: {when: [{set: {config.lr: 2}}]}"),
    wrong("misspelt part of a rule", "sweep.when.0.mach:", "did you mean 'match'?",
          add="sweep: {when: [{mach: {config.lr: 2}}]}"),
    wrong("rule that sets what is swept", "sweep.when.0", "overlaps with config.lr",
          add="sweep: {grid: {config.lr: [1]}, when: [{match: {config.lr: 1}, "
              "set: {config.lr: 2}}]}"),
    wrong("everything excluded", "sweep.exclude:", "leaves no run",
          add="sweep: {grid: {config.lr: [1]}, exclude: [{config.lr: 1}]}"),
    wrong("two dimensions with one key", "sweep.zip.config.lr:", "overlaps with config.lr",
          add="sweep: {grid: {config.lr: [1]}, zip: {config.lr: [1]}}"),
    wrong("two runs of one name", "sweep:", "differ in what rules set", "tells them apart",
          add="sweep: {union: [{grid: {config.lr: [1]}}, {grid: {config.lr: [1]}, "
              "when: [{match: {config.lr: 1}, set: {config.model.layers: 3}}]}]}"),
    wrong("rule for what is swept around it", "sweep.when.0.exclude.0.config.lr:",
          "is swept outside this block", "where the key is swept",
          add="sweep: {grid: {config.lr: [1, 2]}, when: [{match: {config.lr: 1}, "
              "grid: {config.model.layers: [1, 2]}, exclude: [{config.lr: 1}]}]}"),
    wrong("rule that sets what it sweeps", "sweep.when.0", "overlaps with config.lr",
          add="sweep: {when: [{match: {config.model.layers: 2}, grid: {config.lr: [1]}, "
              "set: {config.lr: 5}}]}"),
    wrong("zip with a key and its part", "sweep.zip.config.model.layers:", "overlaps with",
          add="sweep: {zip: {config.model: [null, 5], config.model.layers: [1, 2]}}"),
    wrong("choice of a number", "random.keys.config.lr:", "found 5; accepted is at least one",
          add="sweep: {random: {samples: 3, keys: {config.lr: {choices: 5}}}}"),
    wrong("a seed where a count is asked for", "sweep.repeat.config.lr:", "accepted are 100,000",
          add="sweep: {repeat: {config.lr: 1000000000000000000000000000000}}"),
    wrong("no repetition", "sweep.repeat.config.lr", "holds no number",
          add="sweep: {repeat: {config.lr: 0}}"),
    wrong("a block that is a number", "deepspeed.tensor_parallel:", "accepted is a mapping",
          add="sweep: {grid: {deepspeed.tensor_parallel: [5]}}"),
    wrong("runs of several names", "name:", "an experiment has one name", drop="name",
          add="name: demo-${config.lr}\nsweep: {grid: {config.lr: [1, 2]}}"),
    wrong("runs that are one", "two runs compute the same",
          add="sweep: {grid: {config.lr: ['${config.model.layers}', 2]}, "
              "when: [{match: {config.lr: '${config.model.layers}'}, set: {resources.nodes: 1}}]}"),
    wrong("sweep in a sweep's point", "sweep.points.0.sweep.grid:", "cannot sweep itself",
          add="sweep: {points: [{sweep.grid: 1}]}"),
    wrong("sweeps that overlap", "overlaps with config.model",
          add="sweep: {grid: {config.model: {choices: {a: {layers: 1}}},\n"
          "  config.model.layers: [2]}}"),
    wrong("one bad point of a sweep", "resources.nodes:", "found 0", "[in nodes=0]",
          add="sweep: {grid: {resources.nodes: [1, 0]}}"),
    # the batch and DeepSpeed
    wrong("impossible batch", "deepspeed.train_batch_size:", "train_batch_size=9",
          "4 data-parallel ranks", "nearest possible", "8 = 2 x 1", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 9}"),
    wrong("contradicting batch", "train_batch_size=8", "train_micro_batch_size_per_gpu=3",
          "nearest possible", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 8, train_micro_batch_size_per_gpu: 3}"),
    wrong("no batch", "deepspeed:", "cannot be solved", "train_micro_batch_size_per_gpu",
          drop="deepspeed:"),
    wrong("batch of zero", "deepspeed.train_batch_size:", "found 0", "at least 1",
          drop="deepspeed:", add="deepspeed: {train_batch_size: 0}"),
    wrong("batch that is a float", "found 8.5", "whole number", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 8.5}"),
    wrong("DeepSpeed would ignore it", "deepspeed.zero_optimisation:", "does not know this key",
          "did you mean 'zero_optimization'?", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 8, zero_optimisation: {stage: 2}}"),
    wrong("DeepSpeed would ignore it in a block", "deepspeed.optimizer.param:",
          "did you mean 'params'?", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 8, optimizer: {type: AdamW, param: {lr: 1}}}"),
    wrong("in the DeepSpeed file", "ds.json:1", "zero_optimization.sage:", "did you mean 'stage'?",
          files={"ds.json": '{"zero_optimization": {"sage": 2}}'}),
    wrong("removed from DeepSpeed", "deepspeed.amp:", "has removed", "use fp16, bf16",
          drop="deepspeed:", add="deepspeed: {train_batch_size: 8, amp: {enabled: true}}"),
    wrong("fp16 on CPUs", "deepspeed.fp16.enabled:", "does not run on CPUs", "use bf16",
          drop="deepspeed:", add="deepspeed: {train_batch_size: 8, fp16: {enabled: true}}"),
    wrong("auto for a function", "deepspeed.gradient_clipping:", "Hugging Face", drop="deepspeed:",
          add="deepspeed: {train_batch_size: 8, gradient_clipping: auto}"),
    wrong("zero stage", "deepspeed.zero_optimization.stage:", "found 4", "0, 1, 2 and 3",
          arguments=("deepspeed.zero_optimization.stage=4",)),
    # who is told
    wrong("event", "notify.events.0:", "found 'finish'", "finished, failed, needs_person",
          "did you mean 'finished'?", add="notify: {events: [finish]}"),
    wrong("type of mail", "notify.mail_types.0:", "found 'DONE'", "ARRAY_TASKS",
          add="notify: {mail_types: [DONE]}"),
    wrong("two addresses", "notify.mail:", "accepted is one address",
          add="notify: {mail: 'a@b.org,c@d.org'}"),
    wrong("empty command", "notify.command:", "is empty", add="notify: {command: ['']}"),
    wrong("a command that is not there", "notify.command.0:", "there is no file",
          "looked up on the node's PATH", add="notify: {command: [./tell.sh]}"),
    wrong("a command that is not executable", "notify.command.0:", "is not executable", "chmod +x",
          add="notify: {command: [./tell.sh]}", files={"tell.sh": "#!/bin/sh"}),
    wrong("NUL in the command", "notify.command.1:", "holds a NUL",
          add='notify: {command: [mail, "a\\0"]}'),
    # sbatch and the shell
    resources("sbatch owned output", "sbatch: {output: x.log}", "resources.sbatch.output:",
              "hpcrun owns this option", "hpcrun logs"),
    resources("sbatch owned gres", "sbatch: {gres: 'gpu:4'}", "resources.sbatch.gres:",
              "use resources.gpus_per_node"),
    resources("sbatch gres with a GPU", "sbatch: {gres: 'nvme:1,gpu:a100:2'}",
              "resources.sbatch.gres:", "use resources.gpus_per_node and resources.gpu_type"),
    resources("GPU type with a count", "gpus_per_node: 2, gpu_type: 'a100:2'",
              "resources.gpu_type:", "'a100:2'", "such as a100"),
    resources("sbatch clusters", "sbatch: {clusters: a}", "resources.sbatch.clusters:",
              "one cluster only"),
    resources("sbatch M", "sbatch: {M: a}", "resources.sbatch.M:", "one cluster only"),
    resources("sbatch owned signal", "sbatch: {signal: USR1@60}", "resources.sbatch.signal:",
          "owns"),
    resources("sbatch unknown", "sbatch: {licences: fs}", "no such option",
              "did you mean 'licenses'?"),
    resources("sbatch underscore", "sbatch: {mail_type: END}", "did you mean 'mail-type'?"),
    resources("sbatch newline", 'sbatch: {licenses: "a\\n#SBATCH --uid=0"}', "one line"),
    wrong("name with a semicolon", "name:", "'a;rm -rf ~'", "a letter first", drop="name",
          add="name: 'a;rm -rf ~'"),
    wrong("name with a substitution", "name:", "'$(id)'", drop="name", add="name: $(id)"),
    wrong("name with a newline", "name:", r"'a\nb'", drop="name", add='name: "a\\nb"'),
    wrong("name that is a path", "name:", "'../x'", drop="name", add="name: ../x"),
    resources("partition with a substitution", "partition: '$(id)'", "resources.partition:"),
    resources("partition with a newline", 'partition: "a\\n#SBATCH --uid=0"',
              "resources.partition:"),
    resources("account with quotes", "account: \"a'b\"", "resources.account:"),
    wrong("variable's name", "environment.variables.A;B:", "letters, digits and _",
          add="environment: {variables: {'A;B': c}}"),
    wrong("variable of the job", "environment.variables.RANK:", "the job sets this variable itself",
          add="environment: {variables: {RANK: 3}}"),
    wrong("secret in the script", "environment.variables.WANDB_API_KEY:", "looks like a secret",
          "secrets_file", add="environment: {variables: {WANDB_API_KEY: abc}}"),
    wrong("root with a newline", "the root", "line break", arguments=("--root", "/tmp/a\nb")),
    # the cluster's profile
    wrong("unknown cluster", "cluster:", "no cluster profile 'slurmm'", "local, slurm",
          "did you mean 'slurm'?", drop="cluster", add="cluster: slurmm"),
    wrong("mistake in a profile", "configs/clusters/mine.yaml:1", "executer:",
          "did you mean 'executor'?", drop="cluster", add="cluster: mine",
          files={"configs/clusters/mine.yaml": "executer: slurm\n"}),
    wrong("a spec's key in a profile", "extends: unknown key", "confirm_above, prices, sbatch",
          drop="cluster", add="cluster: mine",
          files={"configs/clusters/mine.yaml": "extends: other\n"}),
    wrong("key of an earlier version", "configs/clusters/mine.yaml:1", "suspects.days:",
          "earlier versions had this key", "delete it", drop="cluster", add="cluster: mine",
          files={"configs/clusters/mine.yaml": "suspects: {days: 3}\n"}),
    wrong("umask that is not octal", "umask:", "found '28'", 'in quotes: "0027"', drop="cluster",
          add="cluster: mine", files={"configs/clusters/mine.yaml": "umask: 28\n"}),
    wrong("umask against the owner", "umask:", "leaves the owner all rights", drop="cluster",
          add="cluster: mine", files={"configs/clusters/mine.yaml": "umask: '0777'\n"}),
    wrong("empty group", "group:", "accepted is the name of a group", drop="cluster",
          add="cluster: mine", files={"configs/clusters/mine.yaml": "group: ''\n"}),
    wrong("over the profile's time", "resources.time:", "at most 00:30:00", drop="cluster",
          add="cluster: mine",
          files={"configs/clusters/mine.yaml": 'limits: {max_time: "00:30:00"}\n'}),
    wrong("over the profile's nodes", "resources.nodes:", "found 2", "at most 1", drop="cluster",
          add="cluster: mine", files={"configs/clusters/mine.yaml": "limits: {max_nodes: 1}\n"}),
]  # fmt: skip


def test_keys_that_do_nothing_without_another_are_told(project: Any) -> None:
    text = "entry: train.py\ncluster: slurm\n"
    alone = "recovery: {spike: 3}\nnotify: {events: [failed], mail_types: [END]}\n"
    alone += "object_storage: {wait: '00:01:00'}\noptimization: {factor: 0.5}\n"
    alone += "resources: {gpu_type: a100}\n"
    notes = compile_spec(project.write("spec.yaml", text + alone)).notes
    found = [one for one in notes if "does nothing without" in one]
    assert len(found) == 6, notes
    assert any(": resources.gpu_type: does nothing without resources.gpus" in one for one in found)
    # A profile's kind of GPU is for the runs that have some; what is not written is not told.
    project.write("configs/clusters/mine.yaml", "resources: {gpu_type: a100}\n")
    path = project.write("spec.yaml", text.replace("slurm", "mine"))
    assert not any("nothing without" in one for one in compile_spec(path).notes)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE])
def test_each_mistake_says_what_is_wrong_and_leaves_nothing(
    case: Wrong, project: Any, hpcrun: Callable[..., Any]
) -> None:
    for name, text in case.files.items():
        project.write(name, text)
    project.write("spec.yaml", case.text())
    arguments = list(case.arguments)
    spec = "spec.yaml"
    if arguments and arguments[0].startswith("SPEC="):
        spec = arguments.pop(0).removeprefix("SPEC=")
    before = project.files()

    answer = hpcrun("plan", spec, *arguments)

    assert answer.code == case.exit, answer.err
    for word in case.words:
        assert word in answer.err, answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert project.files() == before


def test_the_base_of_the_table_is_right(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write("spec.yaml", BASE)
    assert hpcrun("plan", "spec.yaml").code == 0


def test_all_mistakes_are_told_at_once(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write("base.yaml", "resources: {nods: 1}\nargs: [yes]\n")
    project.write(
        "spec.yaml",
        "extends: base.yaml\nname: 3d\nentry: trian.py\nresources:\n  nodes: -2\n  time: 9h\n"
        "deepspeed: {train_batch_size: 7, zero_optimisation: {}}\nconfig: {a: '${config.b}'}\n",
    )
    answer = hpcrun("plan", "spec.yaml", "config.z=1", "resources.nodes=-3")
    lines = answer.err.removeprefix("error: ").splitlines()
    assert answer.code == 2
    starts = [line.split(": ")[0] + ": " + line.split(": ")[1] for line in lines]
    assert starts == [
        "command line: config.z",
        "command line: resources.nodes",
        "spec.yaml:2: name",
        "spec.yaml:3: entry",
        "spec.yaml:6: resources.time",
        "spec.yaml:7: deepspeed.zero_optimisation",
        "spec.yaml:8: config.a",
        "base.yaml:1: resources.nods",
        "base.yaml:2: args.0",
    ]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("resources: {gpus_per_node: 4}", True),
        ("resources: {gpus_per_node: 4, cpus_per_task: 1}", False),
        ("resources: {ntasks_per_node: 4}", False),
        ("resources: {gpus_per_node: 4}\nframework: batch\nentry: [bash, job.sh]", False),
        ("resources: {gpus_per_node: 4}\ncluster: local", False),
        ("roles: {a: {gpus_per_node: 1}, b: {cpus_per_task: 2}}", True),
        ("roles: {a: {gpus_per_node: 1, cpus_per_task: 2}, b: {ntasks: 1}}", False),
        ("roles: {a: {gpus_per_node: 1}}\nresources: {cpus_per_task: 2}", False),
    ],
)
def test_one_cpu_beside_a_gpu_is_told(project: Any, spec: str, told: bool) -> None:
    project.write("job.sh", "srun true\n")
    given = {"entry": "train.py", "cluster": "slurm"}
    text = "".join(f"{key}: {one}\n" for key, one in given.items() if key not in spec) + spec
    notes = [one for one in compile_spec(project.write("s.yaml", text)).notes if "cpus_per" in one]
    assert len(notes) == told
    assert all("type cpus_per_task=N" in one for one in notes)


@pytest.mark.parametrize(
    ("entry", "every", "told"),
    [
        ("[python, x.py]", 50, True),
        ("[python, x.py]", "auto", False),
        ("train.py:main", 50, False),
    ],
)
def test_ranks_that_nothing_compares_are_told(
    project: Any, entry: str, every: int | str, told: bool
) -> None:
    text = f"cluster: local\nentry: {entry}\nrecovery: {{check_replicas: {every}}}\n"
    found = compile_spec(project.write("spec.yaml", text))
    assert any("recovery.check_replicas" in note for note in found.notes) is told


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_growth_where_nothing_is_asked_for_is_told(project: Any, cluster: str) -> None:
    text = f"cluster: {cluster}\nentry: [python, x.py]\nrecovery: {{grow: {{mem: 2}}}}\n"
    notes = compile_spec(project.write("spec.yaml", text)).notes
    assert any("recovery.grow" in note for note in notes) is (cluster == "local")
