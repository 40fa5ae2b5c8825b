"""Objects that nobody but the key's owner can read or alter, on any remote.

Knows nothing of what objects hold, of where the key is from, or of the remote beneath. An object is

    b"SATCENC", a version byte (1), 32 random bytes (the salt), AES-256-GCM of the padded content with its tag

The key is HKDF-SHA256 (RFC 5869) of the remote's object key under the object's salt. It is used once, so that
the nonce is twelve zero bytes. The associated data is `satchel.object/1`, a zero byte and the object's name.
A name says what an object is: its kind is its folder, the rest is a keyed digest of what it holds, or of what
it is the n-th entry of. So an object that is changed, cut, swapped or put under another name is refused. One
that is withheld is not noticed here.

The padded content is its length (uint64, little-endian), the content, zeros. Names and the number of objects
can be seen by whoever has the bucket; sizes as far as `padded_bytes` leaves them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.remotes.remote import Listed, Remote, Stat, check_name

VERSION = 1
KEY_BYTES = 32
# Smaller objects (a head's entry is one) all get this size: Padmé alone would tell how long a name is.
MIN_PADDED_BYTES = 1024
MAX_CONTENT_BYTES = 3 << 29  # `cryptography` takes 2^31 - 1 at once, with padding

_MAGIC = b"SATCENC"
_INFO = b"satchel.object/1"
_SALT_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + 1 + _SALT_BYTES
_NONCE = bytes(12)
_TAG_BYTES = 16
_LENGTH_BYTES = 8


class EncryptedRemote:
    """`inner`, with all content encrypted under `object_key` (32 bytes).

    Sizes that `stat` and `list` tell are of the encrypted objects: `stored_bytes` of their contents.
    """

    def __init__(self, inner: Remote, object_key: bytes) -> None:
        if len(object_key) != KEY_BYTES:
            raise ValueError(f"an object key has {KEY_BYTES} bytes, not {len(object_key)}")
        self.inner = inner
        self._key = object_key

    def put(self, name: str, data: bytes) -> None:
        self.inner.put(name, seal(self._key, name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.inner.put_if_absent(name, seal(self._key, name, data))

    def get(self, name: str, max_bytes: int) -> bytes:
        """As of `Remote`; `max_bytes` bounds the content.

        Raises:
            DamagedError: also where the object was altered, is another's, or was made with another key.
            VersionError: it is of a format that this version does not know.
        """
        data = unseal(self._key, name, self.inner.get(name, stored_bytes(max_bytes)))
        if len(data) > max_bytes:  # the padding may have had room for it
            raise DamagedError(f"object {name} has {len(data)} bytes where at most {max_bytes} are right")
        return data

    def stat(self, name: str) -> Stat | None:
        return self.inner.stat(name)

    def list(self, prefix: str) -> Iterator[Listed]:
        return self.inner.list(prefix)

    def delete(self, name: str) -> None:
        self.inner.delete(name)


def seal(key: bytes, name: str, content: bytes) -> bytes:
    """The object that holds `content` under `name`; another one at each call.

    Raises:
        SatchelError: more than `MAX_CONTENT_BYTES`.
        ValueError: the name is none.
    """
    check_name(name)
    if len(content) > MAX_CONTENT_BYTES:
        raise SatchelError(f"an object of {len(content)} bytes is more than can be encrypted")
    used = _LENGTH_BYTES + len(content)
    padding = bytes(padded_bytes(used) - used)
    plaintext = b"".join((len(content).to_bytes(_LENGTH_BYTES, "little"), content, padding))
    salt = secrets.token_bytes(_SALT_BYTES)
    ciphertext = _cipher(key, salt).encrypt(_NONCE, plaintext, _associated(name))
    return b"".join((_MAGIC, bytes([VERSION]), salt, ciphertext))


def unseal(key: bytes, name: str, data: bytes) -> bytes:
    """The content of an object that was sealed under `name`.

    Raises:
        DamagedError, VersionError: as of `EncryptedRemote.get`.
    """
    view = memoryview(data)
    if len(view) < _HEADER_BYTES or view[: len(_MAGIC)] != _MAGIC:
        raise _damaged(name)
    if (version := view[len(_MAGIC)]) != VERSION:
        raise VersionError(
            f"object {name} was saved by another version of Satchel (format {version}, not {VERSION})"
        )
    salt = bytes(view[len(_MAGIC) + 1 : _HEADER_BYTES])
    try:
        plaintext = _cipher(key, salt).decrypt(_NONCE, view[_HEADER_BYTES:], _associated(name))
    except InvalidTag as err:
        raise _damaged(name) from err
    used = _LENGTH_BYTES + int.from_bytes(plaintext[:_LENGTH_BYTES], "little")
    if len(plaintext) != padded_bytes(used):  # authentic, so that only a faulty writer made it
        raise _damaged(name)
    return plaintext[_LENGTH_BYTES:used]


def stored_bytes(content_bytes: int) -> int:
    """The size of the object that holds so many bytes."""
    return _HEADER_BYTES + padded_bytes(_LENGTH_BYTES + content_bytes) + _TAG_BYTES


def padded_bytes(size: int) -> int:
    """Padmé: the smallest size not below `size` that, as a floating-point number, has a mantissa no longer
    than its exponent. Sizes up to `MIN_PADDED_BYTES` become that.

    It adds at most 1/16, from 64 KiB on 1/32, on average half of that, and leaves an observer O(log log n)
    bits of the size.

    Nikitin et al., "Reducing Metadata Leakage from Encrypted Files and Communication with PURBs", PoPETs
    2019(4), doi:10.2478/popets-2019-0056, section 4; https://lbarman.ch/blog/padme/
    """
    if size <= MIN_PADDED_BYTES:
        return MIN_PADDED_BYTES
    exponent = size.bit_length() - 1
    step = 1 << (exponent - exponent.bit_length())
    return -(-size // step) * step


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    """Every salt has a key of its own, so that no count of objects wears a key out (NIST SP 800-38D, 8.3)."""
    return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_INFO).derive(key))


def _associated(name: str) -> bytes:
    return _INFO + b"\0" + name.encode()


def _damaged(name: str) -> DamagedError:
    return DamagedError(f"object {name} is damaged, or of another key")
