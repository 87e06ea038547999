"""Time a new user's first minutes: the README's lines as printed, and no others.

    python -m bench.first_minute [--wheels DIRECTORY] [--output bench/results/first_minute.json]

A root of its own (namespaces, chroot) holds the system's programs, an interpreter, a copy of this
checkout and the home of a user who is new. A shell there executes the README from its first
chapter up to the one on Slurm: its shell lines, with the files that it shows written beside them.
What pip installs was downloaded before. It fails where a command does, where the output is not
what the README prints, or where a limit of `LIMITS` is broken. Needs root or user namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST, BEYOND = "## The first minute", "## The same on Slurm"
# Seconds: from `pip install` to the end of the first run and of the last command, and without
# output of hpcrun's.
LIMITS = {"first_run": 60.0, "all": 300.0, "silence": 3.0}
WHEELS = "/wheels"
HOME, USER = "/home/ada", 4711
# A shell prints these around each command; \x1e is in no other output.
_MARK = re.compile(rb"\x1e(begin|end) (\d+) (\d+)\x1e")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

ENTER = """\
set -eu
root=$1 python=$2 checkout=$3 wheels=$4 script=$5
shift 5
for name in bin lib lib32 lib64 sbin; do
    if [ -L "/$name" ]; then cp -a "/$name" "$root/$name"
    elif [ -d "/$name" ]; then mkdir "$root/$name"; mount --rbind "/$name" "$root/$name"; fi
done
for name in usr etc dev sys; do
    mkdir "$root/$name"
    mount --rbind "/$name" "$root/$name"
done
mkdir -p "$root/proc" "$root/run" "$root/var" "$root$python" "$root$HOME" "$root/wheels"
mkdir -m 1777 "$root/tmp" "$root/var/tmp"
mount -t proc proc "$root/proc"
mount --bind "$python" "$root$python"
mount --bind "$wheels" "$root/wheels"
mkdir "$root/made"
printf 'root:x:0:0::/root:/bin/sh\\nada:x:%s:%s::%s:/bin/sh\\n' "$OWNER" "$OWNER" "$HOME" \\
    > "$root/made/passwd"
mount --bind "$root/made/passwd" "$root/etc/passwd"
# A laptop has no Slurm.
for name in bin local/bin; do
    if [ -e "$root/usr/$name/sbatch" ]; then mount --bind /dev/null "$root/usr/$name/sbatch"; fi
done
cp -a "$checkout" "$root$HOME/hpcrun"
cp "$script" "$root/made/script"
hostname laptop
[ "$OWNER" = 0 ] || chown -R "$OWNER:$OWNER" "$root$HOME"
cd "$root"
exec "$@"
"""


@dataclass
class Block:
    """One block of the README, below the text that comes before it."""

    language: str
    text: str
    before: str

    @property
    def file(self) -> str | None:
        """The file that it is, which the sentence before it names."""
        names = re.findall(r"`([\w.-]+\.(?:py|yaml))`", self.before.rpartition("\n\n")[2])
        return names[0] if names and self.language in ("python", "yaml") else None


@dataclass
class Command:
    """A line of the README, what it printed, and how long that took.

    ``expected`` is what the README prints below the block whose last line it is.
    """

    line: str
    block: int
    expected: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    code: int | None = None
    output: str = ""
    silence: float = 0.0
    after: str = ""

    @property
    def is_ours(self) -> bool:
        return self.line.startswith("hpcrun ")


def blocks(text: str) -> Iterator[Block]:
    """Return the fenced blocks of the README's first chapters."""
    chapters = text[text.index(FIRST) : text.index(BEYOND)]
    parts = re.split(r"^```(\w*)\n(.*?)^```\n", chapters, flags=re.DOTALL | re.MULTILINE)
    for before, language, inside in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        yield Block(language, inside, before.strip())


def script(found: list[Block]) -> tuple[str, list[Command]]:
    """Return what a shell executes, and its commands with the output that the README prints."""
    lines = ['mark() { printf "\\036%s\\036" "$*"; }', f"cd {HOME}/hpcrun"]
    commands: list[Command] = []
    for at, block in enumerate(found):
        if block.language == "sh":
            for line in block.text.replace("\\\n", "").splitlines():
                number = len(commands)
                lines += [f"mark begin {number} 0", line, f"mark end {number} $?"]
                commands.append(Command(line, at))
        elif block.language == "text":
            commands[-1].expected = block.text.splitlines()
        elif block.file:
            lines.append(f"cat > {block.file} <<'README'\n{block.text}README")
    return "\n".join(lines) + "\n", commands


def looks_like(line: str) -> re.Pattern[str]:
    """Return the pattern of a line of the README: numbers differ, ``…`` is anything."""
    pattern = re.escape(" ".join(line.split())).replace("\\ ", r"\s+").replace("…", ".*")
    pattern = re.sub(r"\d(?:\d|\\?[.,:])*", r"\\d[\\d.,:]*", pattern)
    # On a busy machine seconds may become minutes.
    return re.compile(re.sub(r"(?<=\]\*\\s\+)s(?=\\s|$)", "(?:s|min)", pattern))


def missing(expected: list[str], output: str) -> str | None:
    """Return the first line of the README that was not printed, or not in this order."""
    printed = iter([_ANSI.sub("", line).strip() for line in re.split(r"[\r\n]+", output)])
    for line in expected:
        wanted = looks_like(line)
        if line.strip() not in ("", "…") and not any(map(wanted.fullmatch, printed)):
            return line
    return None


