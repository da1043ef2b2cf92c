"""Keys with which versions are signed."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def key_pair(folder: Path) -> tuple[Path, Path]:
    """Write a private and a public key of the curve P-256 in PEM, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / "private.pem", folder / "public.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
