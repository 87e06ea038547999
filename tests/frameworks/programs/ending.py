"""Two ranks that meet at each step, until one of them ends as it was asked to."""

import argparse
import os
import signal
import time

import torch
import torch.distributed


def deep(calls, how):
    if calls:
        return deep(calls - 1, how)
    if how == "import":
        import a_module_that_is_nowhere  # noqa: F401
    elif how == "value":
        raise ValueError("batch 17 is bad")
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        held = [bytearray(os.urandom(1 << 20)) * 64 for _ in range(1000)]
        print(len(held))
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how")
    how = parser.parse_args().how
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for step in range(1, 21):
        torch.distributed.all_reduce(torch.ones(1000))
        if rank == 0:
            print(f"step {step}/20 loss {1 / step:.3f}", flush=True)
        time.sleep(0.2)
        if step == 5 and rank == 1:
            deep(30, how)


if __name__ == "__main__":
    main()
