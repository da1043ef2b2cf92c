"""Two S3 interfaces on loopback, each in a process of its own, filled with plain HTTP requests: moto's server, and Swift."""

import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, wait_until

BUCKET = "my-models"
SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's packages
HAS_SWIFT = subprocess.run([SYSTEM_PYTHON, "-c", "import swift"], check=False, capture_output=True).returncode == 0


class ObjectStore:
    """A store with an empty bucket: `with ObjectStore() as store:`. A stop loses the objects, which are only in memory."""

    key = secret = "any"

    @property
    def credentials(self) -> dict[str, str]:
        """Return the environment of a client."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ObjectStore":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command(), cwd=ROOT, **quiet)
        try:
            wait_until(self._made_bucket, START_TIMEOUT_S, "a bucket")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def empty(self) -> None:
        """Empty the bucket; start the store if it does not run."""
        if self._process is None:
            self.start()
        self._empty()

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _empty(self) -> None:
        httpx.post(f"{self.endpoint}/moto-api/reset", timeout=PATIENCE_S).raise_for_status()
        wait_until(self._made_bucket, what="a bucket")

    def put(self, key: str, content: bytes) -> None:
        self._call("PUT", key, content)

    def delete(self, key: str) -> None:
        self._call("DELETE", key)

    def begin_upload(self, key: str, first_part: bytes) -> str:
        """Begin a multipart upload, and leave it incomplete. Return its id."""
        upload = re.search(r"<UploadId>(.+?)</UploadId>", self._call("POST", f"{key}?uploads").text)
        assert upload is not None
        self._call("PUT", f"{key}?partNumber=1&uploadId={upload[1]}", first_part)
        return upload[1]

    def put_folder(self, folder: Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def delete_folder(self, folder: Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.delete(f"{prefix}/{path.relative_to(folder)}")

    def _call(self, method: str, key: str, content: bytes = b"") -> httpx.Response:
        address = f"{self.endpoint}/{BUCKET}/{key}" if key else f"{self.endpoint}/{BUCKET}"
        request = AWSRequest(method, address, data=content)
        S3SigV4Auth(Credentials(self.key, self.secret), "s3", "us-east-1").add_auth(request)
        answer = httpx.request(method, request.url, content=content, headers=dict(request.headers), timeout=PATIENCE_S)
        return answer.raise_for_status()

    def _made_bucket(self) -> bool:
        try:
            self._call("PUT", "")
        except httpx.HTTPError:
            return False
        return True


class SwiftStore(ObjectStore):
    """OpenStack Swift, which keeps its objects when it is stopped, and has no conditional writes."""

    key, secret = "test:tester", "testing"

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="slipway-swift-", ignore_cleanup_errors=True)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._folder.cleanup()

    def _command(self) -> list[str]:
        return [SYSTEM_PYTHON, str(Path(__file__).with_name("swift_server.py")), self._folder.name, str(self.port)]

    def _empty(self) -> None:
        """Remove the objects; a test leaves less than a page of them."""
        for key in re.findall("<Key>(.+?)</Key>", self._call("GET", "").text):
            self.delete(key)


class Stores(ExitStack):
    """One store of each class, started when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[type[ObjectStore], ObjectStore] = {}

    def empty(self, kind: type[ObjectStore]) -> ObjectStore:
        """Return the store of a class, with an empty bucket."""
        if kind not in self._started:
            self._started[kind] = self.enter_context(kind())
        self._started[kind].empty()
        return self._started[kind]


def both_stores(fixture: str) -> pytest.MarkDecorator:
    """Run a test with each store, whose class a fixture takes as its parameter."""
    needs_swift = pytest.mark.skipif(not HAS_SWIFT, reason="needs Debian's package python3-swift")
    swift = pytest.param(SwiftStore, id="swift", marks=needs_swift)
    return pytest.mark.parametrize(fixture, [pytest.param(ObjectStore, id="moto"), swift], indirect=True)
