"""Calls for Python programs that submit and read runs: ``hpcrun.submit``, ``hpcrun.experiment``.

They do what the commands do, by the same code, in the program's own process: `submitted_experiment`
checks and submits a spec, and reads an experiment's runs: states, results, logs, the wait for their
end. Users take the names from ``hpcrun`` itself. torch is never imported.

To add a call, write it here on top of what its command calls, name it in ``hpcrun/__init__.py`` and
describe it in docs/python.md.
"""
