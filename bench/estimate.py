"""What `hpcrun estimate` says of memory, against what real DeepSpeed engines hold.

    python -m bench.estimate [--ranks 2,4] [--only NAME] [--output bench/results] [--json]

On the CPU (gloo) all tensors of each rank are counted: parameters, gradients and the optimizer's,
by ZeRO stage, precision, offload and optimizer. The peak of a GPU is compared by `bench.on_gpu`,
models that ranks divide by `bench.estimate_divided`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.tools.estimate import memory_formulas, training_setup
from hpcrun.tools.estimate.model_facts import ModelFacts, of_answer
from hpcrun.tools.estimate.model_source import count_model

ROOT = Path(__file__).parent.parent
KINDS = ("parameters", "gradients", "optimizer")
SMALL = {"layers": 4, "width": 256, "heads": 4, "context": 16}
WITHIN = 0.05


def config(
    stage: int,
    precision: str = "bf16",
    *,
    accumulation: int = 2,
    optimizer: str = "AdamW",
    options: dict[str, Any] | None = None,
    fp32_sums: bool = False,
    **zero: Any,
) -> dict[str, Any]:
    """Return a DeepSpeed configuration whose buckets suit a small model."""
    untested = optimizer not in ("AdamW", "Muon")
    params = {"lr": 1e-3, **({"torch_adam": True} if not untested else {}), **(options or {})}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "optimizer": {"type": optimizer, "params": params},
        **({precision: {"enabled": True}} if precision != "fp32" else {}),
        **({"data_types": {"grad_accum_dtype": "fp32"}} if fp32_sums else {}),
        **({"zero_allow_untested_optimizer": True} if untested and stage else {}),
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 300_000,
            "stage3_prefetch_bucket_size": 100_000,
            **zero,
        },
    }


def case(name: str, deepspeed: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return one case of `bench.held_bytes`."""
    return {"name": name, "shape": SMALL, "deepspeed": deepspeed, "save": True, **more}


def cases() -> list[dict[str, Any]]:
    """Return all cases on the CPU."""
    cpu = {"offload_optimizer": {"device": "cpu"}}
    both = {**cpu, "offload_param": {"device": "cpu"}}
    found = []
    for stage in (0, 1, 2, 3):
        for precision in ("fp32", "bf16"):
            name = f"ZeRO {stage} {precision}"
            found.append(case(name, config(stage, precision)))
            if stage:
                found.append(case(f"{name} offload", config(stage, precision, **cpu)))
    for stage in (1, 2, 3):
        name = f"ZeRO {stage} bf16"
        found += [
            case(f"{name} accumulation 1", config(stage, accumulation=1)),
            case(f"{name} offload accumulation 1", config(stage, accumulation=1, **cpu)),
            case(f"{name} fp32 sums", config(stage, fp32_sums=True)),
            case(f"{name} frozen", config(stage), frozen=2),
            case(f"{name} tied", config(stage), tied=True),
            case(f"{name} SGD", config(stage, optimizer="SGD")),
            case(f"{name} momentum", config(stage, optimizer="SGD", options={"momentum": 0.9})),
            case(f"{name} RMSprop", config(stage, optimizer="RMSprop")),
            case(f"{name} Adagrad", config(stage, optimizer="Adagrad")),
        ]
    found += [
        case("ZeRO 3 bf16 offload all", config(3, **both)),
        case("ZeRO 3 bf16 sub-groups", config(3, sub_group_size=400_000)),
        case("ZeRO 3 bf16 keeps nothing", config(3, stage3_param_persistence_threshold=0)),
        case("ZeRO 2 bf16 large bucket", config(2, reduce_bucket_size=20_000_000)),
        case("ZeRO 2 bf16 overlap", config(2, reduce_bucket_size=20_000_000, overlap_comm=True)),
        case("ZeRO 1 bf16 Muon", config(1, optimizer="Muon", accumulation=1)),
        case("ZeRO 2 bf16 Muon", config(2, optimizer="Muon", accumulation=1)),
    ]
    return found


