"""Texts that were recorded with all features, as they read where one's folder is taken away."""

from __future__ import annotations

import re

from hpcrun import feature

RECORDED = ("object_storage", "staging")
AWAY = tuple(name for name in RECORDED if name not in feature.names())


def without(text: str) -> str:
    """Take the blocks and keys of features that are not there out of a recorded text."""
    for name in AWAY:
        text = re.sub(rf'\n( *)"{name}": \{{.*?\n\1\}},', "", text, flags=re.DOTALL)
        text = text.replace(f"{name}, ", "")
    return text


def shows(page: str) -> bool:
    """Check whether a text has an example of a feature that is not there."""
    return any(re.search(rf"\b{name}:", page) for name in AWAY)
