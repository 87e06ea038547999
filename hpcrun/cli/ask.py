"""Search of all that hpcrun says: pages, keys of specs and profiles, commands, and messages.

``hpcrun help WORDS`` asks it. What is pasted (a reason of Slurm's, an error) is recognised as `why`
would; all else is found in passages: a paragraph or a row of a page, a key, a command. They are
ranked by BM25 (Robertson and Zaragoza, 2009), with the words of their headings.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from hpcrun.cli import commands, known_messages
from hpcrun.cli.asked_words import ASKED_FOR, PHRASES, STOP, SYNONYMS, WORTH
from hpcrun.compile.target import deepspeed_keys

# BM25's saturation of a word that is repeated, and the part of a passage's length that counts.
_K1, _B = 4.0, 0.6
# How much more than in the text a word counts in a heading, a key or a command's names, and in
# `ASKED_FOR`.
_HEADING, _NAME, _ASKED = 3, 4, 2
# What a word's other name counts beside the word that was typed.
_SYNONYM = 0.8
# How alike a key has to be to one that was typed.
_NEARLY = 0.85
# How alike a word of the pages has to be to one that is typed and that they lack.
_ALIKE = 0.8
_SPECS, _GLOSSARY = "hpcrun help specs", "hpcrun help glossary"
_WHAT_IS = re.compile(
    r"(?:what (?:is|are|does)|explain) (?:(?:an?|the) )?(.+?)(?: do| mean)? ?\??", re.IGNORECASE
)
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[a-z0-9]+(?:[._][a-z0-9]+)*")


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
    told = known_messages.explained(words)
    index = _Index(passages(pages))
    asked = _telling_words(words, index)
    scores: dict[int, float] = {}
    met: dict[int, float] = {}
    for group in asked:
        best: dict[int, float] = {}
        for number, word in enumerate(group):
            # What was typed counts more than what it is called here.
            own = _SYNONYM if number else 1.0
            for one, part in index.weights(word):
                best[one] = max(best.get(one, 0.0), own * part)
        for one, part in best.items():
            scores[one] = scores.get(one, 0.0) + part
            met[one] = met.get(one, 0.0) + index.rarity(group[0])
    all_asked = sum(index.rarity(group[0]) for group in asked)

    def worth(one: int) -> float:
        topic = index.passages[one].where.removeprefix("hpcrun help ")
        # What has few of the words that were asked for is worth less.
        return scores[one] * met[one] / all_asked * WORTH.get(topic, 1.0)

    ranked = sorted(scores, key=worth, reverse=True)
    # A key, a command or a word of the glossary that was typed as it stands was asked for.
    typed = words.strip()
    asked_of = _WHAT_IS.fullmatch(typed)
    typed = asked_of[1] if asked_of else typed
    known = [one for one in index.passages if typed and one.names == typed]
    known = known or _of_name(typed, index.passages)
    if not (known or index.has(typed)):
        near = get_close_matches(typed, commands.own_commands(), n=1, cutoff=_ALIKE)
        known = [one for one in index.passages if one.title in [f"hpcrun {name}" for name in near]]
    if asked_of:
        known += [one for one in index.passages if one.title == f"hpcrun {typed}"]
        known.sort(key=lambda one: (one.where != _GLOSSARY, not one.title.startswith("hpcrun ")))
    key = known[0] if known else _nearest_key(typed, index.passages)
    found: dict[str, Passage] = {}
    message = Passage(*told) if told else None
    for passage in (message, key, *(index.passages[one] for one in ranked)):
        if passage is not None:
            found.setdefault(passage.title, passage)
    return [*found.values()][:most]


def _of_name(typed: str, passages: Sequence[Passage]) -> list[Passage]:
    """Return the passages named by a key without its block, an option of sbatch's or a variable.

    A word without a sign or capitals is none: ``output`` may be meant otherwise.
    """
    if not re.fullmatch(r"-*[\w-]+", typed) or not re.search(r"[-_A-Z]", typed):
        return []
    option = typed.lstrip("-")
    key = option.replace("-", "_")
    keys = [one for one in passages if one.names == one.title and one.names.endswith(f".{key}")]
    keys.sort(key=lambda one: (not one.names.startswith("resources."), one.names.count(".")))
    return keys or [one for one in passages if option in re.split(r"[`,; ]+", one.names)]


def passages(pages: Mapping[str, str]) -> list[Passage]:
    """Return all that is searched."""
    return [*_of_commands(), *_of_pages(pages)]


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


def _telling_words(words: str, index: _Index) -> list[list[str]]:
    """Return the words that say something, each with what else it may be called.

    One that no page has, nor `SYNONYMS`, is taken for the word that it is nearly; two that are one
    word there (warm up, data set) for that one, too.
    """
    for phrase, word in PHRASES.items():
        words = re.sub(rf"\b{phrase}\b", word, words.lower())
    every = _words(words)
    pairs = {one: one + after for one, after in itertools.pairwise(every)}
    found = []
    for word in [one for one in every if one not in STOP and not one.isdecimal()] or every:
        parts = re.split(r"[._]", word) if re.search(r"[._]", word) else []
        if len(word) > 3 and not _DIGIT.search(word) and not (index.has(word) or _meaning(word)):
            # Of those that are alike the one that pages have most is meant.
            near = get_close_matches(word, [*index.words, *SYNONYMS], n=5, cutoff=_ALIKE)
            word = min(near, key=lambda one: index.rarity(stem(one)), default=word)
        pair = pairs.get(word, "")
        parts += [pair] if index.has(pair) or _meaning(pair) else []
        others = [*_words(" ".join(map(_meaning, (word, *parts)))), *parts]
        found.append([*dict.fromkeys(map(stem, (word, *others)))])
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _meaning(word: str) -> str:
    return SYNONYMS.get(word) or SYNONYMS.get(word.removesuffix("s"), "")


@functools.cache
def _parts(word: str) -> frozenset[str]:
    """Return a word, and the words of a name with points."""
    # "not" would be found where "note" is asked for.
    return frozenset((word, *re.split(r"[._]", word))) - {"not"}


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
        self.words: set[str] = set()
        lengths = []
        for number, one in enumerate(passages):
            counts: Counter[str] = Counter()
            length = 0
            also = ASKED_FOR.get(one.title, "")
            of_all = ((one.text, 1), (one.title, _HEADING), (one.names, _NAME), (also, _ASKED))
            for text, worth in of_all:
                for word in _words(text):
                    for part in _parts(word):
                        counts[stem(part)] += worth
                        self.words.add(part)
                    length += 1
            lengths.append(length)
            for word, count in counts.items():
                self._counts.setdefault(word, {})[number] = count
        mean = sum(lengths) / max(1, len(lengths))
        self._norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]

    def weights(self, word: str) -> Iterator[tuple[int, float]]:
        """Yield each passage that has a word, and what it counts there."""
        rarity = self.rarity(word)
        for number, count in self._counts.get(word, {}).items():
            part = count * (_K1 + 1) / (count + self._norms[number])
            yield number, rarity * part

    def has(self, word: str) -> bool:
        return stem(word) in self._counts

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency of a word: higher, the fewer passages have it."""
        having = len(self._counts.get(word, {}))
        return math.log(1 + (len(self.passages) - having + 0.5) / (having + 0.5))


