"""Names and values that look like secrets, and those that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.policy import secret_names


@pytest.mark.parametrize(
    "path",
    [
        *(".env", ".env.production", "deploy/prod.env", ".netrc", ".aws/config", "a/.ssh/x"),
        *("credentials", "service-account-x.json", "id_rsa", "keys/id_ed25519", "a/b.PEM", "x.key"),
        *("token", "a/.cache/huggingface/token", "token.txt", ".token", "hf_token.txt"),
        *("my-api-token", "secrets.yaml", "passwords.txt", "openai_api_key.txt", "api-keys.json"),
    ],
)
def test_files(path: str) -> None:
    assert secret_names.is_file(path)


@pytest.mark.parametrize(
    "path",
    [
        *(".env.example", "env.py", "environment.yaml", "credentials.py", "id_rsa.pub", "key"),
        *("monkey.py", "ssh/model.py", "tokenizer.json", "pem/train.py"),
        *("tokens.txt", "added_tokens.json", "token.py", "special_token.json", "token/x.py"),
        *("secrets.py", "password.py", "api_keys.py", "broken", "notoken"),
    ],
)
def test_other_files(path: str) -> None:
    assert not secret_names.is_file(path)


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"config": {"hub_token": "abc"}}, "config.hub_token"),
        ({"config": {"db": {"password": "abc"}}}, "config.db.password"),
        ({"config": {"api_key": "abc"}}, "config.api_key"),
        ({"v": {"AWS_ACCESS_KEY_ID": "AKIA"}}, "v.AWS_ACCESS_KEY_ID"),
        ({"v": {"AWS_SESSION_TOKEN": "x"}}, "v.AWS_SESSION_TOKEN"),
        ({"v": {"GH_PAT": "x"}}, "v.GH_PAT"),
        ({"v": {"DB_PWD": "x"}}, "v.DB_PWD"),
        ({"v": {"WANDB_KEY": "x"}}, "v.WANDB_KEY"),
        ({"v": {"DB": "postgres://me:abc@host/x"}}, "v.DB: a URL with a password"),
        ({"args": ["--token", "abc"]}, "args: --token"),
        ({"args": ["--api-key=abc"]}, "args: api-key"),
        ({"setup": ["export A_TOKEN=1 B=2"]}, "setup: A_TOKEN"),
        ({"notify": {"command": ["curl", "-u", "x", "https://a:b@c"]}},
         "notify.command: a URL with a password"),
        ({"choices": [{"secret": "x"}]}, "choices.secret"),
        ({"config": {"wandb_key": "x"}}, "config.wandb_key"),
        ({"notify": {"command": ["curl", "-H", "Authorization: Bearer abcdefgh12345678"]}},
         "notify.command: a token"),
        ({"notify": {"command": ["curl", "https://hooks.slack.com/services/T0/B0/x"]}},
         "notify.command: a token"),
        ({"setup": ["curl https://discord.com/api/webhooks/123/abc"]}, "setup: a token"),
        ({"setup": ["curl https://api.telegram.org/bot123:abc/sendMessage"]}, "setup: a token"),
        ({"config": {"x": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"}},
         "config.x: a token"),
        ({"config": {"x": "hf_" + "a1B" * 12}}, "config.x: a token"),
        ({"setup": ["curl -H 'Authorization: Bearer ghp_" + "a" * 36 + "'"]}, "setup: a token"),
    ],
)  # fmt: skip
def test_places(spec: dict[str, Any], place: str) -> None:
    assert list(secret_names.places(spec)) == [place]


@pytest.mark.parametrize(
    "spec",
    [
        {"config": {"pad_token": "</s>", "eos_token": "EOS", "tokens": "7", "label_key": "y"}},
        {"config": {"token": None, "password": "", "max_token": 7, "secret": "${oc.env:X}"}},
        {"v": {"AWS_REGION": "eu", "AWS_DEFAULT_REGION": "eu", "AWS_PROFILE": "lab"}},
        {"v": {"PWD": "/home/me", "SSH_KEY": "/home/me/.ssh/id"}},
        {"v": {"A": "https://host:8080/a@b", "B": "https://me:$TOKEN@host"}},
        {"args": ["--token", "--other", "--tokens=7"], "none": []},
        {"setup": ["export A_TOKEN=$(cat token)"]},
        {"setup": ['curl -H "Authorization: Bearer $TOKEN" https://hooks.slack.com/help']},
        {"config": {"x": "the bearer of a long-winded-argument", "y": "token classification"}},
    ],
)
def test_no_places(spec: dict[str, Any]) -> None:
    assert list(secret_names.places(spec)) == []


HF = "hf_" + "a1B" * 12
KEY = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((HF, True), (f"{HF}\n", True), (f"  {HF}\r\n", True), (f"{KEY}\nabc\n", True)),
        (json.dumps({"type": "service_account", "private_key": f"{KEY}\nabc"}, indent=1), True),
        *((f"token = '{HF}'", False), (f"{HF}\n{HF}\n", False), ("", False), ("hello\n", False)),
        (f"TOKEN = r'{KEY}'", False),
        (json.dumps({"private_key": "id of a column"}), False),
        (HF + " " * 20_000, False),
    ],
)
def test_a_file_that_is_a_secret_whatever_its_name(text: str, found: bool) -> None:
    assert secret_names.is_content(text.encode()) is found
