"""``python -m hpcrun`` and the command ``hpcrun``: no code comes from the current directory.

People type commands in directories of other people, where a ``json.py`` or a ``git`` may lie.
"""

import os
import sys


def _forget_current_directory() -> None:
    """Drop it from PATH, and from ``sys.path``: ``-m`` and PYTHONPATH's relative entries add it."""
    programs = os.environ.get("PATH", "").split(os.pathsep)
    absolute = os.pathsep.join(entry for entry in programs if entry.startswith("/"))
    os.environ["PATH"] = absolute or os.defpath
    # Without pathlib, which might be imported from there.
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:  # it was removed: nothing is in it
        return
    if __name__ == "__main__" and sys.path[0] == here:
        del sys.path[0]
    named = (os.environ.get("PYTHONPATH") or here).split(os.pathsep)
    relative = {os.path.normpath(os.path.join(here, entry)) for entry in named}  # noqa: PTH118
    sys.path[:] = [entry for entry in sys.path if entry and entry not in relative - {*named}]


_forget_current_directory()

import signal  # noqa: E402

# Modules are read for seconds from a slow storage: Ctrl-C ends that without a traceback.
_is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _is_usual:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
if "_HPCRUN_COMPLETE" in os.environ:
    # A shell asks for answers to TAB, which leave click out; without the tool there are none.
    try:
        from hpcrun.tools.completion.completion_answers import main
    except ModuleNotFoundError:
        sys.exit(0)
else:
    from hpcrun.cli.main import main
if _is_usual:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    main()
