"""The commands of a script: each changes the walk's state, or is the program that is looked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, is_environment, of_command
from hpcrun.convert.script.inner_launch import ASSIGNMENT, FILTERS, MOST_CALLS, LaunchWalk
from hpcrun.convert.script.walk_state import AssignedName, WrittenDocument, shell_word
from hpcrun.convert.shell.shell_syntax import ShellBlock, ShellCommand, ShellNode, parse
from hpcrun.convert.shell.shell_tokens import ShellSyntaxError
from hpcrun.convert.shell.shell_values import MARK, MOST_TEXT

_HOOK = re.compile(r"\"?[$`].*(?:\bhook\b|conda shell\.|ssh-agent).*[)`]\"?", re.DOTALL)
_DEFAULT = re.compile(r"\"?\$\{([A-Za-z_]\w*):?=.*\}\"?", re.DOTALL)
CHANGE = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))(?:(.*)\)\))?",
    re.DOTALL,
)
_STRAY = frozenset(
    {
        *("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case"),
        *("esac", "{", "}", "(", ")", "select", ";;", "function"),
    }
)


class CommandWalk(LaunchWalk):
    """Does what simple commands do to the state."""

    def _command(self, node: ShellCommand, before: ShellNode | None) -> None:
        self._reads = set()
        raw = node.words[node.words[:1] == ["!"] :]
        assignments: list[re.Match[str]] = []
        while raw and (found := ASSIGNMENT.fullmatch(raw[0])):
            assignments.append(found)
            raw.pop(0)
        if not raw:
            self._assign(node, assignments)
            return
        if raw[0] in ("export", "declare", "typeset", "readonly", "local"):
            self._export(node, raw)
            return
        words = [word for one in raw for word in self._expander.words(one)]
        if not words:
            self._say(node, NOT_NEEDED, "it is an empty command as the script stands")
            return
        first = PurePath(words[0]).name or words[0]
        if before is not None and node.joined.startswith("|") and node.joined != "||":
            kept = self.result.fates.get(id(before))
            starts = kept is not None and kept[1].what == "a program"
            if starts and first in FILTERS:
                self._say(node, NOT_NEEDED, "the output of ranks is kept; see `hpcrun logs`")
                return
        if words[0] == ":" and (defaults := [_DEFAULT.fullmatch(one) for one in raw[1:]]):
            self._defaults(node, [one for one in defaults if one])
            return
        if words[0] in _STRAY:
            what = "it belongs to a block that is not closed: bash would not read this script"
            self._say(node, LEFT, what, "correct it")
            return
        if words[0].startswith("((") and (change := CHANGE.search(words[0])):
            self._change(node, change)
            return
        if words[0].startswith(("[", "((")):
            self._say(node, NOT_NEEDED, "it is a condition, which changes nothing")
            return
        self._document(node)
        name = "_" + first.replace(".", "dot") if first in (".", "source") else f"_do_{first}"
        if first in (".", "source"):
            self._source_file(node, words)
        elif words[0] in self._functions:
            self._call(node, words)
        elif (do := getattr(self, name.replace("-", "_"), None)) is not None:
            do(node, words)
        elif is_environment(words):
            self._setup(node, words)
        elif (
            first == "conda"
            or first in ("mamba", "micromamba")
            or (first == "activate" and len(words) > 1)
        ):
            self._conda(node, words)
        else:
            pairs = {one[1]: self._expander.text(one[4]) for one in assignments}
            self._start(node, words, pairs)

    def _assign(self, node: ShellCommand, assignments: Sequence[re.Match[str]]) -> None:
        if not assignments:
            self._say(node, NOT_NEEDED, "it only redirects the script's own output")
            return
        for found in assignments:
            self._reads = set()
            self._set(node, found)
        names = ", ".join(found[1] for found in assignments)
        self._say(node, "", names)

    def _defaults(self, node: ShellCommand, defaults: Sequence[re.Match[str]]) -> None:
        """Follow ``: ${NAME:=default}``."""
        for found in defaults:
            self._reads = set()
            self.result.variables[found[1]] = self._expander.text(found[0])
            reads = frozenset(self._reads - {found[1]})
            self.result.assigned[found[1]] = AssignedName(node, reads)
        self._say(node, "", ", ".join(found[1] for found in defaults))

    def _set(self, node: ShellNode, found: re.Match[str]) -> None:
        name, index, adds, raw = found.groups()
        value: str | list[str]
        if raw.startswith("(") and raw.endswith(")"):
            parsed = parse(raw[1:-1].replace("\n", " "))
            inner = [one for one in parsed.nodes if isinstance(one, ShellCommand)]
            value = [w for one in inner for r in one.words for w in self._expander.words(r)]
        else:
            value = self._expander.text(raw)
        old = self.result.variables.get(name)
        if adds and old is not None:
            if isinstance(old, list):
                value = [*old, *(value if isinstance(value, list) else [value])]
            elif isinstance(value, str):
                value = (old + value)[:MOST_TEXT]
            self._reads.add(name)
        if index is not None and isinstance(value, str):
            at = self._expander.number(index[1:-1])
            items = list(old) if isinstance(old, list) else [old] if old else []
            if at is not None and 0 <= at < 10_000:
                items += [""] * (at + 1 - len(items))
                items[at] = value
            value = items
        before = self.result.assigned.get(name)
        reads = frozenset(self._reads)
        if before is not None:
            self.result.earlier.append((name, before))
            if name in reads:
                reads |= before.reads
        self.result.variables[name] = value
        self.result.assigned[name] = AssignedName(node, reads)

    def _export(self, node: ShellCommand, raw: Sequence[str]) -> None:
        exports = raw[0] == "export" or any(re.fullmatch(r"-\w*x\w*", one) for one in raw[1:])
        names = []
        for one in raw[1:]:
            self._reads = set()
            if one.startswith("-"):
                continue
            if found := ASSIGNMENT.fullmatch(one):
                self._set(node, found)
                names.append(found[1])
            elif re.fullmatch(r"[A-Za-z_]\w*", one):
                names.append(one)
        for name in names:
            if exports:
                self.result.exported[name] = node
        self._say(node, "", ", ".join(names))

    def _document(self, node: ShellCommand) -> None:
        """Keep what a here-document writes to a file."""
        bodies = [one for one in node.redirects if one.body is not None]
        files = [one for one in node.redirects if one.operator in (">", ">|") and one.target]
        if bodies and files:
            body = bodies[-1].body or ""
            text = body if bodies[-1].is_literal else self._expander.document(body)
            name = self._expander.text(files[-1].target)
            self.result.documents[name] = WrittenDocument(text, node, frozenset(self._reads))

    def _setup(self, node: ShellCommand, words: Sequence[str]) -> None:
        """Keep a line for environment.setup."""
        if self._loops or self._is_inner:
            self._say(node, LEFT, "it stands in a loop", "write it into environment.setup")
            return
        text = self.result.unknowns.shown(" ".join(map(shell_word, words)))
        self.result.setup.append((text, node))
        self._say(node, CARRIED, "environment.setup")

    def _raw_setup(self, node: ShellNode) -> None:
        """Keep a line for environment.setup as it is written."""
        lines = self._source[node.line - 1 : node.last]
        self.result.setup.append(("\n".join(lines).strip(), node))
        self._say(node, CARRIED, "environment.setup")

    def _source_file(self, node: ShellCommand, words: Sequence[str]) -> None:
        if len(words) < 2:
            self._say(node, NOT_NEEDED, "it names no file")
            return
        path = self._from_here(words[1]) if "/" in words[1] or "." in words[1] else words[1]
        if path == "activate" and len(words) > 2:
            self._conda(node, words)
            return
        is_venv = path.endswith("/bin/activate") and len(words) == 2
        if is_venv and not self.result.unknowns.of(path):
            self.result.python = path.removesuffix("activate") + "python"
            self._say(node, CARRIED, "environment.python")
            return
        if is_venv:
            self.result.python = path.removesuffix("activate") + "python"
        self._setup(node, [words[0], path, *words[2:]])

    def _from_here(self, path: str) -> str:
        """Return a path as the script's directory has it."""
        here = self._directory[-1]
        is_absolute = path.startswith(("/", "~")) or MARK.match(path) or here == "."
        return path if is_absolute else f"{here}/{path}"

    def _conda(self, node: ShellCommand, words: Sequence[str]) -> None:
        if "deactivate" in words[:2]:
            if not self.result.programs:
                self._setup(node, words)
            else:
                self._say(node, NOT_NEEDED, "the job ends with the program")
        elif "activate" in words[:2] or words[0] == "activate":
            self.result.python = None
            self._setup(node, words)
        else:
            how = "make the environment once, before `hpcrun submit`"
            self._say(node, LEFT, "an environment is not made by each job", how)

    def _do_cd(self, node: ShellCommand, words: Sequence[str]) -> None:
        target = next((one for one in words[1:] if not one.startswith("-")), None)
        here = self._directory[-1]
        submitted = target is not None and "SLURM_SUBMIT_DIR" in "".join(node.words)
        if target is None:
            target = self._previous if words[1:] == ["-"] else "~"
        elif target == "." and not submitted:
            target = here
        elif not submitted:
            target = self._from_here(target)
        self._directory[-1], self._previous = target, here
        if target == here:
            self._say(node, NOT_NEEDED, "ranks run at the place of the spec's directory")
        else:
            self._say(node, CARRIED, "the paths of the spec", None)

    def _do_read(self, node: ShellCommand, words: Sequence[str]) -> None:
        names = [one for one in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", one)]
        self._forget(names, node)
        self._say(
            node, LEFT, "what it reads, only a job can tell", "write the values into the spec"
        )

    def _do_shift(self, node: ShellCommand, words: Sequence[str]) -> None:
        if self._arguments is None:
            what = "the script's own arguments are key=value of `hpcrun submit`"
            self._say(node, NOT_NEEDED, what)
            return
        count = self._expander.number(words[1]) if len(words) > 1 else 1
        if count is None:
            raise ShellSyntaxError("by how many, only a job can tell", node.line)
        self._arguments = self._arguments[max(count, 0) :]
        self._say(node, CARRIED, "what the function does")

    def _change(self, node: ShellCommand, change: re.Match[str]) -> None:
        """Follow ``((i++))`` and ``((i += 2))``; others make the name unknown."""
        before, name, operator, rest = change.groups()
        name = before or name
        number = None
        if change.start() == len(change.string) - len(change.string[2:].lstrip()):
            by = rest if operator and operator.endswith("=") else "1"
            how = (operator or change[0][:1])[:1].replace("=", "")
            number = self._expander.number(f"{name} {how} ({by})" if how else by)
        self._forget([name], node)
        if number is None:
            self._say(node, LEFT, f"how it changes {name} is not followed", "write its value")
            return
        self.result.variables[name] = str(number)
        self._say(node, "", name)

    def _do_pushd(self, node: ShellCommand, words: Sequence[str]) -> None:
        self._directory.append(self._directory[-1])
        self._do_cd(node, words)

    def _do_popd(self, node: ShellCommand, words: Sequence[str]) -> None:
        if len(self._directory) > 1:
            self._directory.pop()
        self._say(node, NOT_NEEDED, "it goes back to the directory before")

    def _do_trap(self, node: ShellCommand, words: Sequence[str]) -> None:
        if len(words) > 2:
            inner = parse(words[1])
            names = {one.words[0] for one in inner.nodes if isinstance(one, ShellCommand)}
            self._handlers |= names
            self._forwarded(inner.nodes)
        self._say(node, NOT_NEEDED, "hpcrun hears the signals, saves and requeues (recovery)")

    def _do_eval(self, node: ShellCommand, words: Sequence[str]) -> None:
        text = " ".join(words[1:])
        if _HOOK.fullmatch(" ".join(node.words[1:])):
            self._raw_setup(node)
            return
        self._inner(node, text, {})

    def _do_unset(self, node: ShellCommand, words: Sequence[str]) -> None:
        for name in words[1:]:
            self.result.variables.pop(name, None)
            self.result.exported.pop(name, None)
        if all(name.startswith("SLURM") for name in words[1:]):
            self._say(node, NOT_NEEDED, "hpcrun gives srun its own variables")
            return
        self._setup(node, words)

    def _handler(self, nodes: Sequence[ShellNode]) -> None:
        """Note what the handler of a trap does."""
        self._forwarded(nodes)
        for node in nodes:
            if isinstance(node, ShellBlock):
                for condition, body in node.branches:
                    self._handler([*condition, *body])
                continue
            words = [self.result.unknowns.shown(self._expander.text(one)) for one in node.words]
            fate = of_command(words, hosts=False) if words else None
            if fate is not None and fate[0] == LEFT:
                hint = "a program that hears recovery.stop_signal can do it before it ends"
                self._say(node, LEFT, "hpcrun runs no command as a job is stopped", hint)

    def _forwarded(self, nodes: Sequence[ShellNode]) -> None:
        """Find the signal that a handler sends to the program."""
        for node in nodes:
            if isinstance(node, ShellCommand) and node.words[:1] in (["kill"], ["scancel"]):
                text = " ".join(node.words)
                found = re.search(
                    r"(?:-s |--signal[= ]|-)(?:SIG)?(TERM|USR1|USR2|INT|CONT)\b", text
                )
                self.result.stop_signal = f"SIG{found[1]}" if found else "SIGTERM"

    def _call(self, node: ShellCommand, words: Sequence[str]) -> None:
        name = words[0]
        self._called.add(name)
        self._calls += 1
        before = self._arguments
        if self._calls <= MOST_CALLS:
            self._arguments = list(words[1:])
            self._say(self._functions[name], CARRIED, f"what {name} does, where it is called")
            self._say(node, CARRIED, f"what the function {name} does")
            self._nodes(self._functions[name].branches[0][1])
        self._arguments = before
        self._calls -= 1
