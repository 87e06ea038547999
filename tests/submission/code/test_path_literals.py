"""The paths in a program's own texts, by where they stand."""

from __future__ import annotations

import textwrap

import pytest

from hpcrun.submission.code import path_literals


def read(text: str) -> path_literals.ProgramText:
    return path_literals.read(textwrap.dedent(text).encode())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('open("x.csv")', "x.csv"),
        ('x = np.memmap("train", mode="r")', "train"),
        ('os.path.join("data", name, "train.bin")', "data"),
        ('os.path.join("data", "a", "train.bin")', "data/a/train.bin"),
        ('x = Path("data") / "a" / "b.bin"', "data/a/b.bin"),
        ('x = Path(__file__).parent / "data"', "data"),
        ('os.path.join(os.path.dirname(__file__), "data", x)', "data"),
        ('open(f"data/{name}.bin")', "data"),
        ('read_image(f"data/{name}.png")', "data"),
        ('filename = "data/" + name', "data"),
        ('parser.add_argument("-d", "--data-dir", default="data")', "data"),
        ('data_dir = "data"', "data"),
        ('def load(data_dir="data"): pass', "data"),
        ('config = {"data_dir": "data"}', "data"),
        ('x = os.environ.get("HERE", "a/b")', "a/b"),
        ('data_dir = os.environ.get("DATA", "data")', "data"),
        ('@dataclass\nclass A:\n    data_dir: str = field(default="data")', "data"),
        ('Model.from_pretrained("model")', "model"),
        ('train(files=["a/x.json"])', "a/x.json"),
    ],
)
def test_what_is_read(line: str, text: str) -> None:
    assert text in [one.text for one in read(line).literals]


@pytest.mark.parametrize(
    "line",
    [
        'x["data"]',
        'x = {"data": 1}',
        'if mode == "train": pass',
        '"""data/x.csv"""',
        'split = "train"',
        'MODEL_NAME = "model"',
        'os.path.join(where, "data")',
        'out / "data"',
        'print("data")',
        'print(f"data/{name}")',
        'print("data/" + name)',
        'parser.add_argument("--split", default="data", choices=["data", "test"])',
        'open("a/x.csv", "w")',
        'open("a/x.csv", mode="ab")',
        'Path("a/x.csv").open("w")',
        'Path("a/x").mkdir()',
        'os.makedirs("a/x", exist_ok=True)',
        'os.makedirs(os.path.join("a", name))',
        'torch.save(state, "a/x.pt")',
        'torch.save(state, os.path.join("a", "x.pt"))',
        'model.save_pretrained("a/x")',
        'where = "a/x"\nos.makedirs(where)',
        'where = "a/x.pt"\ntorch.save(state, where)',
    ],
)
def test_what_is_no_path_or_written(line: str) -> None:
    assert [one.text for one in read(line).literals] == []


def test_what_is_written_is_known() -> None:
    assert read('np.save("a/x.npy", y)\nx = np.load("a/x.npy")').written == {"a/x.npy"}


def test_a_default_is_an_option_under_its_name() -> None:
    (one,) = read('parser.add_argument("--data-dir", default="data")').literals
    assert (one.key, one.option, one.line) == ("data_dir", True, 1)


def test_imports() -> None:
    text = "import a.b, c as d\nfrom . import e\nfrom ..f import (\n    g,\n    h as i,\n)\n"
    text += "from j import *\n"
    assert {*path_literals.imports(text)} == {
        *((0, "a.b"), (0, "c"), (1, "e"), (2, "f"), (2, "f.g"), (2, "f.h"), (0, "j")),
    }


def test_no_python() -> None:
    with pytest.raises(SyntaxError):
        read("def")