def launch(
    these: Sequence[dict[str, Any]],
    ranks: int,
    directory: Path,
    timeout: float = 3000,
    module: str = "bench.held_bytes",
    **variables: str,
) -> list[dict[str, Any]]:
    """Measure cases in one world of ranks, and return each rank's answers by name."""
    directory.mkdir(parents=True, exist_ok=True)
    asked = directory / "cases.json"
    asked.write_text(json.dumps(list(these)))
    port = PortReservation(os.getpid())
    started = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.port),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        argv = [sys.executable, "-m", module, str(asked), str(directory / f"{rank}")]
        with open(directory / f"rank-{rank}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    argv,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    port.release()
    _wait(started, directory, timeout)
    return [json.loads((directory / f"{rank}").read_text()) for rank in range(ranks)]


def _wait(started: list[subprocess.Popen[bytes]], directory: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    try:
        while any(one.poll() is None for one in started):
            if time.monotonic() > deadline:
                raise SystemExit(f"the ranks gave no answer within {timeout:g} s")
            if any(one.poll() for one in started):
                break
            time.sleep(0.2)
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
            one.wait()
    if any(one.returncode for one in started):
        logs = [
            (directory / f"rank-{rank}.log").read_text()[-1500:] for rank in range(len(started))
        ]
        raise SystemExit("a rank failed:\n" + "\n".join(logs))


def facts(measured: dict[str, Any]) -> ModelFacts:
    """Return what was measured of a model's parameters as the facts that are predicted from."""
    sizes, frozen = measured["sizes"], measured["frozen_sizes"]
    return ModelFacts(
        parameters=sum(sizes) + sum(frozen),
        trainable=sum(sizes),
        source="measured",
        sizes=sizes,
        frozen_sizes=frozen,
        muon_parameters=measured["muon"],
    )


def compare(one: dict[str, Any], answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return predicted and measured bytes of one case, of the rank that holds most."""
    measured = [answer[one["name"]] for answer in answers]
    if any("error" in each for each in measured):
        return {"name": one["name"], "error": measured[0].get("error", "another rank failed")}
    ranks = len(answers)
    model = facts(measured[0])
    setup = training_setup.read(one["deepspeed"], ranks)
    memory = memory_formulas.rank_memory(model, setup)
    predicted = {
        kind: getattr(memory.gpu, kind) + getattr(memory.host, kind)
        for kind in (*KINDS, "buffers", "stepping")
    }
    predicted["checkpoint"] = memory_formulas.checkpoint_bytes(model, setup)
    names = {**{kind: kind for kind in KINDS}, "buffers": "other", "stepping": "stepping"}
    held = {kind: max(each.get(name, 0) for each in measured) for kind, name in names.items()}
    held["checkpoint"] = measured[0].get("checkpoint", 0)
    return {
        "name": one["name"],
        "ranks": ranks,
        "parameters_of_model": model.parameters,
        "predicted": {kind: round(value) for kind, value in predicted.items()},
        "measured": held,
        "apart": {kind: apart(predicted[kind], held[kind]) for kind in (*KINDS, "checkpoint")},
    }


def apart(predicted: float, measured: float) -> float:
    """Return by how much a prediction is too high, as a part of what was measured."""
    return predicted / measured - 1 if measured else float(predicted > 0)


def counted(shape: dict[str, int], precision: str) -> ModelFacts:
    """Return the facts of a language model, counted and followed on the meta device."""
    file = ROOT / "jobs" / "language_model.py"
    question = {"module": "language_model", "file": str(file), "config": {"model": shape}}
    return of_answer(count_model([sys.executable], question, precision=precision), {})


def allocated_peak(shape: dict[str, int], micro: int) -> int:
    """Return the most that torch's allocator gave on the CPU in a forward and backward.

    Beside the parameters; gradients go as soon as they are there.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from bench.held_bytes import make_model

    def drop(parameter: Any) -> None:
        parameter.grad = None

    model = make_model(shape)
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(drop)
    text = torch.randint(0, 256, (micro, shape["context"] + 1))
    model(text).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss = model(text)
        loss.backward()
        del loss
    results = profiled.profiler.kineto_results
    events = [one for one in results.events() if one.name() == "[memory]"]
    now = most = 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        now += one.nbytes()
        most = max(most, now)
    return most


def activations() -> list[dict[str, Any]]:
    """Return predicted and allocated peaks of forward and backward on the CPU, in fp32."""
    found = []
    shapes = (
        {"layers": 4, "width": 256, "heads": 4, "context": 128},
        {"layers": 6, "width": 128, "heads": 8, "context": 256},
    )
    for shape in shapes:
        followed = counted(shape, "fp32").whole
        assert followed is not None
        for micro in (1, 4):
            most = allocated_peak(shape, micro)
            predicted = followed.peaks().of(micro)
            one = {"shape": shape, "micro": micro, "predicted": predicted, "measured": most}
            found.append({**one, "apart": apart(predicted, most)})
    return found


def _activation_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["", "forward and backward of one rank, beside parameters and gradients:"]
    for one in found:
        shape = ", ".join(f"{name} {value}" for name, value in one["shape"].items())
        lines.append(
            f"  {shape}, micro batch {one['micro']}: predicted {one['predicted'] / 1e6:.2f} MB, "
            f"torch allocated {one['measured'] / 1e6:.2f} MB ({100 * one['apart']:+.1f} %)"
        )
    return lines


def _table(results: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for one in results:
        if "error" in one:
            lines.append(f"{one['name']:34} failed: {one['error'].strip().splitlines()[-1][:90]}")
        else:
            cells = [
                f"{kind} {one['measured'][kind] / one['parameters_of_model']:.2f} "
                f"({100 * one['apart'][kind]:+.1f} %)"
                for kind in (*KINDS, "checkpoint")
            ]
            lines.append(f"{one['name']:34} {one['ranks']} ranks  " + "  ".join(cells))
    return lines


def main() -> None:
    """Measure, compare and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, such as 2,4")
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    add_options(parser, "estimate")
    options = parser.parse_args()
    variables = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    these = [one for one in cases() if options.only in one["name"]]
    results = []
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            answers = launch(these, ranks, Path(directory), **variables)
        results += [compare(one, answers) for one in these]
    found = [one for one in results if "error" not in one]
    good = sum(all(abs(one["apart"][kind]) <= WITHIN for kind in KINDS) for one in found)
    lines = _table(results)
    lines += ["", f"{good} of {len(results)} cases have parameters, gradients and optimizer within "
              f"{100 * WITHIN:.0f} %"]  # fmt: skip
    followed = [] if options.only else activations()
    lines += _activation_lines(followed) if followed else []
    more = {"cases": results, "activations": followed}
    publish(options, "estimate", circumstances(compared=len(results)), lines, **more)


if __name__ == "__main__":
    main()
