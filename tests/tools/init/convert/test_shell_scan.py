"""What of a script are commands, whatever quotes, expansions and documents it has."""

from __future__ import annotations

import time

import pytest

from hpcrun.tools.init.convert.shell_scan import ShellScript


def commands(text: str) -> list[list[str]]:
    """The words of each command, as they are written; of assignments the names."""
    found = ShellScript(text)
    assert found.problem is None
    return [[word.raw for word in one.words] or list(one.assigned) for one in found.commands]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a b; c 'd e'", [["a", "b"], ["c", "'d e'"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("a &&\n b || c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("X=1 Y='a b' srun p", [["srun", "p"]]),
        ("hosts=( $(scontrol show) )\nn=${#hosts[@]}", [["hosts"], ["n"]]),
        ("if [ -f x ]; then a; else b; fi\nc", [["[", "-f", "x", "]"], ["a"], ["b"], ["c"]]),
        ("for x in if then; do a $x; done; b", [["a", "$x"], ["b"]]),
        ("for ((i=0; i<3; i++)); do a; done\nb", [["a"], ["b"]]),
        ("while read x; do a; done < f\nb", [["read", "x"], ["a"], ["b"]]),
        ("case $1 in\n a|b) c;;\n (d) e ;;\n *) esac=1; f\nesac\ng", None),
        ("f() { a; }\nfunction g { b; }\nc", [["a"], ["b"], ["c"]]),
        ("[[ a && b || ( c < d ) ]] && e", [["e"]]),
        ("(( x = 1 && 2 )); a", [["a"]]),
        ("( a; b ) > f\nc", [["a"], ["b"], ["c"]]),
        ('a "$(b \'c)\' "d)")" `e ;f`', [["a", '"$(b \'c)\' "d)")"', "`e ;f`"]]),
        ("a <<E\nsrun x\nE\nb", [["a"], ["b"]]),
        ("a <<-'E' && b\n\tx $(\n\tE\nc", [["a"], ["b"], ["c"]]),
        ("a <<< 'b c'\nd", [["a"], ["d"]]),
        ("v=$(a <<E\n)\nE\n)\nb", [["v"], ["b"]]),
        ("a ${x:-'}'} ${y//\\}/b} $'it\\'s' $((1 + (2)))\nb", None),
        ("a <(b; c) >(d)", [["a", "<(b; c)", ">(d)"]]),
        ("diff 2>&1 >/dev/null", [["diff", "2"]]),
        ("time srun a\n! b", [["srun", "a"], ["b"]]),
        ("echo fi done esac }", [["echo", "fi", "done", "esac", "}"]]),
    ],
)
def test_commands(text: str, wanted: list[list[str]] | None) -> None:
    found = commands(text)
    assert found[-1] in (["b"], ["g"]) if wanted is None else found == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'a\nb", "line 1: a quote ' is not closed"),
        ('a\necho "b $(c', "no ')' ends this"),
        ("if a; then b", "line 1: no 'fi' ends this"),
        ("a\nfi", "line 2: 'fi' closes nothing"),
        ("a )", "')' closes nothing"),
        ("cat <<E\nx", "no line ends the here-document 'E'"),
        ("a ${b", "no '}' ends '{'"),
        ("$(" * 100, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, words: str) -> None:
    assert words in str(ShellScript(text).problem)


@pytest.mark.parametrize(
    "text", ["a & b", "a | b", "a && b", "if a; then b; fi", "(a)", "f() { a; }"]
)
def test_more_than_one_plain_command_is_not_simple(text: str) -> None:
    assert ShellScript(text).statements[0].simple is None


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "x ",
        '"$a" ',
        "$(a) ",
        "`a` ",
        "\\\n",
        "f() { :; }; ",
        "${a:-'x'}",
        "( ",
        '"$(',
        "<<E ",
        "'",
    ],
)
def test_a_megabyte_takes_no_seconds(unit: str) -> None:
    text = "#!/bin/bash\n" + unit * (1_000_000 // len(unit)) + "\n"
    begun = time.process_time()
    ShellScript(text)
    assert time.process_time() - begun < 3


def test_what_a_script_reads_from_outside() -> None:
    found = ShellScript('a $B "${C:-d}" \'$E\' ${F}\necho $1\ndirname "$0"')
    assert found.reads == {"B": (1, False), "C": (1, True), "F": (1, False)}
    assert (found.positional, found.own_path) == ([2], [3])
