"""Names and values that look like secrets: of variables, keys, arguments and files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

# Refused in environment.variables; there a name of one of these forms means nothing else.
VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
# Last words of names. In a configuration a key may be that of a mapping, a token a piece of text.
_SECRETS = "pat pwd pass password passwd passphrase secret credential credentials apikey"
_WORDS_OF_KEYS = """
access account api auth encryption license private secret signing ssh anthropic comet hf openai
wandb
"""
_WORDS_OF_TEXT = """
additional begin bos class cls end eos image mask next pad per prefix sep special start stop suffix
text unk
"""
_ALWAYS = frozenset(_SECRETS.split())
_KEYS = frozenset(_WORDS_OF_KEYS.split())
_TEXT = frozenset(_WORDS_OF_TEXT.split())
_OF_AWS = frozenset({"access", "secret", "security", "session"})
# These two are compiled where they are first needed: together they take a thousandth of a second.
_URL = r"[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:[^\s/@'\"$]+@"
# Of GitHub, GitLab, Hugging Face, AWS, Google, Slack, npm and others, and signed tokens (JWT).
_SINGLE = (
    r"(?:gh[oprsu]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|(?:xox[abeprs]|xapp)-[\w-]{20,}|[sr]k[-_][\w-]{30,}"
    r"|npm_\w{36}|pypi-[\w-]{50,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
# Addresses that whoever knows them may write to, and what a header carries.
_TOKEN = re.compile(
    rf"\b{_SINGLE}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bhooks\.slack\.com/(?:services|workflows)/\w|\bdiscord(?:app)?\.com/api/webhooks/\d"
    r"|\bwebhook\.office\.com/\w|\bapi\.telegram\.org/bot\d"
    r"|\b(?i:bearer|basic|token)\s+(?=[\w.~+/-]*\d)[\w.~+/-]{16,}=*"
)
_KEY_FILE = re.compile(
    rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----|\s*\{.*\"private_key\"\s*:\s*\"-----BEGIN ", re.DOTALL
)
_MOST_OF_TOKEN = 16_384
_ASSIGNED = re.compile(r"(?<![\w$])(?:--?)?([A-Za-z_][\w-]*)=['\"]?([^\s;&'\"]*)")
_OPTION = re.compile(r"--?([A-Za-z_][\w-]*)")

_FILES = (
    r"\.env|\.env\.(?!(?:example|sample|template|dist|defaults?)$).+|.+\.env"
    r"|[._]netrc|\.pgpass|\.my\.cnf|\.npmrc|\.pypirc|\.git-credentials|\.htpasswd|\.dockercfg"
    r"|\.s3cfg|\.boto|\.vault[-_]pass(?:word)?|credentials(?:\.json)?|kubeconfig|kaggle\.json"
    r"|application_default_credentials\.json|service[-_]account.*\.json|client_secret.*\.json"
    r"|(?:(?:.+[_-])?(?:access|api|auth|gh|github|gitlab|hf|hub|huggingface|wandb)[_-])?token"
    r"(?:\.txt)?|\.token|secrets?\.(?:ya?ml|json|toml|txt)|passwords?\.txt"
    r"|(?:.+[_-])?api[_-]?keys?(?:\.(?:txt|json|ya?ml))?"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.+\.(?:pem|key|p12|pfx|ppk|jks|keystore|kdbx)"
)
_DIRECTORIES = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud"})


@lru_cache(maxsize=4096)
def is_file(path: str) -> bool:
    """Return whether a file is named like a secret, or lies where programs keep theirs."""
    *directories, name = path.split("/")
    is_named_so = re.fullmatch(_FILES, name, re.IGNORECASE) is not None
    return is_named_so or not _DIRECTORIES.isdisjoint(directories)


def is_content(data: bytes) -> bool:
    """Return whether a file is a private key, a service account's, or one token."""
    if len(data) > _MOST_OF_TOKEN:
        return False
    text = data.strip()
    is_token = b"\n" not in text and re.fullmatch(_SINGLE, text.decode(errors="replace"))
    return bool(is_token or _KEY_FILE.match(data))


@lru_cache(maxsize=4096)
def is_name(name: str) -> bool:
    """Return whether a key, variable or option is named like a secret."""
    before, last = ["", "", *re.split(r"[._-]+", name.lower())][-2:]
    if name.lower().startswith("aws_"):
        return name.lower().split("_")[1] in _OF_AWS
    if last == "token":
        return before not in _TEXT
    if last in _ALWAYS or (last == "key" and before in _KEYS):
        return True
    return name.isupper() and bool(VARIABLE.search(name))


def places(value: Any, key: str = "") -> Iterator[str]:
    """Yield where a spec or profile, or a part of it, has what looks like a secret.

    As ``config.hub_token``, ``args: --password`` and ``environment.setup: a URL with a password``;
    the values themselves are left out.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from places(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item, following in itertools.zip_longest(value, value[1:]):
            option = _OPTION.fullmatch(item) if isinstance(item, str) else None
            if option and is_name(option[1]) and _is_value(following):
                yield f"{key}: {item}"
            if isinstance(item, (Mapping, list)):
                yield from places(item, key)
            else:
                yield from _in_text(item, key)
    elif _is_value(value) and is_name(key.rpartition(".")[2]):
        yield key
    else:
        yield from _in_text(value, key)


def _is_value(value: Any) -> bool:
    """Return whether a value may be a secret: a text, and no path, ``<pad>`` or ``$VARIABLE``."""
    return isinstance(value, str) and bool(value) and value[0] not in "<[$/-"


def _in_text(value: Any, key: str) -> Iterator[str]:
    if not isinstance(value, str):
        return
    if "=" in value:
        found = (name for name, given in _ASSIGNED.findall(value) if _is_value(given))
        yield from (f"{key}: {name}" for name in found if is_name(name))
    if "://" in value and re.search(_URL, value, re.IGNORECASE):
        yield f"{key}: a URL with a password"
    if len(value) > 15 and _TOKEN.search(value):
        yield f"{key}: a token"
