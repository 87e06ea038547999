"""Files that commands write, and what commands that change the tree leave of it."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.frozen.desk import Answer, Case, Desk


def _run(desk: Desk, words: str) -> tuple[Case, Answer]:
    case = Case(tuple(words.split()))
    return case, desk.run(case)


def _report(words: str) -> Callable[[Desk], str]:
    def write(desk: Desk) -> str:
        case, answer = _run(desk, f"report {words} -o @/out/page.html")
        # The root's own path is in the page, so its size differs from place to place.
        said = re.sub(r"\d+ kB", "N kB", answer.text(case))
        return said + desk.page(desk.directory / "out" / "page.html")

    return write


def _export(words: str) -> Callable[[Desk], str]:
    def write(desk: Desk) -> str:
        case, answer = _run(desk, f"export {words} -o @/out/all.tar.gz -q")
        return answer.text(case) + desk.members(desk.directory / "out" / "all.tar.gz")

    return write


def _changed(*commands: str) -> Callable[[Desk], str]:
    def change(desk: Desk) -> str:
        parts = []
        before = set(desk.names("root"))
        for words in commands:
            case, answer = _run(desk, words)
            parts.append(answer.text(case))
        after = set(desk.names("root"))
        parts += [f"- {name}" for name in sorted(before - after)]
        parts += [f"+ {name}" for name in sorted(after - before)]
        return "\n".join(parts) + "\n"

    return change


# Name of the file of expectations -> what gives it, on a desk of its own.
FILES: dict[str, Callable[[Desk], str]] = {
    "a_report_of_study.html.txt": _report("study study-wide torn-drill"),
    "a_report_of_half.html.txt": _report("half measure"),
    "an_export_of_study.txt": _export("study"),
    "an_export_of_half_with_logs.txt": _export("half doomed --logs"),
    "a_clean_of_study.txt": _changed(
        "clean study torn-drill half --yes --logs",
        "clean study torn-drill --yes --logs",
        "status study torn-drill",
        "logs study/0",
    ),
    "a_clean_of_all.txt": _changed(
        "clean study --yes --checkpoints all", "requeue study/4 --dry-run"
    ),
    "a_cancel_of_what_waits.txt": _changed(
        "cancel long study --yes", "cancel half/5-6 --yes", "status half"
    ),
    "a_submit_without_slurm.txt": _changed("submit half.yaml", "list", "submit chain.yaml"),
}
