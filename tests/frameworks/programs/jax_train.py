"""JAX across processes; on Slurm `jax.distributed.initialize` needs no arguments."""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)


def main():
    print(f"ranks {jax.process_count()}, this is {jax.process_index()}", flush=True)
    weight = jnp.zeros(8)
    gradient = jax.jit(jax.grad(lambda weight, x: jnp.mean((x @ weight - x.sum(1)) ** 2)))
    for step in range(40):
        x = jax.random.normal(jax.random.PRNGKey(step * 100 + jax.process_index()), (16, 8))
        gathered = multihost_utils.process_allgather(gradient(weight, x))
        weight = weight - 0.1 * gathered.mean(0)
        if step % 10 == 9:
            print(f"step {step + 1}: {float(jnp.abs(weight - 1).max()):.4f}", flush=True)


if __name__ == "__main__":
    main()
