"""JAX across processes; on Slurm `jax.distributed.initialize` needs no arguments."""

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import multihost_utils

jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save_every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()

    print(f"ranks {jax.process_count()}, this is {jax.process_index()}", flush=True)
    newest = arguments.output_dir / "state.npz"
    weight, begun = jnp.zeros(8), 0
    if newest.exists():
        with numpy.load(newest) as state:
            weight, begun = jnp.asarray(state["weight"]), int(state["step"])
        print(f"restored {newest}, step {begun}", flush=True)
    gradient = jax.jit(jax.grad(lambda weight, x: jnp.mean((x @ weight - x.sum(1)) ** 2)))
    for step in range(begun + 1, arguments.steps + 1):
        x = jax.random.normal(jax.random.PRNGKey(step * 100 + jax.process_index()), (16, 8))
        gathered = multihost_utils.process_allgather(gradient(weight, x))
        weight = weight - 0.1 * gathered.mean(0)
        time.sleep(arguments.pause)
        print(f"step {step}: error {float(jnp.abs(weight - 1).max()):.4f}", flush=True)
        if step % arguments.save_every == 0 and jax.process_index() == 0:
            newest.parent.mkdir(exist_ok=True)
            partial = newest.with_suffix(".partial.npz")
            numpy.savez(partial, weight=weight, step=step)
            partial.replace(newest)


if __name__ == "__main__":
    main()
