"""Programs whose ranks nothing joins are found by the names in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.target.lone_ranks import lone_ranks

ALONE = [
    "import argparse, torch\nprint(torch.zeros(3))\n",
    '"""Trains; distributed it is not, and RANK is not read."""\nimport numpy as np\n',
    "from beside import model\nprint(model)  # torch.distributed\n",
    "import package.inner\n",
]
JOINED = [
    "import os\nrank = int(os.environ['RANK'])\n",
    "import os\nn = os.environ.get('SLURM_PROCID', 0)\n",
    "import torch.distributed as dist\n",
    "from torch.nn.parallel import DistributedDataParallel as DDP\n",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n",
    "import deepspeed\n",
    "import somebodys_trainer\n",
    "from joins import x\n",
    "import package2.inner\n",
    "this is no Python\n",
]


@pytest.fixture(autouse=True)
def beside(tmp_path: Path) -> None:
    for name, text in {
        "beside.py": "import torch\nmodel = 1\n",
        "joins.py": "import os\nx = os.environ['WORLD_SIZE']\n",
        "package/inner.py": "import json\n",
        "package2/inner.py": "from . import deep\n",
        "package2/deep.py": "import torch\ntorch.distributed.init_process_group()\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    ("source", "is_told"), [*((one, True) for one in ALONE), *((one, False) for one in JOINED)]
)
def test_ranks_that_nothing_joins_are_found(source: str, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert (lone_ranks(tmp_path / "train.py", 4) is not None) == is_told
    assert lone_ranks(tmp_path / "train.py", 1) is None


@pytest.mark.parametrize("entry", ["train.py", "[python, train.py]"])
def test_it_is_a_doubt_of_a_spec_until_what_it_says_is_typed(entry: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE[0])
    (tmp_path / "s.yaml").write_text(f"entry: {entry}\nresources: {{nodes: 2}}\n")

    def doubts(*typed: str) -> tuple[str, ...]:
        return compile_spec(
            tmp_path / "s.yaml", ["cluster=slurm", *typed], root=tmp_path / "root"
        ).doubts

    assert "nothing in train.py joins its 2 ranks" in doubts()[0]
    assert doubts("framework=none") == ()
    assert doubts("resources.nodes=1", "resources.ntasks_per_node=1") == ()
    assert doubts("framework=torchrun") == ()
