"""The specs of programs of others, which `on_slurm` runs and the documentation shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.frameworks.third_party import PROGRAMS, SPECS
from tests.support.command import hpcrun

# Of a program whose framework is detected; the specs of others name theirs.
USES_THE_TRAINER = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "HfArgumentParser(TrainingArguments)\n"
)
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_documentation_shows_the_specs_that_ran() -> None:
    shown = PAGE.read_text()
    assert {path.stem for path in SPECS.glob("*.yaml")} == set(PROGRAMS)
    texts = {name: (SPECS / f"{name}.yaml").read_text() for name in PROGRAMS}
    # Of which the page shows a line, as nothing else is another than in the block before it.
    under_torchrun = texts.pop("run-clm-torchrun")
    for name, text in texts.items():
        assert f"```yaml\n{text}```\n" in shown, name
    entry = under_torchrun.splitlines()[1].partition("     #")[0]
    assert f"Under torchrun: `{entry}`" in shown
    plain, other = yaml.safe_load(texts["run-clm"]), yaml.safe_load(under_torchrun)
    assert {key for key in {**plain, **other} if plain.get(key) != other.get(key)} == {
        *("name", "entry", "framework"),
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_spec_is_planned_with_what_resumes_it(name: str, tmp_path: Path) -> None:
    text = (SPECS / f"{name}.yaml").read_text()
    (tmp_path / "spec.yaml").write_text(text)
    spec = yaml.safe_load(text)
    words = [spec["entry"]] if isinstance(spec["entry"], str) else spec["entry"]
    for name in (word for word in words if word.endswith(".py")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(USES_THE_TRAINER)
    for linked in spec.get("code", {}).get("link", ()):
        (tmp_path / linked).mkdir(parents=True)
    done = hpcrun("plan", tmp_path / "spec.yaml", "+cluster=slurm", "--root", tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert "a command that resumes" in done.stdout


def test_nanogpt_finds_its_data_from_a_clone(tmp_path: Path) -> None:
    data = tmp_path / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    (data / "prepare.py").touch()
    (tmp_path / ".gitignore").write_text("*.bin\n*.pkl\ninput.txt\n")
    (tmp_path / "train.py").write_text(
        "import os\ndataset = 'openwebtext'\nexec(open('configurator.py').read())\n"
        "data_dir = os.path.join('data', dataset)\n"
    )
    (tmp_path / "config").mkdir()
    settings = tmp_path / "config" / "train_shakespeare_char.py"
    settings.write_text("out_dir = 'out'\ndataset = 'shakespeare_char'\n")
    for words in (["init"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    for name in ("input.txt", "train.bin", "val.bin", "meta.pkl"):
        (data / name).touch()
    shown = (SPECS / "nanogpt.yaml").read_text()
    lines = [line for line in shown.splitlines(keepends=True) if not line.startswith("code:")]
    spec, told = tmp_path / "spec.yaml", "code: {link: [data/shakespeare_char]}"
    for text, is_told in ((shown, False), ("".join(lines), True)):
        spec.write_text(text)
        done = hpcrun("plan", spec, "+cluster=local", "--root", tmp_path / "root")
        assert done.returncode == 0, done.stderr
        assert (told in done.stderr) is is_told