def _of_commands() -> Iterator[Passage]:
    for name, one in commands.own_commands().items():
        examples = "\n".join(f"{line}  # {what}" for line, what in one.examples.items())
        text = f"{one.about}\n{examples}"
        yield Passage(f"hpcrun {name}", text, f"hpcrun help {name}", f"{name} {one.other_names}")


def _of_pages(pages: Mapping[str, str]) -> Iterator[Passage]:
    for topic, text in pages.items():
        blocks = _blocks(text)
        if topic == "recipes":  # what to type, and what happens when it is wrong, are one answer
            sections = itertools.groupby(blocks, key=lambda one: one[0])
            blocks = ((name, "\n".join(block for _, block in some)) for name, some in sections)
        for number, (headings, block) in enumerate(blocks):
            yield from _passages(block, headings, topic, is_first=number < 2)


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
        yield from _of_rows(rows[2:], title, where)
    else:
        yield Passage(title, block, where, title if alone else topic if is_first else "")


def _of_rows(rows: Sequence[str], title: str, where: str) -> Iterator[Passage]:
    """Yield the passages of rows; a first cell that is empty stands for the one above."""
    group = ""
    for row in rows:
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        key = cells[0].strip("`")
        group = key or group
        if re.fullmatch(r"[a-z_A-Z]+(?:\.[a-z_A-Z]+)*", key) and len(cells) == 4:
            default = f", by default {cells[2].strip('`')}" if cells[2] else ""
            yield Passage(key, f"{cells[1]}{default}. {cells[3]}", where, key)
            continue
        if not key:
            cells[:2] = [f"{group} {cells[1]}"]
            key = cells[0]
        yield Passage(f"{title}: {key}", ". ".join(filter(None, cells[1:])), where, key)


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
