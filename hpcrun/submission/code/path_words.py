"""What in a word, a value or a text may be a path, and whether it is one to be read.

Pure. A path that the program itself writes is not missed where it is not there: keys, flags and
names of directories tell (`is_output`). A word without a slash or a dot, such as ``train``, is
mostly no path: its key has to say so (`says_path`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

_LONGEST = 1_000
_SEPARATORS = re.compile(r"[=,;:\s'\"\[\]()]+")
# Where the rest of a path is filled in later: a glob, a brace, a format, a variable.
_OPEN = re.compile(r"[*?{%$<\\]")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_VARIABLE = re.compile(r"\$\{[^{}]*\}/?|\$\w+/")

_WRITTEN_TEXT = """
out output outputs save saves log logs logging logger result results run runs work workdir cache
tmp temp scratch wandb mlflow mlruns tensorboard tb trace traces profile export dest destination
dump report reports artifact artifacts exp experiment experiments multirun figures plots
"""
_WRITTEN = frozenset(_WRITTEN_TEXT.split())
_SAVES = frozenset({"checkpoint", "checkpoints", "ckpt", "ckpts", "snapshot", "snapshots"})
_READ_TEXT = """
data dataset datasets input inputs model tokenizer init resume from load pretrained source src
corpus vocab restore weights images
"""
_READ = frozenset(_READ_TEXT.split())
_NAMES = frozenset(
    {
        *("name", "names", "type", "mode", "split", "key", "keys", "column", "class", "format"),
        *("kind", "fqn", "prefix", "suffix", "tag", "label", "title"),
    }
)
# What is read even though its key says that something is saved: ``init_from``, ``load_run``.
_READ_FIRST = frozenset({"init", "resume", "from", "load", "pretrained", "input", "restore"})
_PATHS_TEXT = """
dir directory path paths root file files folder filename filenames fname
"""
_PATHS = frozenset(_PATHS_TEXT.split())


def in_word(word: str, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield keys and what may be paths of one argument or value: ``--flag=PATH``, ``[a,b]``."""
    yield key, word
    name, equals, value = word.partition("=")
    if equals and name.strip():
        key, word = name, value
    if word and (equals or _SEPARATORS.search(word)):
        yield from ((key, piece) for piece in _SEPARATORS.split(word) if piece)


def in_words(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the same of arguments in their order, each with the flag before it as its key."""
    flag = ""
    for word in words:
        if len(inner := word.split()) > 1:
            # A shell's script of `sh -c`.
            yield from in_words(piece.strip("'\"") for piece in inner)
        elif word.startswith("-") and "=" not in word:
            flag = word.lstrip("-")
            continue
        else:
            yield from in_word(word.lstrip("-"), flag)
        flag = ""


def in_text(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and word of a shell's script or a file of settings."""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(?:^|\s)#.*", "", line)
        words = _VARIABLE.sub("", line).split()
        if words and (found := re.match(r"\"?([\w.-]+)\"?\s*[:=]$", " ".join(words[:1]))):
            yield from ((number, found[1], piece) for w in words[1:] for _, piece in in_word(w))
        else:
            yield from ((number, *pair) for pair in in_words(words))


def cleaned(text: str) -> str | None:
    """Return a relative path as it may lie here; None for what is none.

    Of a path that is filled in later, the directories before that.
    """
    if not text or len(text) > _LONGEST or not text.isprintable() or "://" in text:
        return None
    if found := _OPEN.search(text):
        text = text[: found.start()].rpartition("/")[0]
    path = str(PurePosixPath(text)) if text else ""
    is_plain = path not in ("", ".", "..") and not path.startswith(("/", "-", "~"))
    return path if is_plain else None


def words_of(key: str) -> frozenset[str]:
    """Return the words of a key: ``outputDir`` and ``--output_dir`` have ``output`` and ``dir``."""
    return frozenset(word.lower() for word in _WORD.findall(key))


def says_path(key: str, *, surely: bool = False) -> bool:
    """Return whether the value of a key is a path, even where it looks like any other word.

    ``surely``: that of ``model_name`` is none, although some give it one.
    """
    words = words_of(key)
    if surely and words & _NAMES and not words & _PATHS:
        return False
    return not words.isdisjoint(_PATHS | _READ | _SAVES)


def is_bare(path: str) -> bool:
    """Return whether a path looks like any other word."""
    return "/" not in path.rstrip("/") and "." not in path


def is_output(key: str, path: str, *, is_directory: bool) -> bool:
    """Return whether the program writes there, as its key says, or its name."""
    words = words_of(key)
    if words & _READ_FIRST:
        return False
    if words & _WRITTEN or (words & _SAVES and is_directory):
        return True
    names: Sequence[str] = PurePosixPath(path).parts
    if words & _READ or not is_directory:
        return False
    return any(words_of(name) & (_WRITTEN | _SAVES) for name in (names[0], names[-1]))
