"""A MariaDB of the bed's own: its data in the bed's memory, no network, a socket for one."""

from __future__ import annotations

import shlex
import subprocess

from . import kernel
from .enter import script_environment
from .layout import Layout


def start(layout: Layout) -> None:
    """Start the server in the background, as a child of the bed's process 1."""
    data = layout.database / "data"
    data.mkdir()
    kernel.mount("tmpfs", str(data), "tmpfs", 0, "mode=700,size=512m")
    install = [
        "mariadb-install-db",
        "--no-defaults",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--user=root",
        f"--datadir={data}",
        "--innodb-log-file-size=8M",
        # The kernel's asynchronous requests are few, and given back late.
        "--innodb-use-native-aio=0",
    ]
    serve = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--tmpdir={data}",
        f"--socket={layout.database}/mysqld.sock",
        f"--pid-file={layout.database}/mysqld.pid",
        "--skip-networking",
        "--innodb-log-file-size=8M",
        "--innodb-use-native-aio=0",
        "--innodb-buffer-pool-size=32M",
        "--innodb-flush-log-at-trx-commit=0",
    ]
    # Seen to fail twice, each time right after another bed's server had been killed.
    again = f"{{ sleep 3; rm -rf {shlex.quote(str(data))}/*; {shlex.join(install)}; }}"
    with (layout.logs / "mariadb.log").open("ab") as log:
        subprocess.Popen(
            ["sh", "-c", f"{{ {shlex.join(install)} || {again}; }} && exec {shlex.join(serve)}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=script_environment(),
            start_new_session=True,
        )
