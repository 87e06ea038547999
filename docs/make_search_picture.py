"""Write docs/images/search.svg: a real search of a plain script on this machine, in three minutes.

python docs/make_search_picture.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).with_name("images")
sys.path.insert(0, str(IMAGES.parent.parent))

from hpcrun.observe.read.selection import Finder  # noqa: E402 - not before the line above
from hpcrun.tools.report import report, search_charts  # noqa: E402
from tests.support import command  # noqa: E402

# Logistic regression on made points, by gradient descent with momentum.
PROGRAM = """\
import argparse, math, random, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--momentum", type=float)
given = parser.parse_args()
draw = random.Random(0)
true = [draw.gauss(0, 2) for _ in range(8)]
points = [[draw.gauss(0, 1) for _ in true] for _ in range(400)]
dot = lambda one, other: sum(a * b for a, b in zip(one, other))
chance = lambda z: 1 / (1 + math.exp(-max(-30.0, min(30.0, z))))
labels = [draw.random() < chance(dot(true, point)) for point in points]
weights, speed = [0.0] * len(true), [0.0] * len(true)
for step in range(1, 28):
    chances = [chance(dot(weights, point)) for point in points]
    loss = -sum(math.log(p if label else 1 - p) for p, label in zip(chances, labels)) / len(points)
    print(f"step {step} loss {loss:.5f}", flush=True)
    for at in range(len(weights)):
        slope = sum((p - label) * point[at] for p, label, point in zip(chances, labels, points))
        speed[at] = given.momentum * speed[at] - given.lr * slope / len(points)
        weights[at] += speed[at]
    time.sleep(1)
"""
SPEC = """\
cluster: local
entry: train.py
config: {lr: 0.1, momentum: 0.0}
progress: {pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)', total: 27}
objective: {metric: loss, mode: min}
sweep:
  search:
    space: {lr: {loguniform: [1.0e-3, 1.0e+2]}, momentum: {uniform: [0, 0.95]}}
    trials: 24
    parallel: 4
    prune: halving
"""
WIDTH, HEIGHT, HEAD = 720, 280, 26
STYLE = """
text { font: 12px sans-serif; fill: #57606a }
.head { font-weight: 600; fill: #1f2328 }
.grid { stroke: #d8dee4 }
.point { fill: #2f6fd6; stroke: #fff }
.point.part { fill: none; stroke: #2f6fd6; stroke-width: 1.2 }
.line { fill: none; stroke: #d9730d; stroke-width: 1.6; vector-effect: non-scaling-stroke }
"""


def picture(drawings: list[tuple[str, str]]) -> str:
    """Put drawings of a report one below another, with their heads."""
    parts = []
    for at, (head, drawing) in enumerate(drawings):
        top = at * (HEIGHT + HEAD)
        place = f'<svg x="0" y="{top + HEAD}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(f'<text class="head" x="8" y="{top + 18}">{head}</text>')
        parts.append(drawing.replace("<svg ", place, 1))
    size = f"0 0 {WIDTH} {len(drawings) * (HEIGHT + HEAD)}"
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}"><style>{STYLE}</style>'
        f"\n{ground}\n{inside}\n</svg>\n"
    )


def main() -> None:
    """Search, and draw it."""
    with tempfile.TemporaryDirectory() as directory:
        place, root = Path(directory), Path(directory, "runs")
        (place / "train.py").write_text(PROGRAM)
        (place / "study.yaml").write_text(SPEC)
        submit = ("submit", "study.yaml", "--wait")
        done = command.hpcrun(*submit, root=root, cwd=place, timeout=900)
        if done.returncode:
            sys.exit(done.stderr)
        (found,) = search_charts.draw(report.collect(Finder(root).resolve(["study"])))
    print(found.sentence)
    drawings = [("The best loss so far", found.history)]
    drawings += [(f"loss against {name}", drawing) for name, drawing in found.slices[:1]]
    IMAGES.joinpath("search.svg").write_text(picture(drawings))


if __name__ == "__main__":
    main()
