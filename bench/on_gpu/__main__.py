"""Everything that waits for a GPU, in one command of at most 8 minutes.

    python -m bench.on_gpu [--output bench/results] [--only PART,PART] [--minutes 7.5]
    python -m bench.on_gpu --gather DIR [--python-version 3.12]   where there is a network
    python -m bench.on_gpu --install-from DIR …                    where there is none

The parts with most worth come first; each has its own time, and the results (on_gpu-CARD.json and
.txt) are written as they come. Without a GPU all parts run with tiny sizes, to see that they do:
their figures are none of a GPU. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Of all parts together; with start and end, less than eight.
MINUTES = 7.5
RESULTS = Path(__file__).parent.parent / "results"
NO_GPU = "none here: all ran on processors, with tiny sizes; no figure below is one of a GPU"


def parts(desk: Any, only: Sequence[str] = ()) -> list[tuple[Any, Callable[[Any], None]]]:
    """Return all parts, those of most worth first, and what does each."""
    from bench.on_gpu import commands, hurt, loop, speed
    from bench.on_gpu.record import Part

    asked = desk.sizes.models if not only or "speed" in only else {}
    # Processors are slow, and busy with other things too.
    patience = 1 if desk.card.on_gpu else 4
    estimates = speed.Estimates(desk, asked, sorted({1, *desk.sizes.stages}))
    table: list[tuple[str, str, int, Callable[[Any], None]]] = [
        ("training", "bf16, ZeRO stages side by side, each with a killed rank", 90,
         partial(hurt.training, desk)),
        ("speed", "MFU of the causal model, compiled too; memory beside estimate", 150,
         partial(speed.bf16, desk, estimates=estimates)),
        ("out of memory", "told as such, and the micro batch halved", 60,
         partial(hurt.out_of_memory, desk)),
        ("loop", "hpcrun's loop and a bare script that reads its losses, by turns", 60,
         partial(loop.loop, desk)),
        ("fp8", "MFU with linear layers in fp8, compiled", 90, partial(speed.fp8, desk)),
        ("save", "checkpoints behind the training", 50, partial(commands.save, desk)),
        ("fully_shard", "FSDP2 beside ZeRO 1: MFU, compiled too, memory, saves", 110,
         partial(speed.fully_shard, desk)),
        ("profile", "hpcrun profile", 45, partial(commands.profile, desk)),
        ("tune", "hpcrun tune", 75, partial(commands.tune, desk)),
    ]  # fmt: skip
    return [(Part(name, about, seconds * patience), work) for name, about, seconds, work in table]


def measure(options: argparse.Namespace) -> int:
    """Do all parts; return 1 if one failed, which the results tell too."""
    from bench.on_gpu import record
    from bench.on_gpu.card import Card
    from bench.on_gpu.desk import desk
    from bench.publish import circumstances

    card = Card.here()
    if not card.on_gpu and (options.output is None or _same(options.output, RESULTS)):
        raise SystemExit(
            f"{'--output: ' if options.output else ''}there is no GPU here: name a directory other "
            f"than {RESULTS} by --output, as these figures are none of a GPU"
        )
    output = options.output or RESULTS
    minutes = options.minutes or (MINUTES if card.on_gpu else 4 * MINUTES)
    setting = circumstances(gpu=card.name if card.on_gpu else NO_GPU, **card.setting())
    with tempfile.TemporaryDirectory() as directory, desk(Path(directory), card) as laid:
        made = record.Record(output, f"on_gpu-{card.slug}", setting, 60 * minutes)
        wanted = parts(laid, options.only)
        names = [part.name for part, _ in wanted]
        if unknown := set(options.only) - {*names}:
            raise SystemExit(f"--only: no part {', '.join(unknown)}; there are {', '.join(names)}")
        made.parts = [part for part, _ in wanted if part.name in options.only or not options.only]
        for part, work in wanted:
            if part in made.parts:
                made.run(part, work)
                setting["adam"] = laid.adam.told
        made.write()
    print("\n".join(made.text()))
    return int(any(part.state in (record.FAILED, record.CUT) for part in made.parts))


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _leave(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Gather, install, or measure."""
    parser = argparse.ArgumentParser(
        prog="bench.on_gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="directory of the results (bench/results)")
    parser.add_argument("--only", default=[], type=lambda text: text.split(","), metavar="PART,…")
    parser.add_argument("--minutes", type=float, help=f"of all parts ({MINUTES})")
    parser.add_argument("--gather", type=Path, metavar="DIR", help="put wheels there, and end")
    here = ".".join(map(str, sys.version_info[:2]))
    parser.add_argument("--python-version", default=here, help=f"of the other machine ({here})")
    parser.add_argument("--install-from", type=Path, metavar="DIR", help="what --gather put there")
    options = parser.parse_args()
    from bench.on_gpu import packages

    if options.gather:
        packages.gather(options.gather, options.python_version)
        return
    if options.install_from:
        site = packages.install(options.install_from)
        words = [word for word in sys.argv[1:] if word != "--install-from"]
        words = [word for word in words if word != str(options.install_from)]
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(site), os.environ.get("PYTHONPATH")])
        )
        os.execv(  # noqa: S606
            sys.executable, [sys.executable, "-m", "bench.on_gpu", *words]
        )
    if lacking := packages.lacking():
        raise SystemExit(packages.told(lacking))
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(measure(options))


if __name__ == "__main__":
    main()
