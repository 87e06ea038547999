"""Containers: the command lines that start a run's ranks inside an image.

In reading order: `runtimes` (what each runtime is typed like), `rank_python` (the words before a
command of a run, for the launcher, the probe and ``hpcrun exec``, and what the run sees inside),
`image_here` (the image where a run is submitted); `hpcrun.run.enter` is the program that these
words start on a node.

To add a runtime: its word in `hpcrun.state.environment.environment_block.Container.runtime`, a
class in `runtimes`, its name in `hpcrun.extensions`, and a golden of its command line. Another
package's runtime needs no change here: see docs/extending.md.
"""
