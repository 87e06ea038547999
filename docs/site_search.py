"""A hook of mkdocs: the site's search knows what ``hpcrun help WORDS`` knows.

`site_search.js` ranks; the words that say nothing, what else a word is called, and what a page is
worth are those of `hpcrun.cli.asked_words`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcrun.cli import asked_words
from hpcrun.cli.help import topics

RANKING = Path(__file__).with_name("site_search.js")


def on_post_build(config: Any) -> None:
    """Put the ranking, and what it knows, behind mkdocs' own worker."""
    pages = topics()
    worth = {
        pages[topic][0]: factor for topic, factor in asked_words.WORTH.items() if topic in pages
    }
    known = {"STOP": sorted(asked_words.STOP), "SYNONYMS": asked_words.SYNONYMS}
    known |= {"PHRASES": asked_words.PHRASES, "WORTH": worth}
    lines = [f"const {name} = {json.dumps(value)};" for name, value in known.items()]
    with open(Path(config["site_dir"]) / "search" / "worker.js", "a", encoding="utf-8") as worker:
        worker.write("\n".join(["", *lines, RANKING.read_text(encoding="utf-8")]))
