"""Search of all that hpcrun says: pages, keys of specs and profiles, commands, and messages.

``hpcrun help WORDS`` asks it. What is pasted (a reason of Slurm's, an error) is recognised as `why`
would; all else is found in passages: a paragraph or a row of a page, a key, a command. They are
ranked by BM25 (Robertson and Zaragoza, 2009), with the words of their headings.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import NamedTuple

from hpcrun.cli import commands, known_messages
from hpcrun.compile.target import deepspeed_keys

# BM25's saturation of a word that is repeated, and the part of a passage's length that counts.
_K1, _B = 1.2, 0.6
# How much more than in the text a word counts in a heading, and in a key or a command's names.
_HEADING, _NAME = 3, 4
# A passage that has few of the words that were asked for is worth less, by this power of its part.
_COVERAGE = 2.0
# What a word's other name counts beside the word that was typed.
_SYNONYM = 0.8
# How alike a key has to be to one that was typed.
_NEARLY = 0.85
_SPECS, _GLOSSARY = "hpcrun help specs", "hpcrun help glossary"
_WHAT_IS = re.compile(
    r"(?:what (?:is|are|does)|explain) (?:(?:an?|the) )?(.+?)(?: do| mean)? ?\??", re.IGNORECASE
)
_WORD = re.compile(r"[a-z0-9]+(?:[._][a-z0-9]+)*")
_STOP_WORDS = """
a an and another are as ask at be by can could do does eight every first for four from get give gets
have how i if in is it its just many me much my need not number of often on once one or our out
please should so some than that the their them then there this to two up use used using want was way
we what when where which who why will with without would you your
"""
STOP = frozenset(_STOP_WORDS.split())
# A word of people who know other programs -> words of hpcrun's own pages, with blanks between.
SYNONYMS = {
    "abort": "cancel",
    "argparse": "args flags argument",
    "autocomplete": "completes schema editor",
    "bandwidth": "links measures doctor",
    "bayes": "bayesian search sweep",
    "bayesian": "bayesian search sweep",
    "blacklist": "exclude bad",
    "bool": "boolean flags",
    "elastic": "another number ranks",
    "evaluate": "evaluator evaluation",
    "finetune": "initialize_from weights",
    "fsdp": "parallelism divided ranks",
    "inherit": "extends",
    "inode": "inodes quota files",
    "login": "shell node",
    "mac": "laptop",
    "macbook": "laptop",
    "multirun": "sweep",
    "plugin": "extending package",
    "preemptable": "preemption",
    "preemptible": "preemption",
    "resize": "another number ranks",
    "settings": "keys extends",
    "spot": "preemption",
    "student": "group",
    "user": "colleague",
    "vscode": "editor schema",
    "alter": "update change",
    "accuracy": "results metrics",
    "activate": "conda environment.python",
    "afterok": "afterok depends_on",
    "alert": "notify mail",
    "api": "python hpcrun.submit api",
    "archive": "export",
    "array": "sweep max_parallel",
    "broken": "bad node fail",
    "budget": "cost price prices",
    "callback": "notify",
    "charge": "account",
    "ckpt": "checkpoint",
    "colleague": "group share",
    "colleagues": "group share",
    "concurrent": "max_parallel",
    "conda": "environment.setup environment.python conda",
    "config": "config spec",
    "convert": "convert from-sbatch weights",
    "core": "cpus_per_task",
    "cores": "cpus_per_task",
    "cpus": "cpus_per_task",
    "crash": "fail",
    "crashed": "fail",
    "csv": "results csv",
    "curves": "report curves",
    "debug": "local run",
    "dependencies": "depends_on",
    "dependency": "depends_on",
    "die": "fail why",
    "died": "fail why",
    "dies": "dies lost",
    "disk": "disk clean",
    "docker": "container image",
    "email": "notify mail",
    "env": "environment variables",
    "epoch": "epoch step",
    "error": "error message why",
    "errors": "errors message",
    "everything": "all experiments",
    "extend": "change",
    "faq": "questions",
    "fit": "fit estimate",
    "folder": "directory",
    "format": "spec",
    "free": "clean delete",
    "gpus": "gpus_per_node",
    "gres": "gpus_per_node gpu_type",
    "grid": "sweep",
    "group": "group share",
    "hang": "hang stacks",
    "hung": "hang stacks",
    "hydra": "hydra key=value flags",
    "hyperparameter": "sweep",
    "interactive": "shell exec",
    "interface": "interface fabric",
    "job": "run job",
    "jobs": "run job",
    "keys": "specs keys",
    "kill": "cancel",
    "killed": "end fail",
    "laptop": "local without",
    "launch": "torchrun submit",
    "limit": "limit time max_parallel",
    "lmod": "module",
    "locally": "local without",
    "lr": "learning rate",
    "mail": "notify mail",
    "memory": "memory mem",
    "miniconda": "conda",
    "module": "environment.setup module",
    "modules": "environment.setup module",
    "money": "cost price",
    "monitor": "status top",
    "most": "most max_parallel",
    "multi": "nodes",
    "multinode": "nodes",
    "nnodes": "resources.nodes",
    "notebook": "python",
    "notification": "notify",
    "notify": "notify mail",
    "nvidia": "nvidia-smi exec GPU",
    "oom": "out_of_memory memory",
    "optuna": "sweep",
    "output": "logs output",
    "overrides": "overrides key=value flags",
    "parallel": "max_parallel parallel",
    "pd": "pending",
    "pending": "pending waits reason",
    "pip": "environment python packages",
    "plot": "report",
    "pretrained": "initialize_from",
    "printed": "logs rank",
    "progress": "status progress",
    "pytorch": "torch framework",
    "queue": "pending queued",
    "ray": "framework",
    "reference": "specs keys",
    "remove": "delete clean",
    "rerun": "requeue",
    "restart": "requeue restart",
    "resume": "resume checkpoint",
    "retry": "requeue",
    "sacct": "status why",
    "renice": "update nice priority",
    "scontrol": "update requeue show",
    "timelimit": "update resources.time time",
    "save": "save checkpoint",
    "scancel": "cancel",
    "search": "search sweep",
    "secret": "secrets_file",
    "sinfo": "check doctor",
    "singularity": "apptainer container",
    "slack": "notify command",
    "slow": "slow profile",
    "squeue": "status",
    "srun": "run",
    "ssd": "own disk",
    "stderr": "logs",
    "stdout": "logs",
    "stop": "cancel stop",
    "stored": "root",
    "stuck": "stuck hang",
    "submitit": "submit sbatch",
    "table": "results",
    "tail": "logs follow",
    "take": "take estimate",
    "threads": "cpus_per_task",
    "timeout": "time time_limit",
    "token": "secrets tokens secrets_file",
    "tokens": "secrets tokens secrets_file",
    "track": "tracking",
    "uncommitted": "uncommitted code",
    "utilisation": "telemetry gpu top",
    "utilization": "telemetry gpu top",
    "uv": "environment python venv uv",
    "venv": "environment.python venv",
    "virtualenv": "environment.python venv",
    "wait": "pending waits",
    "walltime": "resources.time time",
    "yaml": "spec YAML",
    "begin": "begin sbatch",
    "hold": "hold held",
    "jupyter": "notebook",
    "quota": "quota disk clean",
    "salloc": "salloc shell run allocation",
    "diverges": "diverge nan spike",
    "diverge": "nan spike",
    "upgrade": "upgrade pip",
    "workstation": "local",
    "preempted": "preemption",
    "hf_home": "HF_HOME cache environment.variables",
    "home": "home root directory",
    "port": "port MASTER_PORT",
    "zero": "deepspeed zero_optimization",
}
# Several words that are one -> that word.
PHRASES = {
    "fine-tune": "finetune",
    "log in": "login",
    "multi-run": "multirun",
    "w&b": "wandb",
}

# What an answer is worth beside others, by its topic: those first that say what to type.
WORTH = {
    **dict.fromkeys(("questions", "recipes"), 1.7),
    **dict.fromkeys(("architecture", "extending", "glossary", "processes", "security"), 0.6),
    **dict.fromkeys(("checkpoints", "observing", "records", "recovery-rules", "python"), 0.8),
}


class Passage(NamedTuple):
    """A paragraph, a row, a key or a command: what is shown, and where it stands."""

    title: str
    text: str
    where: str
    """The command that shows all around it."""
    names: str = ""
    """Words by which it is known, beside those of title and text."""


def answers(words: str, pages: Mapping[str, str], most: int = 5) -> list[Passage]:
    """Return the passages that answer a question, the best first; none where no word is found.

    ``pages`` are those of the documentation, by topic, as Markdown.
    """
    told = _of_message(words)
    asked = _asked(words)
    index = _Index([*_of_commands(), *_of_pages(pages)])
    scores: dict[int, float] = {}
    met: dict[int, set[int]] = {}
    for place, group in enumerate(asked):
        best: dict[int, float] = {}
        for number, word in enumerate(group):
            # What was typed counts more than what it is called here.
            own = _SYNONYM if number else 1.0
            for one, part in index.weights(word):
                best[one] = max(best.get(one, 0.0), own * part)
        for one, part in best.items():
            scores[one] = scores.get(one, 0.0) + part
            met.setdefault(one, set()).add(place)

    def worth(one: int) -> float:
        topic = index.passages[one].where.removeprefix("hpcrun help ")
        coverage = math.pow(len(met[one]) / len(asked), _COVERAGE)
        return scores[one] * coverage * WORTH.get(topic, 1.0)

    ranked = sorted(scores, key=worth, reverse=True)
    # A key, a command or a word of the glossary that was typed as it stands was asked for.
    typed = words.strip()
    asked_of = _WHAT_IS.fullmatch(typed)
    typed = asked_of[1] if asked_of else typed
    known = [one for one in index.passages if typed and one.names == typed]
    if asked_of:
        known += [one for one in index.passages if one.title == f"hpcrun {typed}"]
        known.sort(key=lambda one: (one.where != _GLOSSARY, not one.title.startswith("hpcrun ")))
    key = next(iter(known), None)
    key = key or _nearest_key(typed, index.passages)
    found: dict[str, Passage] = {}
    for passage in (told, key, *(index.passages[one] for one in ranked)):
        if passage is not None:
            found.setdefault(passage.title, passage)
    return [*found.values()][:most]


def _nearest_key(typed: str, passages: Sequence[Passage]) -> Passage | None:
    """Return what to write for a key that there is not; None for words that look like none."""
    keys = {one.names: one for one in passages if one.names == one.title and "." in one.names}
    keys |= {one.names: one for one in passages if one.names in ("deepspeed", "config")}
    head = typed.removeprefix("deepspeed.").split(".")[0]
    is_deepspeed = head in deepspeed_keys.TOP_LEVEL and (head != typed or "_" in head)
    if is_deepspeed and head not in {one.split(".")[0] for one in keys}:
        text = keys["deepspeed"].text
        return Passage(
            f"A key of DeepSpeed's: {typed}", f"It stands in `deepspeed`. {text}", _SPECS
        )
    if not re.fullmatch(r"\w+(?:\.\w+)+", typed):
        return None
    block = typed.rpartition(".")[0]
    title = f"There is no key {typed}"
    if block in keys and keys[block].text.startswith("mapping"):
        return Passage(f"{typed}, in {block}", keys[block].text, _SPECS)
    if near := get_close_matches(typed, keys, n=1, cutoff=_NEARLY):
        return Passage(title, f"Did you mean `{near[0]}`? {keys[near[0]].text}", _SPECS)
    if names := sorted(one for one in keys if one.startswith(f"{block}.")):
        return Passage(title, f"`{block}` has {', '.join(names)}.", _SPECS)
    return None


def _asked(words: str) -> list[list[str]]:
    """Return the words that say something, each with what else it may be called."""
    every = _words(_as_one(words))
    found = []
    for word in [one for one in every if one not in STOP and not one.isdecimal()] or every:
        parts = re.split(r"[._]", word) if re.search(r"[._]", word) else []
        known = [SYNONYMS.get(one, SYNONYMS.get(_singular(one), "")) for one in (word, *parts)]
        others = map(stem, [*_words(" ".join(known)), *parts])
        found.append([*dict.fromkeys([stem(word), *others])])
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _as_one(words: str) -> str:
    """Return what was typed in small letters, with each of `PHRASES` as one word."""
    for phrase, word in PHRASES.items():
        words = re.sub(rf"\b{phrase}\b", word, words.lower())
    return words


def _singular(word: str) -> str:
    return word.removesuffix("s")


@functools.cache
def stem(word: str) -> str:
    """Return a word without the endings of English: queue, queued and queueing are one."""
    for ending in ("ing", "ion", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            word = word.removesuffix(ending)
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    return word.removesuffix("e") if len(word) > 3 else word


class _Index:
    """All passages, and where each word is."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self._counts: dict[str, dict[int, float]] = {}
        lengths = []
        for number, one in enumerate(passages):
            counts: Counter[str] = Counter()
            length = 0
            for text, worth in ((one.text, 1), (one.title, _HEADING), (one.names, _NAME)):
                for word in _words(text):
                    # "not" would be found where "note" is asked for.
                    for part in {word, *re.split(r"[._]", word)} - {"not"}:
                        counts[stem(part)] += worth
                    length += 1
            lengths.append(length)
            for word, count in counts.items():
                self._counts.setdefault(word, {})[number] = count
        mean = sum(lengths) / max(1, len(lengths))
        self._norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]

    def weights(self, word: str) -> Iterator[tuple[int, float]]:
        """Yield each passage that has a word, and what it counts there."""
        places = self._counts.get(word, {})
        rarity = math.log(1 + (len(self.passages) - len(places) + 0.5) / (len(places) + 0.5))
        for number, count in places.items():
            yield number, rarity * count * (_K1 + 1) / (count + self._norms[number])


