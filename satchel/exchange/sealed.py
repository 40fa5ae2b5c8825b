"""A stream that nobody without its key can read or change. Knows nothing of what is in it.

The STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its
Nonce-Reuse Misuse-Resistance" (https://eprint.iacr.org/2015/189), as age has it (https://c2sp.org/age,
"Payload"), with AES-256-GCM. Every file has its own key, so that nonces can count chunks:

    header   `SATSEAL` and a version byte; 32 random bytes of salt
    key      HKDF-SHA256 (RFC 5869) of the stream's key, with the salt and the info `satchel.seal/1`
    chunks   of 256 KiB, the last one shorter or not, each with a tag of 16 bytes
    nonce    11 bytes: the chunk's number from 0, big-endian; 1 byte: 1 for the last chunk, else 0

The last chunk is empty only where the whole stream is. So chunks that are dropped, repeated, reordered or
added, at either end or between, are noticed when they are read; what was read before is right.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from satchel.errors import DamagedError, UsageError, VersionError

MAGIC = b"SATSEAL"
VERSION = 1
SALT_BYTES = 32
HEADER_BYTES = len(MAGIC) + 1 + SALT_BYTES
CHUNK_BYTES = 256 << 10
TAG_BYTES = 16
KEY_BYTES = 32

_INFO = b"satchel.seal/1"


@dataclass(frozen=True, slots=True)
class SealKey:
    """The key of one stream. It shows itself in `text` only."""

    data: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SealKey:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> SealKey:
        """
        Raises:
            UsageError: it is no key; does not repeat it.
        """
        try:
            key = cls(base64.urlsafe_b64decode(text.encode("ascii") + b"="))
        except (UnicodeEncodeError, binascii.Error):
            key = cls(b"")
        # Decoding passes over what is not base64, and takes several texts for one key.
        if len(key.data) != KEY_BYTES or key.text() != text:
            raise UsageError("that is no key", "a key has 43 letters, digits, '-' and '_'")
        return key

    def text(self) -> str:
        """The key in 43 characters of base64url."""
        return base64.urlsafe_b64encode(self.data).rstrip(b"=").decode()


class Sealer:
    """Seals what is written to it into `file`. Without `finish` what is in `file` is of no use."""

    def __init__(self, file: IO[bytes], key: SealKey) -> None:
        salt = secrets.token_bytes(SALT_BYTES)
        self._file = file
        self._chunks = _Chunks(key, salt)
        self._pending = bytearray()
        self.size = 0  # of what was written so far, in bytes
        file.write(MAGIC + bytes([VERSION]) + salt)

    def write(self, data: bytes) -> int:
        self._pending += data
        self.size += len(data)
        # A whole chunk waits until more comes: it could be the last.
        sealed = 0
        while len(self._pending) - sealed > CHUNK_BYTES:
            self._file.write(self._chunks.seal(bytes(self._pending[sealed : sealed + CHUNK_BYTES]), False))
            sealed += CHUNK_BYTES
        del self._pending[:sealed]
        return len(data)

    def finish(self) -> None:
        """Seal the last chunk. Nothing can be written any more."""
        self._file.write(self._chunks.seal(bytes(self._pending), True))
        self._pending.clear()


@contextmanager
def sealing(file: IO[bytes], key: SealKey) -> Iterator[Sealer]:
    """A `Sealer` that is finished when the block ends without an error."""
    sealer = Sealer(file, key)
    yield sealer
    sealer.finish()


class Unsealer:
    """Reads what is sealed in `file`, which may come from anywhere, from its present place to its end.

    Raises:
        DamagedError: it is no sealed stream.
        VersionError: it is one of another version.
    """

    def __init__(self, file: IO[bytes], key: SealKey) -> None:
        header = file.read(HEADER_BYTES)
        if len(header) != HEADER_BYTES or not header.startswith(MAGIC):
            raise DamagedError("it is no sealed session")
        version = header[len(MAGIC)]
        if version != VERSION:
            raise VersionError(f"it is of another version of Satchel (format {version}, not {VERSION})")
        self._file = file
        self._chunks = _Chunks(key, header[-SALT_BYTES:])
        self._ahead = file.read(CHUNK_BYTES + TAG_BYTES)
        self._first, self._ended = True, False
        self._rest = memoryview(b"")  # of the chunk that is being read

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end, once it is known to be the right one.

        Raises:
            DamagedError: the key is another, or what is read, or the end, is not what was sealed.
        """
        pieces = []
        while size > 0 and (self._rest or not self._ended):
            if not self._rest:
                self._rest = memoryview(self._next_chunk())
            pieces.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _next_chunk(self) -> bytes:
        sealed, self._ahead = self._ahead, self._file.read(CHUNK_BYTES + TAG_BYTES)
        self._ended, first, self._first = not self._ahead, self._first, False
        try:
            data = self._chunks.unseal(sealed, self._ended)
        except InvalidTag as err:
            fault = "the key is another, or it is damaged" if first else "it is damaged, or not whole"
            raise DamagedError(fault) from err
        if not data and not first:
            raise DamagedError("it ends with an empty chunk")
        return data


class _Chunks:
    """The cipher of one stream, which counts its chunks."""

    def __init__(self, key: SealKey, salt: bytes) -> None:
        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_INFO).derive(key.data)
        self._cipher = AESGCM(derived)
        self._count = 0

    def seal(self, data: bytes, last: bool) -> bytes:
        return self._cipher.encrypt(self._nonce(last), data, None)

    def unseal(self, sealed: bytes, last: bool) -> bytes:
        """
        Raises:
            InvalidTag: it is not what was sealed at this place with this key.
        """
        return self._cipher.decrypt(self._nonce(last), sealed, None)

    def _nonce(self, last: bool) -> bytes:
        nonce = self._count.to_bytes(11, "big") + bytes([last])
        self._count += 1
        return nonce
