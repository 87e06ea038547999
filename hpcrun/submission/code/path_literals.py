"""What may be a path to be read in words, values and texts, and in a program's own texts.

Pure. A path that the program itself writes is not missed where it is not there: keys, flags and
names of directories tell (`is_output`). A word without a slash or a dot, such as ``train``, is
mostly no path: its key has to say so (`says_path`).

Of a program (`read`) these are defaults, constants, parts of paths that it joins. Files are parsed,
nothing is executed. A text counts by where it stands: in ``open(…)``, in a ``join``, as a default
of an option, under a name that says that it is a path. What the program writes itself
(``makedirs``, ``save``, ``open(…, "w")``) does not count.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from hpcrun.shared_dataclass import dataclass, field, replace

_LONGEST_PATH = 1_000
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
_NAMES_TEXT = """
name names type mode split key keys column class format kind fqn prefix suffix tag label title
"""
_NAMES = frozenset(_NAMES_TEXT.split())
# What is read even though its key says that something is saved: ``init_from``, ``load_run``.
_READ_FIRST = frozenset({"init", "resume", "from", "load", "pretrained", "input", "restore"})
_PATH_KEYS_TEXT = "dir directory path paths root file files folder filename filenames fname"
_PATH_KEYS = frozenset(_PATH_KEYS_TEXT.split())

# Of a text in a program.
_LONGEST = 255
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)"
    r"|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
_WRITERS_TEXT = """
makedirs mkdir save savez savefig save_pretrained save_to_disk save_checkpoint save_file dump
to_csv to_json to_parquet to_pickle to_excel write_text write_bytes imwrite imsave rmtree remove
unlink touch SummaryWriter FileHandler RotatingFileHandler basicConfig CSVLogger WandbLogger
TensorBoardLogger ModelCheckpoint
"""
_WRITERS = frozenset(_WRITERS_TEXT.split())
# Of them, methods of a path.
_OF_PATHS = frozenset({"mkdir", "open", "touch", "unlink", "write_bytes", "write_text"})
# Calls whose first arguments are paths.
_READERS_TEXT = """
open str abspath realpath normpath expanduser fspath exists isdir isfile is_dir is_file listdir
scandir walk glob iglob rglob load loadtxt genfromtxt memmap fromfile read_csv read_json
read_parquet read_text read_bytes from_pretrained load_from_disk load_dataset ImageFolder
DatasetFolder safe_load imread safe_open load_file File
"""
_READERS = frozenset(_READERS_TEXT.split())
# The path is that of the call around them.
_THROUGH = frozenset({"str", "abspath", "realpath", "normpath", "expanduser", "fspath"})
_JOINS = frozenset({"join", "joinpath", "Path", "PurePath", "PosixPath"})
# Calls whose second argument holds where the first one names nothing.
_WITH_DEFAULT = frozenset({"get", "getenv", "pop"})
_ROOTS = re.compile(
    r"_?(?:here|root|base|project|repo|this|(?:get)?cwd)(?:_?(?:dir|path|root))?", re.IGNORECASE
)


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


def clean(text: str) -> str | None:
    """Return a relative path as it may lie here; None for what is none.

    Of a path that is filled in later, the directories before that.
    """
    if not text or len(text) > _LONGEST_PATH or not text.isprintable() or "://" in text:
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
    if surely and words & _NAMES and not words & _PATH_KEYS:
        return False
    return not words.isdisjoint(_PATH_KEYS | _READ | _SAVES)


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


@dataclass(frozen=True)
class PathLiteral:
    """A text of a program that may be a path."""

    text: str
    line: int
    key: str
    """Its name there: of an option, a parameter, a variable; empty where it has none."""
    option: bool = False
    """It is what holds where the command line says nothing else."""
    is_anchored: bool = False
    """It counts from where the program lies, or from its root, and not from where it starts."""


@dataclass
class ProgramText:
    """What a Python file names."""

    literals: list[PathLiteral] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    """Texts of paths that it writes."""


@dataclass(frozen=True)
class _Place:
    """Where in a program an expression stands."""

    key: str = ""
    is_path: bool = False
    writes: bool = False
    option: bool = False
    is_anchored: bool = False


@functools.lru_cache(maxsize=64)
def read(source: bytes) -> ProgramText:
    """Read a Python file; raise SyntaxError, ValueError or RecursionError if it is none."""
    tree = ast.parse(source)
    reader = _Reader({*_written_names(tree)})
    reader.visit(tree, _Place())
    return reader.found


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Yield the modules that a Python file may import, with the number of dots before each."""
    for dots, base, names, plain in _IMPORT.findall(source):
        for name in (plain or names).strip("()").split(","):
            module = name.split()[0] if name.split() else ""
            if plain:
                yield 0, module
            elif module.isidentifier():
                yield len(dots), f"{base}.{module}".lstrip(".")
        if base:
            yield len(dots), base


