"""What may be a path in words of arguments, configurations and scripts."""

from __future__ import annotations

import pytest

from hpcrun.submission.code import path_words


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
    assert found in [*path_words.in_words(words)]


def test_lines_of_settings_and_scripts() -> None:
    text = (
        "paths:\n  data_dir: ${paths.root}/data/  # where\n# old: data/none\npython a.py --in x/y\n"
    )
    found = [*path_words.in_text(text)]
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
    assert path_words.cleaned(text) == path


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
    assert path_words.is_output(key, path, is_directory=is_directory) is writes


def test_which_keys_are_of_paths() -> None:
    assert path_words.says_path("data_dir")
    assert path_words.says_path("dataset_name")
    assert not path_words.says_path("dataset_name", surely=True)
    assert path_words.says_path("model_name_or_path", surely=True)
    assert not path_words.says_path("mode")
    assert path_words.is_bare("train/")
    assert not path_words.is_bare("train/x")
