"""The files of a frozen environment, listed by where they lie and what they are called in it.

Of a virtual environment, or a Python in a place of its own, that is all below its prefix; of the
system's Python, the directories of packages on its import path. What the import path has besides
(packages outside, sources of editable installations, PYTHONPATH) follows in ``layers/N``, in the
order in which Python finds it. Links that leave a directory are copied as what they lead to.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import posixpath
import re
import stat
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcrun import ask_python
from hpcrun.errors import UsageError
from hpcrun.state.environment.environment_names import PYTHON, RECORD
from hpcrun.submission.python_probe import TIMEOUT, in_job_environment
from hpcrun.text import size

_PROGRAM = ask_python.program("""
import os, platform, sys, sysconfig
answer = {
    "executable": sys.executable,
    "base": getattr(sys, "_base_executable", "") or sys.executable,
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "version": "%d.%d.%d" % tuple(sys.version_info[:3]),
    "platform": " ".join([sysconfig.get_platform(), *platform.libc_ver()]),
    "paths": [path for path in sys.path if path[:1] == "/" and os.path.exists(path)],
    "standard": [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")],
    "scripts": sysconfig.get_path("scripts"),
    "packages": sysconfig.get_path("purelib"),
}
""")
_INNER = re.compile(
    rb"""'''exec' (?P<quote>"?)(?P<python>/.*/python[0-9.]*)(?P=quote) "\$0" "\$@"$"""
)
_SHEBANG = re.compile(rb"#!(?P<python>/[^ \n]*/python[0-9.]*)(?P<options>( [^\n]*)?)$")
# Of the form of an archive: another one is another environment.
_FORMAT = "1"
_CACHE = "__pycache__"
_SYSTEM = ("/", "/usr", "/usr/local")
# What a frozen environment has its own of, or does without.
_GENERATED = re.compile(r"python[0-9.]*|pyvenv\.cfg|[Aa]ctivate.*|deactivate.*")
# Of a Python in a place of its own: what conda keeps of other environments.
_OTHERS = ("envs", "pkgs")
_SCRIPT_MOST = 1 << 20
# Of a directory of sources.
_SOURCES_MOST, _SOURCES_BYTES = 20_000, 500_000_000
_FINDER = re.compile(r"(__editable___.+_finder)\.py")


@dataclass(frozen=True)
class PythonPlace:
    """The directories of a Python."""

    executable: str
    base: str
    """The Python that a virtual environment starts; the same without one."""
    prefix: str
    base_prefix: str
    version: str
    platform: str
    paths: tuple[str, ...]
    """The import path: what is there of ``sys.path``."""
    standard: tuple[str, ...]
    """The directories of the standard library."""
    scripts: str
    """``bin``."""
    packages: str
    """``site-packages``."""

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base_prefix


def ask_place(python: str, setup: Sequence[str], variables: Mapping[str, str]) -> PythonPlace:
    """Start a Python that `hpcrun.submission.python_probe` has probed, and ask it.

    Raises UsageError if it gives no answer.
    """
    argv, environment = in_job_environment([python, *_PROGRAM], setup, variables)
    found = ask_python.ask(argv, timeout=TIMEOUT, environment=environment)
    if found.data is not None:
        lists = {name: tuple(found.data[name]) for name in ("paths", "standard")}
        return PythonPlace(**{**found.data, **lists})
    late = f"no answer within {TIMEOUT:g} s"
    said = [late] if found.code is None else found.errors.strip().splitlines()[-1:]
    problem = f"environment.python: {python} does not say where its packages lie"
    raise UsageError(
        ": ".join([problem, *said]),
        hint="try it by hand, or leave out `environment.venv: frozen`",
    )


def _script_beside(content: bytes, directories: set[str]) -> bytes | None:
    """Return a script that starts the Python beside it; None if it starts none of these."""
    first, _, rest = content.partition(b"\n")
    options = b""
    if found := _SHEBANG.fullmatch(first.rstrip(b"\r")):
        options = found["options"]
    else:
        # Of a Python whose path is too long for the kernel, or has a space.
        second, _, rest = rest.partition(b"\n")
        found = _INNER.fullmatch(second)
        if found is None:
            return None
        _, _, rest = rest.partition(b"\n")
    python = os.fsdecode(found["python"])
    if posixpath.dirname(python) not in directories:
        return None
    name = os.fsencode(posixpath.basename(python))
    start = b"""#!/bin/sh\n'''exec' "$(dirname -- "$(realpath -- "$0")")/%s"%s "$0" "$@"\n' '''\n"""
    return start % (name, options) + rest


def _finder_mapping(finder: str) -> dict[str, str] | None:
    """Return module -> source of setuptools' finder of an editable installation."""
    with suppress(OSError, ValueError, SyntaxError, TypeError):
        tree = ast.parse(Path(finder).read_text(encoding="utf-8"))
        for node in tree.body:
            names = (
                [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            )
            if any(isinstance(one, ast.Name) and one.id == "MAPPING" for one in names):
                found = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                return {str(name): str(path) for name, path in dict(found).items()}
    return None


def _editables(path: str) -> Iterator[tuple[str, str]]:
    """Yield name and source of the editable installations in a directory of packages."""
    for record in sorted(Path(path).glob("*.dist-info/direct_url.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            data = json.loads(record.read_bytes())
            parts = urllib.parse.urlsplit(data["url"])
            if data["dir_info"].get("editable") is True and parts.scheme == "file":
                source = os.path.realpath(urllib.parse.unquote(parts.path))
                yield record.parent.name.partition("-")[0], source


@dataclass(frozen=True)
class FrozenFile:
    """One file or link."""

    name: str
    """In the archive."""
    source: str
    size: int
    mtime_ns: int
    is_program: bool = False
    link: str | None = None
    """The target of a symbolic link."""
    content: bytes | None = None
    """What takes the place of the source's."""


@dataclass(frozen=True)
class EnvironmentFiles:
    """All files of an environment, by name."""

    files: tuple[FrozenFile, ...]
    digest: str
    moved: Mapping[str, str]
    """As in `FrozenEnvironment`."""
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(one.size if one.content is None else len(one.content) for one in self.files)


def list_files(
    place: PythonPlace, without: Sequence[Path] = (), count: Callable[[int], object] = int
) -> EnvironmentFiles:
    """List the files of a Python's environment; nothing below ``without`` belongs to it.

    ``count`` is called with the number of files now and then.

    Raises UsageError if a file cannot be read, or a directory of sources holds too much.
    """
    try:
        return _Listing(place, without, count).listing()
    except OSError as error:
        raise UsageError(
            f"{error.filename or place.prefix}: cannot be frozen with the environment: "
            f"{error.strerror or error}",
            hint="make it readable, or leave out `environment.venv: frozen`",
        ) from None


class _Listing:
    def __init__(
        self, place: PythonPlace, without: Sequence[Path], count: Callable[[int], object]
    ) -> None:
        self._place, self._count = place, count
        self._without = {os.path.realpath(one) for one in without}
        self._files: dict[str, FrozenFile] = {}
        self._notes: list[str] = []
        # Real path of a directory -> where it is in the archive.
        self._places: dict[str, str] = {}
        self._is_whole = place.is_virtual or os.path.normpath(place.prefix) not in _SYSTEM
        self._python = "python" + ".".join(place.version.split(".")[:2])
        self._site = f"lib/{self._python}/site-packages"
        # Sources of editable installations that are frozen.
        self._sources: list[str] = []

    def listing(self) -> EnvironmentFiles:
        place = self._place
        if self._is_whole:
            prefix = os.path.realpath(place.prefix)
            self._places[prefix] = ""
            with suppress(ValueError):
                self._site = _below(place.packages, place.prefix)
            self._walk(prefix, "", self._is_of_prefix)
            self._rewrite_scripts()
        first = next((i for i, each in enumerate(place.paths) if self._is_standard(each)), 0)
        before, after = place.paths[:first], place.paths[first:]
        moved = {path: self._place_in_archive(path) for path in before}
        later = [self._place_in_archive(path) for path in after if not self._is_standard(path)]
        sites = [path for path in after if self._is_site(path)]
        for path in sites:
            self._settle_site(path)
        lines = [os.path.relpath(one, self._site) for one in later if one != self._site]
        self._add(f"{self._site}/hpcrun-environment.pth", "".join(f"{one}\n" for one in lines))
        if place.is_virtual or not self._is_whole:
            self._add_python()
        elif PYTHON not in self._files:
            own = posixpath.basename(place.executable)
            self._files[PYTHON] = FrozenFile(PYTHON, place.executable, 0, 0, link=own)
        self._add(RECORD, json.dumps({"moved": moved}, sort_keys=True))
        for path in (*before, *sites):
            self._look_for_editables(path)
        files = tuple(self._files[name] for name in sorted(self._files))
        return EnvironmentFiles(files, self._digest(files), moved, tuple(self._notes))

    def _digest(self, files: Sequence[FrozenFile]) -> str:
        place = self._place
        python = (os.path.realpath(place.base), place.version, place.platform)
        found = hashlib.sha256("\0".join([_FORMAT, *python]).encode(errors="surrogateescape"))
        for one in files:
            # What Python writes as it imports a module changes nothing.
            if _CACHE in one.name.split("/"):
                continue
            content = b"" if one.content is None else one.content
            stamp = (one.size, one.mtime_ns, one.is_program, one.link)
            found.update(f"\0{one.name}\0{stamp}\0".encode(errors="surrogateescape") + content)
        return found.hexdigest()

    def _is_standard(self, path: str) -> bool:
        real = os.path.realpath(path)
        standard = {os.path.realpath(one) for one in self._place.standard}
        is_dynamic = posixpath.basename(real) == "lib-dynload"
        return real in standard or (is_dynamic and posixpath.dirname(real) in standard)

    def _is_of_prefix(self, above: str, name: str) -> bool:
        if above:
            is_bin = above == _below(self._place.scripts, self._place.prefix)
            return not (is_bin and self._place.is_virtual and _GENERATED.fullmatch(name))
        if not self._place.is_virtual:
            return name not in _OTHERS
        return name != "pyvenv.cfg"

    @staticmethod
    def _is_site(path: str) -> bool:
        return posixpath.basename(path) in ("site-packages", "dist-packages")

    def _place_in_archive(self, path: str) -> str:
        """Return where a directory of the import path is in the archive, and list it once."""
        real = os.path.realpath(path)
        for above in (real, *map(str, Path(real).parents)):
            if above in self._places:
                return os.path.normpath(posixpath.join(self._places[above], _below(real, above)))
        name = self._places[real] = f"layers/{len(self._places)}"
        if posixpath.isfile(real):
            self._places[real] = f"{name}/{posixpath.basename(real)}"
            self._take(real, self._places[real], os.stat(real))
        elif self._is_site(path):
            self._walk(real, name, lambda above, each: True)
        else:
            self._sources.append(real)
            self._walk_sources(path, real, name)
        return self._places[real]

    def _walk_sources(self, path: str, real: str, name: str) -> None:
        before = len(self._files)

        def belongs(above: str, each: str) -> bool:
            if len(self._files) - before > _SOURCES_MOST:
                raise _too_much(path, f"more than {_SOURCES_MOST:,} files")
            there = f"{real}/{os.path.relpath(above, name)}/{each}"
            is_other = posixpath.exists(f"{there}/pyvenv.cfg") or each == _CACHE
            return not (each.startswith(".") or is_other)

        self._walk(real, name, belongs)
        own = [self._files[one].size for one in [*self._files][before:]]
        if sum(own) > _SOURCES_BYTES:
            raise _too_much(path, size(sum(own)))

    def _walk(
        self,
        directory: str,
        name: str,
        belongs: Callable[[str, str], bool],
        above: tuple[tuple[int, int], ...] = (),
        base: str | None = None,
    ) -> None:
        """List all files below a directory, where ``belongs`` says so of a name in a directory."""
        base = directory if base is None else base
        found = os.stat(directory)
        own = (found.st_dev, found.st_ino)
        if own in above or directory in self._without:
            return
        with os.scandir(directory) as unsorted:
            entries = sorted(unsorted, key=lambda one: one.name)
        for entry in entries:
            if not belongs(name, entry.name):
                continue
            each = f"{name}/{entry.name}".lstrip("/")
            if entry.is_symlink():
                if (target := _inner_link(entry.path, base)) is not None:
                    self._files[each] = FrozenFile(each, entry.path, 0, 0, link=target)
                    continue
                if not posixpath.exists(entry.path):
                    self._notes.append(f"{entry.path} is a link to nothing, and left out")
                    continue
            if entry.is_dir():
                self._walk(entry.path, each, belongs, (*above, own), base)
            else:
                self._take(entry.path, each, entry.stat())

    def _take(self, path: str, name: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            return
        is_program = bool(found.st_mode & stat.S_IXUSR)
        self._files[name] = FrozenFile(name, path, found.st_size, found.st_mtime_ns, is_program)
        if not len(self._files) % 1000:
            self._count(len(self._files))

    def _add(self, name: str, text: str | bytes) -> None:
        content = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        self._files[name] = FrozenFile(name, "", len(content), 0, content=content)

    def _add_python(self) -> None:
        base = os.path.realpath(self._place.base)
        home = posixpath.dirname(base)
        text = (
            f"home = {home}\ninclude-system-site-packages = false\n"
            f"version = {self._place.version}\n"
        )
        self._add("pyvenv.cfg", text)
        self._files[PYTHON] = FrozenFile(PYTHON, base, 0, 0, link=base)
        for name in ("python3", self._python):
            self._files[f"bin/{name}"] = FrozenFile(f"bin/{name}", base, 0, 0, link="python")

    def _rewrite_scripts(self) -> None:
        """Have the scripts start the Python beside them."""
        scripts = _below(self._place.scripts, self._place.prefix)
        mine = {self._place.scripts, os.path.realpath(self._place.scripts)}
        for name, one in [*self._files.items()]:
            is_script = posixpath.dirname(name) == scripts and one.link is None
            if not is_script or one.size > _SCRIPT_MOST:
                continue
            with open(one.source, "rb") as stream:
                if stream.read(2) != b"#!":
                    continue
                stream.seek(0)
                content = stream.read()
            if (relative := _script_beside(content, mine)) is not None:
                self._files[name] = replace(one, is_program=True, content=relative)

    def _settle_site(self, path: str) -> None:
        """Settle the ``.pth`` files of a site directory, and editable installations of setuptools.

        The directories that they name are in ``hpcrun-environment.pth``; what they import stays.
        """
        where = self._place_in_archive(path)
        finders: set[str] = set()
        for name in [one for one in self._files if posixpath.dirname(one) == where]:
            if found := _FINDER.fullmatch(posixpath.basename(name)):
                mapping = _finder_mapping(self._files[name].source)
                if mapping is None:
                    continue
                finders.add(found[1])
                del self._files[name]
                for module, source in mapping.items():
                    self._take_module(module, source, where)
        for name in [one for one in self._files if posixpath.dirname(one) == where]:
            if not name.endswith(".pth"):
                continue
            one = self._files.pop(name)
            with open(one.source, encoding="utf-8", errors="surrogateescape") as stream:
                lines = [line for line in stream if line.startswith(("import ", "import\t"))]
            kept = [line for line in lines if not any(finder in line for finder in finders)]
            if kept:
                own = posixpath.basename(name)
                if where != self._site:
                    own = f"hpcrun-{where.replace('/', '-')}-{own}"
                self._add(f"{self._site}/{own}", "".join(kept))

    def _take_module(self, module: str, source: str, where: str) -> None:
        name = f"{where}/{module.replace('.', '/')}"
        self._sources.append(os.path.realpath(source))
        if posixpath.isdir(source):
            self._walk_sources(source, os.path.realpath(source), name)
        else:
            _, suffix = posixpath.splitext(source)
            self._take(source, name + suffix, os.stat(source))

    def _look_for_editables(self, path: str) -> None:
        """Note the editable installations whose sources are read where they are."""
        for name, source in _editables(path):
            inside = any(f"{one}/".startswith(f"{source}/") for one in self._sources)
            inside = inside or any(f"{source}/".startswith(f"{one}/") for one in self._places)
            if not inside:
                self._notes.append(
                    f"{name} is installed in a way that reads {source} itself: it is not frozen "
                    f"(`pip install {source}` without -e has it frozen)"
                )


def _too_much(path: str, what: str) -> UsageError:
    return UsageError(
        f"{path} is on the import path of the job's Python, outside its packages, and holds {what}",
        hint="freeze it as a package: `pip install DIRECTORY` without -e; or take it off the path",
    )


def _below(path: str, above: str) -> str:
    """Return a path relative to one above it; raise ValueError if it is not below."""
    for one, other in ((path, above), (os.path.realpath(path), os.path.realpath(above))):
        if f"{one}/".startswith(f"{other.rstrip('/')}/"):
            return os.path.relpath(one, other)
    raise ValueError(f"{path} is not below {above}")


def _inner_link(path: str, base: str) -> str | None:
    """Return the target of a link that stays in ``base``, wherever that lies; None of others."""
    target = os.readlink(path)  # noqa: PTH115 - thousands of them
    if target.startswith("/"):
        return None
    there = os.path.normpath(posixpath.join(posixpath.dirname(path), target))
    real = os.path.realpath(path)
    inside = all(f"{one}/".startswith(f"{base}/") for one in (there, real))
    return target if inside and posixpath.exists(path) else None