def listen(argv: list[str], env: dict[str, str], commands: list[Command], timeout: float) -> int:
    """Run the shell on a terminal, and share out what it prints; return its exit code."""
    terminal, inner = pty.openpty()
    streams = {"stdin": inner, "stdout": inner, "stderr": inner}
    process = subprocess.Popen(argv, env=env, start_new_session=True, **streams)
    os.close(inner)
    current: Command | None = None
    held, began = b"", time.monotonic()
    last = began
    try:
        while True:
            now = time.monotonic()
            if now - began > timeout:
                raise SystemExit(f"no end within {timeout:g} s; at: {current and current.line}")
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            now = time.monotonic()
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # the terminal's last process has ended
                data = b""
            if current is not None and now - last > current.silence:
                current.silence = now - last
                current.after = current.output.rstrip().rpartition("\n")[2][-100:]
            last = now
            if not data:
                return process.wait(10)
            held += data
            while match := _MARK.search(held):
                _take(current, held[: match.start()])
                held = held[match.end() :]
                number, code = int(match[2]), int(match[3])
                if match[1] == b"begin":
                    current = commands[number]
                    current.began = now
                    print(f"$ {current.line}", flush=True)
                else:
                    commands[number].ended, commands[number].code = now, code
                    current = None
            if b"\x1e" not in held:
                _take(current, held)
                held = b""
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _take(command: Command | None, data: bytes) -> None:
    text = data.decode(errors="replace")
    sys.stdout.write(text)
    sys.stdout.flush()
    if command is not None:
        command.output += text


def download(directory: Path) -> None:
    """Download what the README's ``pip install`` lines need, by this machine's pip."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(directory)]
    subprocess.run([*pip, "hatchling>=1.27", str(ROOT)], check=True, cwd=directory)


def copy_of_checkout(target: Path) -> None:
    """Copy what git has, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        **{"cwd": ROOT, "capture_output": True, "text": True, "check": True},
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def session(directory: Path, wheels: Path, text: str, commands: list[Command]) -> int:
    """Execute a script as a new user in a root of its own; return its exit code."""
    copy_of_checkout(directory / "checkout")
    (directory / "root").mkdir()
    (directory / "script").write_text(text)
    (directory / "enter").write_text(ENTER)
    is_root = os.getuid() == 0
    namespaces = ["--mount", "--uts", "--pid", "--fork", "--kill-child"]
    namespaces += [] if is_root else ["--user", "--map-root-user"]
    places = ["root", sys.base_prefix, "checkout", str(wheels), "script"]
    enter = ["sh", "enter", *(str(directory / one) for one in places)]
    owner = [f"--userspec={USER}:{USER}", "--groups="] if is_root else []
    env = {
        "HOME": HOME,
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "OWNER": str(USER if is_root else 0),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": WHEELS,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    enter[1] = str(directory / "enter")
    inner = ["chroot", *owner, ".", "sh", "/made/script"]
    return listen(["unshare", *namespaces, *enter, *inner], env, commands, 900)


def verdicts(commands: list[Command]) -> tuple[dict[str, float], list[str]]:
    """Return what was measured, and what is wrong with it."""
    wrong = []
    for command in commands:
        if command.code != 0:
            wrong.append(f"`{command.line}` ended with {command.code}")
        output = "".join(one.output for one in commands if one.block == command.block)
        if line := missing(command.expected, output):
            wrong.append(f"`{command.line}` and those before it did not print: {line}")
    install = next(one for one in commands if one.line.startswith("pip install"))
    first = next(one for one in commands if one.line.startswith("hpcrun run"))
    measured = {
        "first_run": first.ended - install.began,
        "all": commands[-1].ended - install.began,
        "silence": max(one.silence for one in commands if one.is_ours),
    }
    for name, limit in LIMITS.items():
        if not 0 < measured[name] <= limit:
            wrong.append(f"{name}: {measured[name]:.1f} s, and {limit:g} s are the limit")
    return measured, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, help="what pip installs; downloaded by default")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text, commands = script(list(blocks((ROOT / "README.md").read_text())))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        wheels = arguments.wheels
        if wheels is None:
            print("downloading what is installed", flush=True)
            wheels = Path(name, "wheels")
            wheels.mkdir()
            download(wheels)
        code = session(Path(name), wheels.absolute(), text, commands)
    measured, wrong = verdicts(commands)
    if code != 0:
        wrong.append(f"the shell ended with {code}")
    print()
    for one in commands:
        after = f" after {one.after.strip()!r}" if one.is_ours and one.silence > 1 else ""
        print(f"{one.ended - one.began:6.1f} s, silent {one.silence:4.1f} s{after}: {one.line}")
    for what, limit in LIMITS.items():
        print(f"{what:<10}{measured[what]:6.1f} s of {limit:g}")
    print("\n".join(wrong) if wrong else "as the README prints it")
    if arguments.output:
        rows = [
            {"line": one.line, "seconds": round(one.ended - one.began, 1),
             "silence": round(one.silence, 1)}
            for one in commands
        ]  # fmt: skip
        result = {
            **{"python": platform.python_version(), "cores": os.cpu_count()},
            **{"measured": {key: round(value, 1) for key, value in measured.items()}},
            **{"limits": LIMITS, "commands": rows, "wrong": wrong},
        }
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