class _Reader:
    def __init__(self, written: set[str]) -> None:
        self.found, self._written = ProgramText(), written

    def visit(self, node: ast.AST, at: _Place) -> None:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self._take(node.value, node.lineno, at)
        elif isinstance(node, ast.JoinedStr):
            self._take_start(node, at)
        elif isinstance(node, ast.Call):
            self._call(node, at)
        elif isinstance(node, ast.BinOp):
            self._binary(node, at)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name = key.value if isinstance(key, ast.Constant) else None
                self.visit(value, self._place_of(name if isinstance(name, str) else ""))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None:
                self.visit(node.value, self._place_of(_name(targets[-1]), option=True))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._function(node)
        elif isinstance(node, ast.Subscript):
            self.visit(node.value, _Place())
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        elif not isinstance(node, ast.Compare):
            is_same_place = isinstance(node, (ast.IfExp, ast.BoolOp, ast.List, ast.Tuple))
            for child in ast.iter_child_nodes(node):
                self.visit(child, at if is_same_place else _Place())

    def _place_of(self, name: str, *, option: bool = False) -> _Place:
        return _Place(name, says_path(name, surely=True), name in self._written, option)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        given = node.args
        plain = [*given.posonlyargs, *given.args]
        pairs = [*zip(plain[len(plain) - len(given.defaults) :], given.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d]
        for parameter, default in pairs:
            self.visit(default, self._place_of(parameter.arg, option=True))
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in (*getattr(node, "decorator_list", ()), *body):
            self.visit(child, _Place())

    def _call(self, node: ast.Call, at: _Place) -> None:
        name = _name(node.func)
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value, replace(at, writes=at.writes or _is_writer(node)))
        if name in ("add_argument", "option", "Option", "Argument"):
            self._option(node)
            return
        if name in _JOINS:
            base = [node.func.value] if name == "joinpath" else []  # type: ignore[attr-defined]
            self._join([*base, *node.args], node.lineno, at)
            return
        writes = _is_writer(node) or (name in _THROUGH and at.writes)
        inner = replace(
            at if name in _THROUGH or name in ("field", *_WITH_DEFAULT) else _Place(),
            is_path=_is_reader(name) or (name in ("field", *_WITH_DEFAULT) and at.is_path),
            writes=writes,
        )
        for argument in node.args[name in _WITH_DEFAULT :]:
            self.visit(argument, inner)
        for word in node.keywords:
            own = self._place_of(word.arg or "")
            default = word.arg in ("default", "default_factory")
            place = replace(at, option=True) if default and name == "field" else own
            self.visit(word.value, replace(place, writes=place.writes or writes))

    def _option(self, node: ast.Call) -> None:
        """Take the default of an option of argparse or click, under the option's name."""
        names = [one.value for one in node.args if isinstance(one, ast.Constant)]
        key = max(
            (name.lstrip("-") for name in names if isinstance(name, str)), key=len, default=""
        )
        for word in node.keywords:
            if word.arg == "default":
                self.visit(word.value, self._place_of(key.replace("-", "_"), option=True))

    def _join(self, parts: list[ast.expr], line: int, at: _Place) -> None:
        """Take a path of several parts: as far as it is known from where the program lies."""
        known = []
        is_anchored = bool(parts) and _is_place(parts[0])
        for index, part in enumerate(parts):
            value = part.value if isinstance(part, ast.Constant) else None
            if isinstance(value, str) and value:
                known.append(value)
            elif index or not is_anchored:
                break
        if known and (len(known) + 1 >= len(parts) or not at.writes):
            place = replace(at, is_path=True, is_anchored=is_anchored)
            self._take("/".join(known), line, place)
        for part in parts:
            if not isinstance(part, ast.Constant):
                self.visit(part, at)

    def _binary(self, node: ast.BinOp, at: _Place) -> None:
        if isinstance(node.op, ast.Div):
            self._join(_parts_of(node), node.lineno, at)
            return
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
            self._take_start(node.left, at)
            self.visit(node.right, replace(at, is_path=False))
            return
        self.visit(node.left, at)
        self.visit(node.right, at)

    def _take_start(self, node: ast.JoinedStr | ast.Constant, at: _Place) -> None:
        """Take the directories that a text begins with which goes on with what is not known."""
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        value = first.value if isinstance(first, ast.Constant) else None
        if at.is_path and isinstance(value, str) and (start := value.rpartition("/")[0]):
            self._take(start, node.lineno, at)

    def _take(self, text: str, line: int, at: _Place) -> None:
        if len(text) > _LONGEST or "\n" in text:
            return
        if at.writes:
            self.found.written.add(text.rstrip("/"))
        elif at.is_path or not is_bare(text):
            self.found.literals.append(PathLiteral(text, line, at.key, at.option, at.is_anchored))


def _parts_of(node: ast.expr) -> list[ast.expr]:
    """Return the parts of ``Path("a") / b / "c"``: ``"a"``, ``b``, ``"c"``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [*_parts_of(node.left), node.right]
    if isinstance(node, ast.Call) and _name(node.func) in _JOINS and len(node.args) == 1:
        return [node.args[0]]
    return [node]


def _is_place(node: ast.expr) -> bool:
    """Check whether an expression seems to be where the program lies, or starts."""
    names = {_name(one) for one in ast.walk(node)}
    return "__file__" in names or any(map(_ROOTS.fullmatch, names))


def _name(node: ast.AST) -> str:
    """Return the last name of a variable, an attribute or a call's function; else ""."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def _is_reader(name: str) -> bool:
    return name in _READERS or not words_of(name).isdisjoint(("load", "read", "open"))


def _is_writer(node: ast.Call) -> bool:
    name = _name(node.func)
    if name != "open":
        return name in _WRITERS
    modes = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
    if isinstance(node.func, ast.Attribute):
        modes += node.args[:1]  # Path.open
    texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
    return any(re.fullmatch(r"[rbtU]*[wax+][rwaxbt+]*", text) for text in texts)


def _written_names(tree: ast.AST) -> Iterator[str]:
    """Yield the variables that calls write to: ``os.makedirs(out_dir)``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _is_writer(node):
            continue
        name = _name(node.func)
        given = [*node.args, *(word.value for word in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            owner = _name(node.func.value)
            if name in ("save", "dump") and owner not in ("np", "numpy", "jnp"):
                given = given[1:]  # the first is what is saved
            if name in _OF_PATHS:
                given.append(node.func.value)
        yield from filter(None, map(_name, given))
