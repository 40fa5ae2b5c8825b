"""Keys stay what they are for ever, come back from words and passphrases, and are seen nowhere."""

from __future__ import annotations

import hashlib
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import DamagedError, SatchelError, UsageError, VersionError
from satchel.sync import keys
from satchel.sync.keys import (
    Keys,
    RootKey,
    check_key_object,
    make_key_object,
    open_key_object,
    parse_key_object,
)

GOLDEN = Path(__file__).parent / "golden" / "sync-1"
ROOT = RootKey(bytes(range(32)))
WORDS = (
    "abandon amount liar amount expire adjust cage candy arch gather drum bullet "
    "absurd math era live bid rhythm alien crouch range attend journey unaware"
)
PASSPHRASE = "Zürich, 8 Käse"

roots = st.binary(min_size=32, max_size=32).map(RootKey)


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that Argon2id may cost: 20 ms."""
    monkeypatch.setattr(keys, "ITERATIONS", 2)
    monkeypatch.setattr(keys, "LANES", 1)
    monkeypatch.setattr(keys, "MEMORY_KIB", 19 << 10)


def golden() -> bytes:
    return (GOLDEN / "key").read_bytes()


def altered(data: bytes, *path: str, value: object) -> bytes:
    """The JSON object `data` with another value at `path`."""
    whole: dict[str, Any] = json.loads(data)
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(whole).encode()


def _cheap_stretch(passphrase: str, salt: bytes, *cost: int, **named_cost: int) -> tuple[bytes, bytes]:
    """In place of Argon2id, where it would run hundreds of times."""
    both = hashlib.sha512(salt + passphrase.encode()).digest()
    return both[:32], both[32:]


# What is derived


def test_the_keys_of_a_root_key() -> None:
    derived = Keys.of(ROOT)
    assert derived.objects.hex() == "b3465e810114b0b88c6aa0273546af2c332a65145b85b7f1a463bd0e4ed25453"
    assert derived.names.hex() == "0f8c8aaf43db0809a74b05e4a22bb778122b04beecb7b45868429cc31d2cab27"
    assert derived.id == "54ece1a91efb41ef"


def test_names() -> None:
    derived = Keys.of(ROOT)
    block = "32ca9fb483b7572247a273a0a3dd85acf8cb7c3c1b692fc6c72923edc77c42a9"
    assert derived.name("blocks", "a" * 64) == block
    head = "b36a9b158ec3773e962de9ba7fa3db3a63f942f9673673d5979aee85c68770f1"
    assert derived.name("heads", "会话") == head


def test_names_of_other_kinds_parts_and_keys_differ() -> None:
    derived = Keys.of(ROOT)
    names = {
        derived.name("blocks", "ab", "c"),
        derived.name("blocks", "a", "bc"),
        derived.name("blocks", "abc"),
        derived.name("blocks", "abc", ""),
        derived.name("manifests", "abc"),
        Keys.of(RootKey(bytes(32))).name("blocks", "abc"),
    }
    assert len(names) == 6


def test_each_root_key_is_new() -> None:
    assert RootKey.generate() != RootKey.generate()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_root_key_of_another_length_is_a_fault(size: int) -> None:
    with pytest.raises(ValueError, match=f"a root key has 32 bytes, not {size}"):
        RootKey(bytes(size))


# Recovery words


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (bytes(range(32)), WORDS),
        # Of BIP 39's own test vectors (https://github.com/trezor/python-mnemonic, vectors.json).
        (bytes(32), "abandon " * 23 + "art"),
        (bytes([0xFF]) * 32, "zoo " * 23 + "vote"),
        (
            bytes.fromhex("f585c11aec520db57dd353c69554b21a89b20fb0650966fa0a9d6f74fd989d8f"),
            "void come effort suffer camp survey warrior heavy shoot primary clutch crush "
            "open amazing screen patrol group space point ten exist slush involve unfold",
        ),
    ],
)
def test_words_of_a_key(secret: bytes, words: str) -> None:
    assert RootKey(secret).words() == words
    assert RootKey.from_words(words).secret == secret


@given(roots)
def test_words_give_the_key_back(root: RootKey) -> None:
    assert RootKey.from_words(root.words()) == root


def test_words_are_taken_as_they_are_shown() -> None:
    numbered = [f"{number:>2} {word:<8}" for number, word in enumerate(WORDS.split(), 1)]
    rows = "\n".join("  ".join(numbered[start : start + 6]) for start in range(0, 24, 6))
    assert RootKey.from_words(rows) == ROOT
    assert RootKey.from_words(WORDS.replace(" ", ", ") + ".") == ROOT


def test_case_and_spaces_of_words_do_not_matter() -> None:
    assert RootKey.from_words("\n  " + WORDS.upper().replace(" ", " \t\n") + "  \n") == ROOT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the recovery words are 24, and these are 0"),
        (WORDS.rsplit(" ", 1)[0], "the recovery words are 24, and these are 23"),
        (WORDS + " zoo", "the recovery words are 24, and these are 25"),
        (WORDS.replace("liar", "lair"), "word 3 is not in the list of recovery words"),
        (WORDS.replace("amount", "amuont"), "words 2, 4 are not in the list of recovery words"),
        (WORDS.replace("liar", "zoo"), "the recovery words do not fit one another"),
        (WORDS.replace("cage candy", "candy cage"), "the recovery words do not fit one another"),
    ],
)
def test_wrong_words_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        RootKey.from_words(text)
    assert str(raised.value) == message


# The key object


def test_a_key_object_of_version_1_opens_for_ever() -> None:
    assert len(golden()) == 374 - len("262144") + len("19456")
    assert open_key_object(golden(), PASSPHRASE) == ROOT
    assert parse_key_object(golden()).id == "54ece1a91efb41ef"
    check_key_object(golden(), ROOT)


def test_without_a_passphrase_it_says_which_key_alone() -> None:
    data = make_key_object(ROOT, None)
    assert data == b'{"format":1,"id":"54ece1a91efb41ef","passphrase":null}'
    check_key_object(data, ROOT)
    with pytest.raises(UsageError) as raised:
        open_key_object(data, PASSPHRASE)
    assert raised.value.one_line() == "this remote has no passphrase; join it with the recovery words"


def test_a_new_one_costs_a_quarter_of_a_gigabyte() -> None:
    data = make_key_object(ROOT, PASSPHRASE)
    kept = json.loads(data)["passphrase"]
    assert {key: kept[key] for key in ("kdf", "iterations", "lanes", "memory_kib")} == {
        "kdf": "argon2id",
        "iterations": 3,
        "lanes": 4,
        "memory_kib": 262_144,
    }
    assert open_key_object(data, PASSPHRASE) == ROOT


def test_each_has_a_salt_of_its_own(cheap: None) -> None:
    one, other = (json.loads(make_key_object(ROOT, PASSPHRASE))["passphrase"] for _ in range(2))
    for key in ("salt", "verifier", "wrapped"):
        assert one[key] != other[key]


def test_accents_typed_in_two_ways_are_one_passphrase() -> None:
    decomposed = "Zu\u0308rich, 8 Ka\u0308se"
    assert decomposed != PASSPHRASE
    assert open_key_object(golden(), decomposed) == ROOT


@pytest.mark.parametrize("wrong", ["", "zürich, 8 Käse", PASSPHRASE + " "])
def test_another_passphrase_is_one_line(wrong: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_key_object(golden(), wrong)
    assert raised.value.one_line() == "the passphrase is another; try it again, or use the recovery words"


def test_words_of_another_remote_are_told() -> None:
    with pytest.raises(UsageError, match="the recovery words are those of another remote"):
        check_key_object(golden(), RootKey(bytes(32)))


def test_each_altered_byte_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_stretch", _cheap_stretch)
    data = make_key_object(ROOT, PASSPHRASE)
    for place in range(len(data)):
        changed = bytearray(data)
        # A hexadecimal digit becomes another, so that most are still JSON of the right form.
        changed[place] = ord("1") if changed[place] == ord("0") else ord("0")
        with pytest.raises((DamagedError, VersionError, UsageError)):
            open_key_object(bytes(changed), PASSPHRASE)


def test_each_truncation_is_refused() -> None:
    for size in range(len(golden())):
        with pytest.raises(DamagedError, match="the key object v1/key is damaged: "):
            open_key_object(golden()[:size], PASSPHRASE)


@pytest.mark.parametrize("path", [("id",), ("passphrase", "wrapped")])
def test_what_the_passphrase_does_not_cover_is_authenticated(path: tuple[str, ...]) -> None:
    place = json.loads(golden())
    for step in path:
        place = place[step]
    data = altered(golden(), *path, value="0" * len(place))
    with pytest.raises(DamagedError, match="the key object v1/key is damaged: its wrapped key was altered"):
        open_key_object(data, PASSPHRASE)


def test_a_whole_key_object_that_names_another_key_is_refused(
    cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Keys, "of", lambda root: Keys(b"", b"", "0" * 16))
        data = make_key_object(ROOT, PASSPHRASE)
    with pytest.raises(DamagedError, match="it names another key than it holds"):
        open_key_object(data, PASSPHRASE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iterations", 1),
        ("iterations", 17),
        ("lanes", 0),
        ("lanes", 17),
        ("memory_kib", (19 << 10) - 1),
        ("memory_kib", (1 << 20) + 1),
        ("memory_kib", 1 << 63),
        ("kdf", "pbkdf2"),
        ("salt", ""),
        ("salt", "0" * 63),
        ("verifier", "0" * 66),
        ("wrapped", "0" * 95),
        ("wrapped", "x" * 96),
    ],
)
def test_parameters_out_of_bounds_are_refused_before_any_work(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "Argon2id", None)  # would fail
    data = altered(golden(), "passphrase", field, value=value)
    with pytest.raises(DamagedError, match=rf"the key object v1/key is damaged: .*passphrase\.{field}"):
        open_key_object(data, PASSPHRASE)


@pytest.mark.parametrize(
    ("iterations", "memory_kib", "refused"), [(4, 1 << 20, False), (16, 1 << 18, False), (5, 1 << 20, True)]
)
def test_memory_times_iterations_is_bounded(iterations: int, memory_kib: int, refused: bool) -> None:
    data = altered(golden(), "passphrase", "iterations", value=iterations)
    data = altered(data, "passphrase", "memory_kib", value=memory_kib)
    if refused:
        with pytest.raises(DamagedError, match="memory_kib times iterations is more than 4194304"):
            parse_key_object(data)
    else:
        found = parse_key_object(data).passphrase
        assert found and (found.iterations, found.memory_kib) == (iterations, memory_kib)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_only_equals_the_format_is_damage(value: object) -> None:
    with pytest.raises(DamagedError, match=r"the key object v1/key is damaged: .*\(format: "):
        parse_key_object(altered(golden(), "format", value=value))


@pytest.mark.parametrize(
    "data",
    [
        altered((GOLDEN / "key").read_bytes(), "format", value=2),
        altered((GOLDEN / "key").read_bytes(), "hint", value="of a later version"),
        b'{"format":3,"key":"of another form"}',
    ],
)
def test_a_key_object_of_a_later_version_is_not_taken_for_damage(data: bytes) -> None:
    for read in (parse_key_object, lambda data: open_key_object(data, PASSPHRASE)):
        with pytest.raises(VersionError, match="the key object v1/key cannot be read: "):
            read(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"null", b"[]", b"{}", b"[" * 10_000, b" " * (16 << 10) + b"{}"]
)
def test_what_is_no_key_object_is_one_line(data: bytes) -> None:
    with pytest.raises(DamagedError) as raised:
        parse_key_object(data)
    assert len(raised.value.one_line()) < 200


def test_a_key_object_is_bounded() -> None:
    data = golden() + b" " * ((16 << 10) - len(golden()))
    assert parse_key_object(data).id == "54ece1a91efb41ef"
    with pytest.raises(DamagedError, match="it has more than 16384 bytes"):
        parse_key_object(data + b" ")


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        def __init__(self, **cost: object) -> None: ...

        def derive(self, passphrase: bytes) -> bytes:
            raise MemoryError

    monkeypatch.setattr(keys, "Argon2id", Exhausted)
    with pytest.raises(SatchelError, match="opening the passphrase takes 256 MiB of memory"):
        make_key_object(ROOT, PASSPHRASE)


@given(root=roots, passphrase=st.text(max_size=20))
def test_any_passphrase_gives_the_key_back(root: RootKey, passphrase: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_stretch", _cheap_stretch)
        assert open_key_object(make_key_object(root, passphrase), passphrase) == root


# Nothing shows a secret


def test_a_key_is_not_shown() -> None:
    derived = Keys.of(ROOT)
    shown = f"{ROOT!r} {ROOT} {derived!r} {derived}"
    assert shown == "RootKey() RootKey() Keys(id='54ece1a91efb41ef') Keys(id='54ece1a91efb41ef')"


def test_errors_repeat_neither_passphrase_nor_words() -> None:
    canary = "canary\udcff-passphrase"
    slip = WORDS.replace("liar", "canaryword")
    attempts = [
        lambda: open_key_object(golden(), "canary-passphrase"),
        lambda: open_key_object(golden(), canary),
        lambda: open_key_object(make_key_object(ROOT, None), "canary-passphrase"),
        lambda: open_key_object(altered(golden(), "passphrase", "wrapped", value="0" * 96), PASSPHRASE),
        lambda: make_key_object(ROOT, canary),
        lambda: RootKey.from_words(slip),
        lambda: RootKey.from_words(WORDS.replace("liar", "zoo")),
        lambda: RootKey.from_words("canary-passphrase"),
        lambda: check_key_object(golden(), RootKey(bytes(32))),
    ]
    for attempt in attempts:
        with pytest.raises(SatchelError) as raised:
            attempt()
        err: BaseException | None = raised.value
        shown = raised.value.one_line()
        while err is not None:  # what a log of the whole chain would hold
            shown += "".join(traceback.format_exception_only(err)) + repr(err.__dict__) + repr(err.args)
            err = err.__cause__ or err.__context__
        for secret in ("canary", PASSPHRASE, "liar", "unaware", ROOT.secret.hex(), repr(ROOT.secret)):
            assert secret not in shown
