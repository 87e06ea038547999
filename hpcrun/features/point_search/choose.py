"""Chooses the values of one run of a search, and writes them: a program in the job's Python."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hpcrun.ask_python import MARK
from hpcrun.errors import HpcrunError
from hpcrun.feature import NotWanted
from hpcrun.features.point_search import study
from hpcrun.state import chosen_point, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import SEARCH


def main() -> None:
    """Choose for the run of a submission; answer with its label, or why it is to be none."""
    from hpcrun.compile.sweep.late_run import complete

    parser = argparse.ArgumentParser(prog="hpcrun.features.point_search.choose")
    parser.add_argument("submission", type=Path)
    parser.add_argument("run", type=int)
    arguments = parser.parse_args()
    submission = SubmissionPaths(arguments.submission)
    try:
        run = plan_file.read_frozen(submission.plan, arguments.run).run(arguments.run)
        paths = submission.experiment.run(arguments.run)
        if run.spec[SEARCH].get("population"):
            from hpcrun.features.point_search import population

            population.give(run, submission.experiment)
        else:
            chosen_point.write(paths, complete(run, study.choose(run, submission.experiment)))
        found = chosen_point.read(paths)
        if found is None:
            raise HpcrunError(f"{paths.point} was written, and cannot be read")
    except NotWanted as error:
        print(f"\n{MARK}{json.dumps({'not_wanted': error.message})}")
        return
    except (HpcrunError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"\n{MARK}{json.dumps(found.label)}")


if __name__ == "__main__":
    main()
