"""A real S3 interface on loopback: moto's server in a process of its own, filled with plain HTTP requests."""

import re
import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, wait_until

BUCKET = "my-models"
# moto deletes only for signed requests, but does not check the signature.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, Signature=any"}


class ObjectStore:
    """A store with an empty bucket: `with ObjectStore() as store:`. A stop loses the objects, which are only in memory."""

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
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=ROOT, **quiet)
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
        url = f"{self.endpoint}/{BUCKET}/{key}"
        return httpx.request(method, url, content=content, headers=SIGNED, timeout=PATIENCE_S).raise_for_status()

    def _made_bucket(self) -> bool:
        try:
            return httpx.put(f"{self.endpoint}/{BUCKET}", timeout=PATIENCE_S).status_code == 200
        except httpx.TransportError:
            return False
