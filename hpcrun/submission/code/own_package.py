"""The zip file from which jobs import the hpcrun that submitted them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import marshal
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import hpcrun
from hpcrun.state import files as state_files

# Folders of which supervisors, agents, ranks and the local executor import something.
_OF_JOBS = {"container", "policy", "run", "slurm", "state", "submission"}


def write(path: Path, added: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Write the running hpcrun to a zip file that Python imports from.

    ``PYTHONPATH=hpcrun.zip python -m hpcrun.run.supervisor`` then runs this version, whatever is
    installed, upgraded or removed later. What jobs import is compiled beside its source, for the
    Python that submits; another one compiles the source, in 0.3 s of each agent's start. ``added``
    is put beside it: the files of `hpcrun.submission.code.added_packages`, by their paths.
    """
    source = Path(hpcrun.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:

        def add(name: str, data: bytes) -> None:
            info = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=1)

        for file in sorted(source.rglob("*.py")):
            name = file.relative_to(source)
            if name.parts[0] == "_data" or "__pycache__" in name.parts:
                continue
            inside = f"hpcrun/{name.as_posix()}"
            add(inside, file.read_bytes())
            of_tool_in_job = name.parts[0] == "tools" and "on_nodes" in name.parts
            if len(name.parts) == 1 or name.parts[0] in _OF_JOBS or of_tool_in_job:
                add(f"{inside}c", _compiled(file, f"{path}/{inside}"))
        for inside, data in added.items():
            add(inside, data)
    state_files.write_bytes(path, buffer.getvalue())


def _compiled(file: Path, shown: str) -> bytes:
    """Return a module as `zipimport` takes it without a look at the source.

    ``shown`` is the path that tracebacks are to have. Python keeps beside the source what it had to
    compile, if it may write there.
    """
    code = importlib.machinery.SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    assert code is not None, file
    # PEP 552: by the hash of the source, which is not to be checked.
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return header + marshal.dumps(_renamed(code, shown))


def _renamed(code: types.CodeType, path: str) -> types.CodeType:
    constants = (
        _renamed(one, path) if isinstance(one, types.CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=tuple(constants))
