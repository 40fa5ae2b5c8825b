"""The root key of a remote, all that is derived from it, and the object that keeps it under a passphrase.

Knows nothing of remotes, and of where a machine keeps the key.

The key object is as public as the bucket: who has it may guess passphrases, each for half a second of a core
and 256 MiB. The 2 * 10^11 of eight random lower-case letters take 3,000 cores a year; the million that people
pick most often take one core six days. Five random words, or no passphrase at all, are out of reach.
"""

from __future__ import annotations

import hmac
import re
import secrets
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, model_validator
from pydantic_core import from_json

from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, UsageError, VersionError

if TYPE_CHECKING:
    from mnemonic import Mnemonic

KEY_OBJECT = "v1/key"
MAX_KEY_OBJECT_BYTES = 16 << 10
FORMAT = 1
KEY_BYTES = 32
WORDS = 24

# What a new key object costs to open: between the first recommendation of RFC 9106, section 4 (2 GiB, which
# an 8 GB Mac with a model loaded has not) and its second (64 MiB, as many iterations and lanes).
ITERATIONS = 3
LANES = 4
MEMORY_KIB = 256 << 10

# What is taken from a bucket, whose owner may want this machine to run out of memory, or the passphrase to be
# cheap to guess. The minimum is the weakest that OWASP's Password Storage Cheat Sheet still recommends.
_MIN_ITERATIONS, _MAX_ITERATIONS = 2, 16
_MAX_LANES = 16
_MIN_MEMORY_KIB, _MAX_MEMORY_KIB = 19 << 10, 1 << 20
_MAX_WORK_KIB = 4 << 20  # memory times iterations: five times what a new one costs

_INFO = b"satchel.sync/1 "
_NAME_TAG = b"satchel.name/1"
_SALT_BYTES = 32
_NONCE = bytes(12)

_Hex8 = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Hex48 = Annotated[str, Field(pattern=r"^[0-9a-f]{96}$")]


@dataclass(frozen=True, slots=True)
class RootKey:
    """32 random bytes that all keys of a remote come from. Never shown but as `words`."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a root key has {KEY_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def generate(cls) -> RootKey:
        return cls(secrets.token_bytes(KEY_BYTES))

    def words(self) -> str:
        """The key as 24 English words with a checksum of 8 bits, after BIP 39 (the entropy, not its seed)."""
        return _mnemonic().to_mnemonic(self.secret)

    @classmethod
    def from_words(cls, text: str) -> RootKey:
        """The key whose `words` these are. Case does not matter, nor numbers, signs and lines between them.

        Raises:
            UsageError: not 24 words, one that is none of the list, or a wrong checksum. No word is repeated
                in the message, which may end up in a log: a wrong one is named by its place.
        """
        given = words_in(text)
        if len(given) != WORDS:
            raise UsageError(f"the recovery words are {WORDS}, and these are {len(given)}")
        known = set(_mnemonic().wordlist)
        if wrong := [str(place) for place, word in enumerate(given, 1) if word not in known]:
            places = f"word {wrong[0]} is" if len(wrong) == 1 else f"words {', '.join(wrong)} are"
            raise UsageError(f"{places} not in the list of recovery words", "look for a slip of the pen")
        if not _mnemonic().check(" ".join(given)):
            raise UsageError(
                "the recovery words do not fit one another", "one is another, or their order is another"
            )
        return cls(bytes(_mnemonic().to_entropy(given)))


def words_in(text: str) -> list[str]:
    """What may be recovery words, in lower case."""
    parts = re.split(r"[\W\d_]+", unicodedata.normalize("NFKD", text).lower())
    return [part for part in parts if part]


@dataclass(frozen=True, slots=True)
class Keys:
    """What is derived from a root key.

    Attributes:
        objects: encrypts objects, 32 bytes.
        names: keys the names of objects, 32 bytes.
        id: names the root key, and tells nothing about it; 16 hex digits.
    """

    objects: bytes = field(repr=False)
    names: bytes = field(repr=False)
    id: str

    @classmethod
    def of(cls, root: RootKey) -> Keys:
        """HKDF-SHA256 (RFC 5869) with an `info` of its own for each key: none says anything about another."""
        return cls(
            objects=_derive(root, b"objects", KEY_BYTES),
            names=_derive(root, b"names", KEY_BYTES),
            id=_derive(root, b"id", 8).hex(),
        )

    def name(self, kind: str, *parts: str) -> str:
        """HMAC-SHA256 of `parts` among names of `kind`, 64 hex digits: equal for equal parts, else random to
        whoever has not the key."""
        digest = hmac.new(self.names, _NAME_TAG, "sha256")
        for part in (kind, *parts):
            value = part.encode()
            digest.update(len(value).to_bytes(8, "little") + value)
        return digest.hexdigest()


class _Passphrase(Record):
    """The root key, wrapped. All of it but `wrapped` is authenticated by it.

    Attributes:
        verifier: hex of the second half of what Argon2id makes of the passphrase.
        wrapped: hex of the root key under AES-256-GCM with the first half, and its tag.
    """

    kdf: Literal["argon2id"]
    salt: _Hex32
    iterations: Annotated[int, Field(ge=_MIN_ITERATIONS, le=_MAX_ITERATIONS)]
    lanes: Annotated[int, Field(ge=1, le=_MAX_LANES)]
    memory_kib: Annotated[int, Field(ge=_MIN_MEMORY_KIB, le=_MAX_MEMORY_KIB)]
    verifier: _Hex32
    wrapped: _Hex48

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        if self.memory_kib * self.iterations > _MAX_WORK_KIB:
            raise ValueError(f"memory_kib times iterations is more than {_MAX_WORK_KIB}")
        return self


class KeyObject(Record):
    """What `v1/key` says: the `Keys.id` of the root key and, unless words alone open it, the key wrapped."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]  # a Literal would let `true` and 1.0 pass
    id: _Hex8
    passphrase: _Passphrase | None


