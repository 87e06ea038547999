"""Examples in each command's ``--help``."""

from __future__ import annotations

# Command -> command lines and what each is for. tests/test_examples.py runs them.
EXAMPLES: dict[str, dict[str, str]] = {
    "init": {
        "hpcrun init first": "a project in a new directory, and a profile of this cluster",
        "hpcrun init first -n": "what would be written there",
        "hpcrun init --from job.sbatch": "a spec of an sbatch script, and what it leaves to you",
    },
    "check": {
        "hpcrun check finetune.yaml": "against the cluster as it is now; nothing is submitted",
        "hpcrun check finetune.yaml resources.nodes=16 --json": "another shape, for a script",
    },
    "estimate": {
        "hpcrun estimate language-model": "memory, hours and money of a run",
        "hpcrun estimate finetune.yaml --parameters 7.5B --gpu h100 --fit": "what fits a GPU",
    },
    "tune": {
        "hpcrun tune language-model -n": "what would be tried, and what not, and why",
        "hpcrun tune language-model": "micro batch and ZeRO stage, on this machine",
        "hpcrun tune language-model --time 00:05:00 -o fast.yaml": "in five minutes",
    },
    "scaling": {
        "hpcrun scaling language-model --nodes 1,2,4 -n": "the batches that would be compared",
        "hpcrun scaling language-model --ranks 1,2,4": "on this machine",
    },
    "profile": {
        "hpcrun profile language-model": "a few steps of it, as a run of their own",
        "hpcrun profile finetune/0 --steps 10 -o profile.html": "of a run, as it was frozen",
    },
    "plan": {
        "hpcrun plan finetune.yaml": "every run, its script and configuration",
        "hpcrun plan finetune.yaml config.lr=3e-4 --sweep config.seed=0,1": "with other values",
    },
    "submit": {
        "hpcrun submit finetune.yaml": "again after a change: it goes on",
        "hpcrun submit finetune.yaml --sweep config.lr=1e-3,3e-4 -n": "what would be submitted",
        "hpcrun submit finetune.yaml --only failed": "only those that failed",
    },
    "run": {
        "hpcrun run hello": "a first run, in seconds",
        "hpcrun run finetune.yaml config.lr=3e-4": "one of your own, here",
    },
    "list": {"hpcrun list": "what there is", "hpcrun list --root /shared/team": "of a colleague"},
    "status": {
        "hpcrun status": "your newest experiment",
        "hpcrun status finetune --where config.lr=3e-4": "some of its runs",
        "hpcrun status finetune -w": "a live screen",
    },
    "top": {
        "hpcrun top": "your newest experiment, live",
        "hpcrun top finetune --where config.lr=3e-4": "some of its runs",
    },
    "logs": {
        "hpcrun logs -f": "follow your newest experiment",
        "hpcrun logs finetune/0 --tail 50 --rank 0": "the end of one rank",
        "hpcrun logs finetune --grep Error --attempt all": "errors of all attempts",
    },
    "results": {
        "hpcrun results finetune --sort loss": "best first",
        "hpcrun results finetune --format csv": "for pandas",
    },
    "why": {
        "hpcrun why finetune/0": "the story of one run",
        "hpcrun why": "your newest experiment, by cause",
    },
    "show": {
        "hpcrun show finetune/0": "state, metrics, commit, paths",
        "hpcrun show finetune/0 --config": "the whole configuration",
    },
    "diff": {"hpcrun diff finetune/0 finetune/1": "what differs between two runs"},
    "report": {"hpcrun report finetune -o finetune.html": "to look at, or to send"},
    "export": {"hpcrun export finetune -o finetune.tar.gz": "for the archive of a paper"},
    "weights": {
        "hpcrun weights finetune/0 -o out": "the newest checkpoint, in safetensors",
        "hpcrun weights finetune/0@1200 -o out --dtype bf16": "that of a step, rounded",
    },
    "exec": {
        "hpcrun exec finetune/0 nvidia-smi": "the GPUs of rank 0's node",
        "hpcrun exec finetune/0 --rank 5 env": "what rank 5 has in its environment",
    },
    "shell": {"hpcrun shell finetune/0 --rank 5": "beside rank 5"},
    "stacks": {"hpcrun stacks finetune/0": "where its ranks are"},
    "cancel": {
        "hpcrun cancel finetune/0": "one run",
        "hpcrun cancel finetune -n": "what would be cancelled",
    },
    "requeue": {
        "hpcrun requeue finetune/0": "from its newest checkpoint",
        "hpcrun requeue finetune -n": "what would be started again",
    },
    "tag": {
        "hpcrun tag finetune/0 +baseline": "put a tag on a run",
        "hpcrun status finetune tag=baseline": "the runs that have it",
        "hpcrun tag finetune -baseline": "take it away from all of its runs",
    },
    "note": {
        'hpcrun note finetune/0 -m "loss spikes at 400"': "write a note",
        "hpcrun note finetune": "read those of all runs",
    },
    "clean": {
        "hpcrun clean finetune -n": "what would be removed",
        "hpcrun clean finetune --older-than 30d -y": "without a question",
    },
    "drill": {
        "hpcrun drill finetune.yaml -n": "what would be done to it",
        "hpcrun drill finetune.yaml --fault kill-rank": "one fault",
    },
    "doctor": {
        "hpcrun doctor": "what hpcrun can promise on this cluster, and what to change",
        "hpcrun doctor --nodes 4": "four nodes, tested in a job of a minute",
        "hpcrun doctor --nodes node[01-04]": "these ones",
    },
    "rename": {"hpcrun rename finetune finetune-old": "and the name is free again"},
    "delete": {
        "hpcrun delete finetune-old/0 -n": "what would go",
        "hpcrun delete finetune-old -y": "the whole experiment, without a question",
    },
    "help": {
        "hpcrun help": "all topics",
        "hpcrun help recovery": "what becomes of runs that fail",
    },
    "schema": {"hpcrun schema > spec.schema.json": "for an editor, beside the specs"},
    "completion": {'eval "$(hpcrun completion bash)"': "in ~/.bashrc; zsh: in ~/.zshrc"},
}


def epilog(command: str) -> str:
    """Return a command's examples as click prints them below its options."""
    shown = EXAMPLES.get(command, {})
    width = max(map(len, shown), default=0)
    lines = [f"  {line:<{width}}  {what}" for line, what in shown.items()]
    if any(len(line) > 76 for line in lines):
        lines = [text for line, what in shown.items() for text in (f"  # {what}", f"  {line}")]
    return "\n".join(["\b", "Examples:" if len(shown) > 1 else "Example:", *lines])