def _of_commands() -> Iterator[Passage]:
    for name, one in commands.known().items():
        examples = "\n".join(f"{line}  # {what}" for line, what in one.examples.items())
        text = f"{one.about}\n{examples}"
        yield Passage(f"hpcrun {name}", text, f"hpcrun help {name}", f"{name} {one.other_names}")


def _of_pages(pages: Mapping[str, str]) -> Iterator[Passage]:
    for topic, text in pages.items():
        blocks = _blocks(text)
        if topic == "recipes":  # what to type, and what happens when it is wrong, are one answer
            sections = groupby(blocks, key=lambda one: one[0])
            blocks = ((name, "\n".join(block for _, block in some)) for name, some in sections)
        for number, (headings, block) in enumerate(blocks):
            yield from _passages(block, headings, topic, is_first=number < 2)


def _of_message(words: str) -> Passage | None:
    """Return the meaning of a message that was pasted: a reason of Slurm's, or an error."""
    if found := known_messages.explained(words):
        return Passage(*found)
    return None


def _passages(
    block: str, headings: Sequence[str], topic: str, *, is_first: bool
) -> Iterator[Passage]:
    """Yield a paragraph of a page, or the rows of a table, under its headings."""
    # In these a heading is all the name that is needed.
    alone = topic in ("questions", "recipes", "commands") and len(headings) > 1
    title = headings[-1] if alone else ": ".join(headings) or topic
    where = f"hpcrun help {topic}"
    rows = [line for line in block.splitlines() if line.startswith("|")]
    if len(rows) > 2:
        group = ""
        for row in rows[2:]:
            one, group = _of_row(row, title, where, group)
            yield one
    else:
        yield Passage(title, block, where, title if alone else topic if is_first else "")


