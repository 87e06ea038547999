"""What the filter answers: by hpcrun itself, and by the script of a report's page.

To add a case, add a line to ``CASES``: what is typed, and the numbers of the runs that meet it, or
``WRONG`` where it is an error.
"""

from __future__ import annotations

from typing import Any

WRONG = None
# Run -> its swept values.
SWEPT: dict[int, dict[str, Any]] = {
    0: {
        "config.lr": 1e-3,
        "config.opt.name": "adam",
        "config.bf16": True,
        "config.betas": [0, 0.9],
    },
    1: {"config.lr": 3e-4, "config.opt.name": "adamw", "config.bf16": False},
    2: {"config.lr": 1e-3, "config.opt.name": "two words", "config.bf16": True},
    3: {"config.lr": 3e-4, "config.opt.name": "a,b", "config.layers": 12},
}
# Key -> what is known of each run.
FACTS: dict[str, list[Any]] = {
    "run.state": ["completed", "failed", "failed", "planned"],
    "run.cause": [None, "out_of_memory", "rank_crash", None],
    "run.attempts": [1, 3, 1, 0],
    "run.step": [100, 50, 0, 0],
}
TAGS = [["good", "wip"], ["good"], [], []]
NOTES = [[], ["rate too HIGH", "again"], [], []]
METRICS: list[dict[str, float]] = [
    {"loss": 1.5, "eval/acc": 0.9, "lr": 0.5},
    {"loss": 2.5},
    {"eval/acc": 0.1},
    {},
]
CASES: list[tuple[str, list[int] | None]] = [
    # Numbers.
    ("lr=1e-3", [0, 2]),
    ("lr = .001", [0, 2]),
    ("config.lr==0.0010", [0, 2]),
    ("lr!=3e-4", [0, 2]),
    ("lr>=1e-3", [0, 2]),
    ("lr < +1e-3", [1, 3]),
    ("lr<inf", [0, 1, 2, 3]),
    ("layers>1_0", [3]),
    ("lr=0x1", []),
    ("lr<many", WRONG),
    ("name<3", []),
    # Either of several values, and values beside one another.
    ("lr=1e-3,3e-4", [0, 1, 2, 3]),
    ("state!=failed,planned", [0]),
    ("name=a,b", [3]),
    ("lr=1e-3,state=failed", [2]),
    ("lr=1e-3,3e-4, state=failed", [1, 2]),
    ("(lr=1e-3), attempts>0", [0, 2]),
    # Texts, patterns, truths, lists.
    ("name=adam", [0]),
    ("name=Adam", []),
    ("name=adam*", [0, 1]),
    ("name=ad?m", [0]),
    ("name!=*a*", [2]),
    ('name="two words"', [2]),
    ("name='two words' state=failed", [2]),
    ('"config.opt.name"=adam', [0]),
    ("bf16=true", [0, 2]),
    ("bf16=FALSE", [1]),
    ("betas=[0,0.9]", [0]),
    ("betas=[0, 0.9] lr=1e-3", [0]),
    # What a run has no value of.
    ("layers=null", [0, 1, 2]),
    ("layers!=null", [3]),
    ("layers!=12", [0, 1, 2]),
    ("layers<100", [3]),
    ("not layers<100", [0, 1, 2]),
    ("cause=null", [0, 3]),
    # What is known of a run, and its metrics.
    ("state=failed", [1, 2]),
    ("run.state=fail*", [1, 2]),
    ("cause=out_of_memory", [1]),
    ("attempts>2", [1]),
    ("step>=50", [0, 1]),
    ("metric.loss<2", [0]),
    ("loss<2", [0]),
    ("metric.loss=null", [2, 3]),
    ("acc>0.5", [0]),
    ("metric.eval/acc<0.5", [2]),
    ("metric.lr<1", [0]),
    # What people said of it.
    ("tag=good", [0, 1]),
    ("tag=wip,bad", [0]),
    ("tag!=good", [2, 3]),
    ("tags=null", [2, 3]),
    ("tag=w*", [0]),
    ("note~high", [1]),
    ("note~'too high' lr=3e-4", [1]),
    ("notes!=null", [1]),
    # Contains.
    ("name~ADA", [0, 1]),
    ("not name~a", [2]),
    ("layers~1", [3]),
    ("lr=3e-4,name~adam", [1]),
    # Words of the language.
    ("lr=1e-3 and state=failed", [2]),
    ("lr=1e-3 AND NOT state=failed", [0]),
    ("lr=1e-3 not (state=failed or state=planned)", [0]),
    ("state=planned or lr=1e-3 and bf16=true", [0, 2, 3]),
    ("((state=planned)) Or (step>60)", [0, 3]),
    ("not not state=planned", [3]),
    ("nothing=3", WRONG),
    ("(lr=1e-3", WRONG),
    ("lr=1e-3)", []),
    ("lr=1e-3 or", WRONG),
    ("and lr=1e-3", WRONG),
    ("=3", WRONG),
    ("lr=<1", WRONG),
    ("lr=>1", WRONG),
    ("!state=failed", WRONG),
    ("state=failed && lr=1e-3", WRONG),
    ("state=failed || lr=1e-3", WRONG),
    ("lr=", WRONG),
]
# Where runs are searched as one types, words alone are looked for.
SEARCHES: list[tuple[str, list[int] | None]] = [
    ("study/0-1,3", [0, 1, 3]),
    ("other/0", []),
    ("*/1", [1]),
    ("stu*", [0, 1, 2, 3]),
    ("study/2 or lr=3e-4", [1, 2, 3]),
    ("state=failed study/1", [1]),
    ("ADAM", [0, 1]),
    ("'ad*'", []),
    ("adamw not state=planned", [1]),
    ("(adam or study/3) attempts<2", [0, 3]),
]


def text(run: int) -> str:
    """The text of a run in which words are looked for."""
    return f"study/{run} {SWEPT[run]['config.opt.name']}"
