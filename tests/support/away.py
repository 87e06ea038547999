"""Examples and recorded texts, where the folder of a feature or a tool was taken away."""

from __future__ import annotations

import re

from hpcrun import feature
from hpcrun.cli import commands

FEATURES = ("object_storage", "staging")
# The commands of all tools that there are.
TOOLS = (
    "completion doctor drill estimate export init profile report scaling search top tune weights"
)
_FEATURES = tuple(name for name in FEATURES if name not in feature.names())
_COMMANDS = tuple(name for name in TOOLS.split() if commands.find(name) is None)


def without(text: str) -> str:
    """Take the blocks and keys of features that are not there out of a recorded text."""
    for name in _FEATURES:
        text = re.sub(rf'\n( *)"{name}": \{{.*?\n\1\}},', "", text, flags=re.DOTALL)
        text = text.replace(f"{name}, ", "")
    return text


def is_gone(text: str) -> bool:
    """Check whether a text shows a feature, or types a command, that is not there."""
    shown = any(re.search(rf"\b{name}:", text) for name in _FEATURES)
    return shown or any(re.search(rf"\bhpcrun {name}\b", text) for name in _COMMANDS)
