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


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--data", "mydata/x.bin"], ("data", "mydata/x.bin")),
        (["--data=mydata/x.bin"], ("data", "mydata/x.bin")),
        (["data.path=mydata"], ("data.path", "mydata")),
        (["+data.files=[a/b.json,c/d.json]"], ("+data.files", "c/d.json")),
        (["--fast", "--data", "x"], ("data", "x")),
        (["images", "--arch=small"], ("", "images")),
        (["python train.py --data 'my data' --out out"], ("out", "out")),
    ],
)
def test_words_and_their_keys(words: list[str], found: tuple[str, str]) -> None:
    assert found in [*path_literals.in_words(words)]


def test_lines_of_settings_and_scripts() -> None:
    text = (
        "paths:\n  data_dir: ${paths.root}/data/  # where\n# old: data/none\npython a.py --in x/y\n"
    )
    found = [*path_literals.in_text(text)]
    assert (2, "data_dir", "data/") in found
    assert (4, "in", "x/y") in found
    assert not any("none" in word for _, _, word in found)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("./data/", "data"),
        ("../data/x", "../data/x"),
        ("data//x.csv", "data/x.csv"),
        ("shards/*.bin", "shards"),
        ("shards/{000..010}.tar", "shards"),
        ("data/${config.name}/x", "data"),
        ("*.bin", None),
        ("/data/x", None),
        ("~/data", None),
        ("s3://bucket/x", None),
        (".", None),
        ("..", None),
        ("", None),
        ("a\nb", None),
        ("x" * 2000, None),
    ],
)
def test_a_path_as_it_may_lie_here(text: str, path: str | None) -> None:
    assert path_literals.clean(text) == path


@pytest.mark.parametrize(
    ("key", "path", "is_directory", "writes"),
    [
        ("output_dir", "data", True, True),
        ("outputDir", "data", True, True),
        ("hydra.run.dir", "data", True, True),
        ("log_file", "train.log", False, True),
        ("checkpoint_dir", "weights", True, True),
        ("checkpoint", "weights/a.pt", False, False),
        ("init_from", "out/ckpt", True, False),
        ("model", "out/last", True, False),
        ("", "runs", True, True),
        ("", "out-small", True, True),
        ("", "runs/best.pt", False, False),
        ("data", "cache", True, False),
        ("", "images", True, False),
    ],
)
def test_what_is_written(key: str, path: str, is_directory: bool, writes: bool) -> None:
    assert path_literals.is_output(key, path, is_directory=is_directory) is writes


def test_which_keys_are_of_paths() -> None:
    assert path_literals.says_path("data_dir")
    assert path_literals.says_path("dataset_name")
    assert not path_literals.says_path("dataset_name", surely=True)
    assert path_literals.says_path("model_name_or_path", surely=True)
    assert not path_literals.says_path("mode")
    assert path_literals.is_bare("train/")
    assert not path_literals.is_bare("train/x")