def make_key_object(root: RootKey, passphrase: str | None) -> bytes:
    """The key object of a remote. With no passphrase it only says which key the remote has.

    Raises:
        UsageError: the passphrase is not text.
        SatchelError: too little memory for Argon2id.
    """
    head = {"format": FORMAT, "id": Keys.of(root).id}
    if passphrase is None:
        return canonical_json({**head, "passphrase": None})
    salt = secrets.token_bytes(_SALT_BYTES)
    cost = {"iterations": ITERATIONS, "lanes": LANES, "memory_kib": MEMORY_KIB}
    wrapping, verifier = _stretch(passphrase, salt, **cost)
    terms = {"kdf": "argon2id", "salt": salt.hex(), **cost, "verifier": verifier.hex()}
    associated = canonical_json({**head, "passphrase": terms})
    # The nonce may be zero: the salt gives every wrapping a key of its own.
    wrapped = AESGCM(wrapping).encrypt(_NONCE, root.secret, associated)
    return canonical_json({**head, "passphrase": {**terms, "wrapped": wrapped.hex()}})


def open_key_object(data: bytes, passphrase: str) -> RootKey:
    """The root key of a remote.

    The verifier is compared before anything is decrypted. It commits to the passphrase: AES-GCM does not, and
    one made-up ciphertext that opens under thousands of passphrases would let the bucket's owner try them all
    at once (Len, Grubbs, Ristenpart, "Partitioning Oracle Attacks", USENIX Security 2021, section 7).

    Raises:
        UsageError: the passphrase is another, or the remote has none.
        DamagedError: no key object, or one with parameters beyond what is taken from a bucket.
        VersionError: it is of a format that this version does not know.
        SatchelError: too little memory for Argon2id.
    """
    key_object = parse_key_object(data)
    kept = key_object.passphrase
    if kept is None:
        raise UsageError("this remote has no passphrase", "join it with the recovery words")
    wrapping, verifier = _stretch(
        passphrase, bytes.fromhex(kept.salt), kept.iterations, kept.lanes, kept.memory_kib
    )
    if not hmac.compare_digest(verifier, bytes.fromhex(kept.verifier)):
        raise UsageError("the passphrase is another", "try it again, or use the recovery words")
    terms = kept.model_dump(mode="json", exclude={"wrapped"})
    associated = canonical_json({"format": key_object.format, "id": key_object.id, "passphrase": terms})
    try:
        root = RootKey(AESGCM(wrapping).decrypt(_NONCE, bytes.fromhex(kept.wrapped), associated))
    except InvalidTag as err:
        raise _damaged("its wrapped key was altered") from err
    if Keys.of(root).id != key_object.id:
        raise _damaged("it names another key than it holds")
    return root


def check_key_object(data: bytes, root: RootKey) -> None:
    """
    Raises:
        UsageError: `root` is the key of another remote.
        DamagedError, VersionError: as of `open_key_object`.
    """
    if parse_key_object(data).id != Keys.of(root).id:
        raise UsageError("the recovery words are those of another remote")


def parse_key_object(data: bytes) -> KeyObject:
    """
    Raises:
        DamagedError, VersionError: as of `open_key_object`.
    """
    try:
        if len(data) > MAX_KEY_OBJECT_BYTES:
            raise DamagedError(f"it has more than {MAX_KEY_OBJECT_BYTES} bytes")
        _check_format(data)
        return KeyObject.parse(data)
    except DamagedError as err:
        raise _damaged(str(err)) from err
    except VersionError as err:
        raise VersionError(f"the key object {KEY_OBJECT} cannot be read: {err}") from err


def _check_format(data: bytes) -> None:
    try:
        value: Any = from_json(data)
    except ValueError:
        return  # `Record.parse` says so
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is int and found != FORMAT:
        raise VersionError(f"it was made by another version of Satchel (format {found}, not {FORMAT})")


def _damaged(reason: str) -> DamagedError:
    return DamagedError(f"the key object {KEY_OBJECT} is damaged: {reason}")


def _derive(root: RootKey, purpose: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=_INFO + purpose).derive(root.secret)


def normalised(passphrase: str) -> str:
    """In NFC, as each system types accents in its own way.

    Raises:
        UsageError: it cannot be written in UTF-8.
    """
    # Asked beforehand, since the error of `encode` would hold the passphrase.
    if any("\ud800" <= char <= "\udfff" for char in passphrase):
        raise UsageError("the passphrase is not text in UTF-8")
    return unicodedata.normalize("NFC", passphrase)


def _stretch(
    passphrase: str, salt: bytes, iterations: int, lanes: int, memory_kib: int
) -> tuple[bytes, bytes]:
    """The wrapping key and the verifier: Argon2id (RFC 9106) of the passphrase in UTF-8, `normalised`.

    Raises:
        UsageError: it cannot be written in UTF-8.
        SatchelError: too little memory.
    """
    text = normalised(passphrase)
    kdf = Argon2id(
        salt=salt, length=2 * KEY_BYTES, iterations=iterations, lanes=lanes, memory_cost=memory_kib
    )
    try:
        both = kdf.derive(text.encode())
    except MemoryError as err:
        raise SatchelError(f"opening the passphrase takes {memory_kib >> 10} MiB of memory") from err
    return both[:KEY_BYTES], both[KEY_BYTES:]


@cache
def _mnemonic() -> Mnemonic:
    from mnemonic import Mnemonic

    return Mnemonic("english")
