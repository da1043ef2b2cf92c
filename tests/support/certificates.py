"""A certificate authority, and certificates that it signs, as PEM files in a folder."""

from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.cert = folder / "root.pem"
        self._authority.cert_pem.write_to_path(self.cert)

    def sign(self, name: str) -> Files:
        """Sign a certificate for loopback addresses."""
        issued = self._authority.issue_cert("localhost", "127.0.0.1", common_name=name)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(files.cert)
        issued.private_key_pem.write_to_path(files.key)
        return files
