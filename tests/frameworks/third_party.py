"""Programs of others that run on a real Slurm as they are, by the specs beside this file."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True)
class ThirdPartyProgram:
    """A program: its code, its inputs, and what its own log and files are."""

    checkout: str
    """A repository's name and the program's directory in it, such as ``examples:imagenet``; empty
    where the program is part of a package or made by ``prepare``."""
    line: str
    """A pattern that finds steps in its log; see `program_log.attempts`."""
    saved: str
    """A glob below the run's ``work``: a file that is written last in a save."""
    outputs: tuple[str, ...]
    """Globs below ``work`` of what it leaves at its end."""
    last: int
    """The last step in its log."""
    prepare: Callable[[Path, str], None] | None = None
    """Makes its inputs in its directory, with the Python that it runs with."""
    events: str | None = None
    """A glob of its TensorBoard files, one an attempt, where the lines of its log have no step."""
    python: str = "frameworks"
    """``frameworks``, ``tensorflow`` or ``mpi``."""


def _text(characters: int) -> str:
    """Return English text, as every Python has it: its standard library."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(path.read_text(errors="replace") for path in paths)[:characters]


def _run(directory: Path, python: str, code: str, *words: str) -> None:
    subprocess.run([python, "-c", code, *words], cwd=directory, check=True, capture_output=True)


def _images(directory: Path, python: str) -> None:
    """Make a folder of random images, of two classes."""
    _run(directory, python, _IMAGES)


_IMAGES = """
from pathlib import Path
import numpy
from PIL import Image
made = numpy.random.default_rng(1)
for part, number in (("train", 40), ("val", 4)):
    for kind in ("cat", "dog"):
        place = Path("images", part, kind)
        place.mkdir(parents=True)
        for index in range(number):
            pixels = made.integers(0, 256, (64, 64, 3), "uint8")
            Image.fromarray(pixels).save(place / f"{index}.png")
"""


def _characters(directory: Path, python: str) -> None:
    """Put a text where the program's own prepare.py would download one, and run that."""
    data = directory / "data" / "shakespeare_char"
    (data / "input.txt").write_text(_text(300_000).encode("ascii", "ignore").decode())
    subprocess.run([python, "prepare.py"], cwd=data, check=True, capture_output=True)


