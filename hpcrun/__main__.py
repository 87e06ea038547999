"""``python -m hpcrun``: the same as the command ``hpcrun``."""

from hpcrun.cli.main import main

main()
