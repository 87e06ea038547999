"""Freeze the user's code at submission, and compare frozen code.

In reading order:

- `code_files`: which files are the code: a plan's part of a tree, listed by git or by a walk.
- `secret_files`: which of them are secrets, and are left out.
- `path_literals`: what may be a path in words, and in a program's own texts.
- `named_paths`: the paths that runs and their programs name, and that are here.
- `unfrozen`: which of those will not be in the frozen code, and the line to write.
- `inside`: open a file below a directory, following no link.
- `snapshot`: write them to an archive that is named by its content.
- `frozen_code`: read an archive again, within bounds.
- `own_package`: hpcrun itself, as jobs import it, and the packages beside it.
- `code_diff`: the files that differ between two versions, and a patch.

To leave out one more kind of file everywhere: add it to ``_NEVER`` in `code_files`. To take a key,
or a call, for one that reads or writes paths: the words in `path_literals`.
"""