def _of_row(row: str, title: str, where: str, group: str) -> tuple[Passage, str]:
    """Return a row's passage, and its first cell: where that is empty, ``group``, the one above."""
    cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    key = cells[0].strip("`")
    if re.fullmatch(r"[a-z_A-Z]+(?:\.[a-z_A-Z]+)*", key) and len(cells) == 4:
        default = f", by default {cells[2].strip('`')}" if cells[2] else ""
        return Passage(key, f"{cells[1]}{default}. {cells[3]}", where, key), key
    if not key:
        cells[:2] = [f"{group} {cells[1]}"]
        key = cells[0]
    else:
        group = key
    return Passage(f"{title}: {key}", ". ".join(filter(None, cells[1:])), where, key), group


def _blocks(page: str) -> Iterator[tuple[list[str], str]]:
    """Yield what stands between blank lines, under its headings; fences are not divided."""
    headings: list[str] = []
    block: list[str] = []
    is_code = False
    for line in [*page.splitlines(), ""]:
        is_code ^= line.startswith("```")
        heading = None if is_code else re.match(r"(#+) (.*)", line)
        if is_code or (line.strip() and not heading):
            block.append(line)
            continue
        if block:
            yield headings, "\n".join(block)
            block = []
        if heading:
            headings = [*headings[: len(heading[1]) - 1], heading[2].replace("`", "").strip()]


def as_text(markdown: str) -> str:
    """Return Markdown without the addresses of its links and the signs of its fences."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    lines = [line for line in text.splitlines() if not line.startswith("```")]
    return "\n".join(lines).replace("**", "").replace("`", "")