def _wikitext(directory: Path, python: str) -> None:
    """Make a data set by the name that the program loads, and a tokenizer of its kind."""
    place = directory / "wikitext"
    place.mkdir()
    rows = [row for row in _text(200_000).splitlines() if len(row.split()) > 3]
    random.Random(1).shuffle(rows)
    (place / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (place / "README.md").write_text(
        "---\nconfigs:\n- config_name: wikitext-2-v1\n  data_files: train.jsonl\n---\n"
    )
    _run(directory, python, _TOKENIZER)


_TOKENIZER = """
import json
from pathlib import Path
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaTokenizerFast
rows = [json.loads(row)["text"] for row in Path("wikitext/train.jsonl").read_text().splitlines()]
names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
made = ByteLevelBPETokenizer()
made.train_from_iterator(rows, vocab_size=1000, special_tokens=names)
Path("trained").mkdir()
made.save_model("trained")
RobertaTokenizerFast.from_pretrained("trained").save_pretrained("tokenizer")
"""


def _digits(directory: Path, python: str) -> None:
    """Put small random images where the program would download MNIST."""
    _run(directory, python, _DIGITS)


_DIGITS = """
from pathlib import Path
import numpy
made = numpy.random.default_rng(1)
raw = Path("data", "MNIST", "raw")
raw.mkdir(parents=True)
for part, number in (("train", 2000), ("t10k", 1000)):
    labels = made.integers(0, 10, number, "uint8")
    images = made.integers(0, 25, (number, 28, 28), "uint8") * (labels[:, None, None] + 1)
    for name, values in (("images-idx3", images), ("labels-idx1", labels)):
        head = numpy.array([0x800 + values.ndim, *values.shape], ">i4")
        (raw / f"{part}-{name}-ubyte").write_bytes(head.tobytes() + values.tobytes())
"""


def _tiny_language_model(directory: Path, python: str) -> None:
    """Make a model of one layer, its tokenizer and a data set."""
    own = Path(__file__).parent / "programs" / "trl_inputs.py"
    subprocess.run([python, str(own)], cwd=directory, check=True, capture_output=True)


def _language_model_text(directory: Path, python: str) -> None:
    """Make a tiny model, and the text that it is trained on."""
    _tiny_language_model(directory, python)
    (directory / "text.txt").write_text("the cat sat on the mat and looked at the dog\n" * 3000)


def _nanochat(directory: Path, python: str) -> None:
    """Put a text where it would download one, in its own form, and let it train its tokenizer."""
    (directory / "text.txt").write_text(_text(2_000_000))
    _run(directory, python, _PARQUET)
    words = [python, "-m", "scripts.tok_train", "--vocab-size=512"]
    environment = {**os.environ, "NANOCHAT_BASE_DIR": "base"}
    subprocess.run(words, cwd=directory, env=environment, check=True, capture_output=True)


_PARQUET = """
from pathlib import Path
import pyarrow, pyarrow.parquet
text = Path("text.txt").read_text()
rows = [text[start : start + 2000] for start in range(0, len(text), 2000)]
place = Path("base", "base_data_climbmix")
place.mkdir(parents=True)
for shard in range(2):
    table = pyarrow.table({"text": rows[shard::2]})
    pyarrow.parquet.write_table(table, place / f"shard_{shard:05d}.parquet", row_group_size=100)
"""


def _litgpt(directory: Path, python: str) -> None:
    """Make a tokenizer and texts, and let litgpt prepare them."""
    for part in range(2):
        place = directory / "texts" / f"{part}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(_text(100_000))
    _run(directory, python, _LITGPT)


_LITGPT = """
import json
from pathlib import Path
from tokenizers import ByteLevelBPETokenizer
from litgpt.data import TextFiles
from litgpt.tokenizer import Tokenizer
made = ByteLevelBPETokenizer()
made.train(["texts/0.txt"], vocab_size=500, special_tokens=["<s>", "</s>"])
place = Path("tokenizer")
place.mkdir()
made.save(str(place / "tokenizer.json"))
words = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "GPTNeoXTokenizer"}
(place / "tokenizer_config.json").write_text(json.dumps(words))
if __name__ == "__main__":
    data = TextFiles(Path("texts"))
    data.connect(Tokenizer(place), 2, 32)
    data.prepare_data()
"""


def _own(program: str) -> Callable[[Path, str], None]:
    """Return what copies a program that is written as its framework's documentation shows it."""

    def prepare(directory: Path, python: str) -> None:
        shutil.copy(SPECS.parent / "programs" / program, directory)

    return prepare


PROGRAMS = {
    "imagenet": ThirdPartyProgram(
        "examples:imagenet",
        r"Epoch: \[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_total>\d+)\]",
        "rank-00000/**/checkpoint.pth.tar",
        ("rank-00000/**/checkpoint.pth.tar", "rank-00001/**/checkpoint.pth.tar"),
        50,
        _images,
    ),
    "nanogpt": ThirdPartyProgram(
        "nanoGPT:",
        r"iter (?P<step>\d+): loss .* time (?P<milliseconds>[\d.]+)ms",
        "**/out/ckpt.pt",
        ("**/out/ckpt.pt",),
        120,
        _characters,
    ),
    "hello-deepspeed": ThirdPartyProgram(
        "DeepSpeedExamples:training/HelloDeepSpeed",
        r"\[Rank 0\] Loss: ",
        "**/experiments/*/latest",
        ("**/experiments/*/latest", "**/experiments/*/tb_dir/*", "**/experiments/*/hparams.json"),
        120,
        _wikitext,
        events="**/experiments/*/tb_dir/*",
    ),
    "lightning-hydra": ThirdPartyProgram(
        "lightning-hydra-template:",
        r"Epoch (?P<epoch>\d+): .*\| *(?P<step>[1-9]\d*)/(?P<epoch_total>\d+) \[",
        "**/checkpoints/last.ckpt",
        ("**/checkpoints/epoch_007.ckpt", "**/csv/version_0/metrics.csv"),
        1280,
        _digits,
    ),
    "trl-sft": ThirdPartyProgram(
        "",
        r"\| +(?P<step>[1-9]\d*)/240 \[",
        "**/out/checkpoint-*/trainer_state.json",
        ("**/out/model.safetensors",),
        240,
        _tiny_language_model,
    ),
    **{
        name: ThirdPartyProgram(
            "transformers:examples/pytorch/language-modeling",
            r"\| +(?P<step>[1-9]\d*)/600 \[",
            "**/out/checkpoint-*/trainer_state.json",
            ("**/out/model.safetensors",),
            600,
            _language_model_text,
        )
        for name in ("run-clm", "run-clm-torchrun")
    },
    "nanochat": ThirdPartyProgram(
        "nanochat:",
        r"^step (?P<step>\d+)/",
        "**/base/base_checkpoints/d2/optim_*_rank0.pt",
        ("**/base/base_checkpoints/d2/model_000120.pt",),
        119,
        _nanochat,
    ),
    "timm": ThirdPartyProgram(
        "pytorch-image-models:",
        r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<epoch_total>\d+) ",
        "**/out/run/last.pth.tar",
        ("**/out/run/model_best.pth.tar", "**/out/run/summary.csv"),
        119,
        _images,
    ),
    "litgpt": ThirdPartyProgram(
        "litgpt:",
        r"\| iter \d+ step (?P<step>\d+) \|",
        "**/out/step-*/model_config.yaml",
        ("**/out/final/lit_model.pth",),
        120,
        _litgpt,
    ),
    "keras": ThirdPartyProgram(
        "",
        r"^Epoch (?P<epoch>\d+)/|^ *(?P<step>[1-9]\d*)/(?P<epoch_total>20) ",
        "**/out/backup/training_metadata.json",
        ("**/out/model.keras",),
        120,
        _own("keras_fit.py"),
    ),
    "mpi": ThirdPartyProgram(
        "",
        r"^step (?P<step>\d+): ",
        "**/step.txt",
        ("**/step.txt",),
        120,
        _own("mpi_steps.py"),
        python="mpi",
    ),
    **{
        name: ThirdPartyProgram(
            "",
            r"^step (?P<step>\d+): ",
            f"**/out/{saved}",
            (f"**/out/{saved}",),
            120,
            _own(program),
            python="tensorflow" if name == "tensorflow" else "frameworks",
        )
        for name, program, saved in (
            ("accelerate", "accelerate_loop.py", "step_*/random_states_0.pkl"),
            ("tensorflow", "tensorflow_workers.py", "checkpoint"),
            ("jax", "jax_train.py", "state.npz"),
        )
    },
}
