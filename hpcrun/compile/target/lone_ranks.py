"""Finds programs whose ranks nothing joins, so that each would do all of the work by itself.

By the names that a Python file and the modules beside it use; nothing of it is executed. What
imports a package that is not known here is left alone, as that may join them.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hpcrun.compile.target.entry import MOST_PARSED
from hpcrun.state import files
from hpcrun.text import plural

_PACKAGES = """
PIL absl albumentations attr click cv2 datasets dotenv einops evaluate fire gym gymnasium h5py
huggingface_hub hydra imageio jax joblib keras lightgbm loguru matplotlib ml_collections mlflow
networkx numba numpy omegaconf optax pandas peft psutil pyarrow pydantic requests rich safetensors
scipy seaborn sentencepiece skimage sklearn sympy tensorboard tensorboardX tensorflow termcolor timm
tokenizers torch torchaudio torchmetrics torchvision tqdm transformers typer wandb xgboost yaml
"""
# Packages that join no ranks unless the program names one of the words below.
_KNOWN = frozenset(_PACKAGES.split()) | sys.stdlib_module_names | {"__future__"}
_VARIABLES = re.compile(
    r"(?:LOCAL_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|TF_CONFIG|(?:HPCRUN|OMPI|PMIX?|MV2)_\w+"
    r"|SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|NPROCS)|JAX_\w+"
)
_NAMES = re.compile(
    r"\w*[Dd]istributed\w*|init_process_group|(?:local_|global_)?rank|(?:local_)?world_size|fsdp|ddp"
    r"|\w*FSDP\w*|DDP|Fabric|\w*Trainer|TrainingArguments|MultiWorkerMirroredStrategy|device_mesh"
)
_MOST_FILES = 200


def lone_ranks(path: Path, ranks: int) -> str | None:
    """Return what a person should know of a program with several ranks; None where it is joined.

    ``path`` is its Python file.
    """
    if ranks < 2 or _may_join(path):
        return None
    return (
        f"nothing in {path.name} joins its {plural(ranks, 'rank')}: it reads no RANK and imports "
        "nothing that does, so that each would do all of the work, and write over the others' "
        "files. For one rank type resources.nodes=1 resources.ntasks_per_node=1; framework=none "
        "says that it is meant"
    )


def _may_join(path: Path) -> bool:
    """Check whether a program, or a module beside it, may join ranks."""
    left, seen = [path], {path}
    while left:
        try:
            tree = ast.parse(files.read_bytes(left.pop(), MOST_PARSED))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return True
        docs = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }  # strings that stand alone
        for node in ast.walk(tree):
            if id(node) in docs:
                continue
            if any(_NAMES.fullmatch(name) for name in _identifiers(node)):
                return True
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = re.findall(r"\w+", node.value[:200])
                if any(map(_VARIABLES.fullmatch, words)) or node.value == "--local_rank":
                    return True
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                beside = _imported(node, path.parent)
                if beside is None or len(seen) > _MOST_FILES:
                    return True
                left += [one for one in beside if one not in seen]
                seen.update(beside)
    return False


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of a program has itself."""
    for name in ("id", "attr", "arg", "name"):
        if isinstance(value := getattr(node, name, None), str):
            yield from value.split(".")
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from node.module.split(".")


def _imported(node: ast.Import | ast.ImportFrom, directory: Path) -> list[Path] | None:
    """Return the files beside a program that an import may read; None for an unknown package."""
    if isinstance(node, ast.ImportFrom):
        # Of a package whose files are all read.
        names = [node.module] if node.module and not node.level else []
    else:
        names = [one.name for one in node.names]
    found: list[Path] = []
    for name in names:
        root = name.partition(".")[0]
        file, package = directory / f"{root}.py", directory / root
        if file.is_file():
            found.append(file)
        elif package.is_dir():
            found += itertools.islice(package.rglob("*.py"), _MOST_FILES + 1)
        elif root not in _KNOWN:
            return None
    return found
