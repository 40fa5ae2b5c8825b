"""A remote gets one key; a machine gets it with the passphrase or the words, and keeps it in a safe place."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import keyring
import pytest
from keychains import BrokenKeychain, LockedKeychain, MemoryKeychain
from keyring.backends.null import Keyring as NullKeychain

from satchel.errors import (
    DamagedError,
    NetworkError,
    NotFoundError,
    RefusedError,
    SatchelError,
    UsageError,
    VersionError,
)
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import Remote, TransientError
from satchel.remotes.s3 import Credentials
from satchel.sync import keys, secrets, setup
from satchel.sync.configuration import SyncConfig, config_path, is_configured, load_config, save_config
from satchel.sync.credentials import default_address, default_endpoint, default_region, s3_credentials
from satchel.sync.keys import Keys, RootKey
from satchel.sync.secrets import forget_root, load_credentials, load_root, save_credentials, save_root
from satchel.sync.setup import (
    Destination,
    SetUp,
    check_free,
    check_passphrase,
    has_passphrase,
    join,
    replaced_by,
)

GOLDEN = Path(__file__).parent / "golden" / "sync-1"
ROOT = RootKey(bytes(range(32)))
KEY_ID = "54ece1a91efb41ef"
SECRET = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
PASSPHRASE = "Zürich, 8 Käse"
URL = "s3://bags/satchel"
ENDPOINT = "https://0123abcd.r2.cloudflarestorage.com"
HERE = Destination(URL, ENDPOINT, "auto")
CONFIG = SyncConfig(url=URL, endpoint=ENDPOINT, region="auto", key_id=KEY_ID, exclusive=True)
CREDENTIALS = Credentials("AK-canary", "SK-canary", "token-canary")
LOCKED = "the system keychain is locked, or does not let Satchel in; unlock it and try again"


pytestmark = pytest.mark.usefixtures("cheap_passphrases")


class CarelessRemote(MemoryRemote):
    """Ignores the condition, as some buckets do."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


class KilledError(BaseException):
    pass


@pytest.fixture
def use() -> Iterator[Callable[[keyring.backend.KeyringBackend], None]]:
    before = keyring.get_keyring()
    yield keyring.set_keyring
    keyring.set_keyring(before)


@pytest.fixture
def key_file(satchel_home: Path) -> Path:
    return satchel_home / "sync" / KEY_ID / "key"


def set_up(
    remote: Remote,
    destination: Destination,
    passphrase: str | None,
    show: Callable[[RootKey], object] = lambda root: None,
) -> SetUp:
    return setup.set_up(remote, destination, passphrase, show)


def one_line(error: type[SatchelError], act: Callable[[], object]) -> str:
    with pytest.raises(error) as raised:
        act()
    assert type(raised.value) is error or error is SatchelError
    return raised.value.one_line()


def all_of(error: BaseException) -> str:
    """All that a log of an error with its causes would hold."""
    shown, err = "", error
    while err is not None:
        shown += "".join(traceback.format_exception_only(err)) + repr(err.args) + repr(err.__dict__)
        err = err.__cause__ or (None if err.__suppress_context__ else err.__context__)
    return shown


# The root key on this machine


def test_the_root_key_goes_to_the_keychain(keychain: MemoryKeychain, key_file: Path) -> None:
    assert save_root(ROOT, KEY_ID) is None
    assert keychain.kept == {("satchel", KEY_ID): SECRET}
    assert not key_file.exists()
    assert load_root(KEY_ID) == ROOT
    forget_root(KEY_ID)
    assert keychain.kept == {}


@pytest.mark.parametrize("backend", [None, NullKeychain, BrokenKeychain])
def test_where_no_keychain_works_it_goes_to_a_file_for_its_owner_alone(
    backend: type | None, key_file: Path, use: Callable[..., None]
) -> None:
    if backend:
        use(backend())
    assert save_root(ROOT, KEY_ID) == key_file
    assert key_file.read_text() == SECRET + "\n"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    assert load_root(KEY_ID) == ROOT
    forget_root(KEY_ID)
    assert not key_file.exists()


def test_the_file_goes_once_a_keychain_works(keychain: MemoryKeychain, key_file: Path) -> None:
    key_file.parent.mkdir(parents=True)
    key_file.write_text(SECRET)
    assert save_root(ROOT, KEY_ID) is None
    assert not key_file.exists()
    assert load_root(KEY_ID) == ROOT


def test_a_locked_keychain_is_one_line_and_no_file_is_made(key_file: Path, use: Callable[..., None]) -> None:
    use(LockedKeychain())
    assert not key_file.exists()
    for act in (
        lambda: save_root(ROOT, KEY_ID),
        lambda: load_root(KEY_ID),
        lambda: forget_root(KEY_ID),
        lambda: save_credentials(URL, CREDENTIALS),
        lambda: load_credentials(URL),
    ):
        assert one_line(SatchelError, act) == LOCKED
    assert not key_file.exists()


def test_a_key_that_is_not_here_is_one_line(keychain: MemoryKeychain) -> None:
    expected = "the key of the remote is not on this machine; join the remote again with `satchel sync join`"
    assert one_line(NotFoundError, lambda: load_root(KEY_ID)) == expected


def test_where_there_is_no_keychain_a_key_that_is_in_no_file_is_not_here() -> None:
    expected = "the key of the remote is not on this machine; join the remote again with `satchel sync join`"
    assert one_line(NotFoundError, lambda: load_root(KEY_ID)) == expected


def test_a_key_that_may_be_in_a_keychain_that_does_not_work_is_one_line(use: Callable[..., None]) -> None:
    use(BrokenKeychain())
    expected = "the system keychain cannot be used: (-25308, 'Unknown Error')"
    assert one_line(SatchelError, lambda: load_root(KEY_ID)) == expected


def test_what_a_keychain_says_is_cut_between_words(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of\nno use " * 30)

    monkeypatch.setattr(BrokenKeychain, "get_password", fail)
    use(BrokenKeychain())
    said = one_line(SatchelError, lambda: load_root(KEY_ID))
    assert said == f"the system keychain cannot be used: {'of no use ' * 19}of no …"


@pytest.mark.parametrize("text", ["", "00" * 32, SECRET[:-2], SECRET[:-1] + "x", "\xff" * 64, "0" * 1000])
def test_a_damaged_key_is_named_and_not_shown(text: str, key_file: Path, keychain: MemoryKeychain) -> None:
    key_file.parent.mkdir(parents=True)
    key_file.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedError, match=str(key_file)) as raised:
        load_root(KEY_ID)
    assert SECRET[:-2] not in all_of(raised.value)
    key_file.unlink()
    keychain.kept["satchel", KEY_ID] = text
    with pytest.raises(DamagedError, match="the key of the remote in the system keychain is damaged"):
        load_root(KEY_ID)


def test_a_key_file_holds_64_digits_and_a_line_end_and_no_more(key_file: Path) -> None:
    key_file.parent.mkdir(parents=True)
    for text in (SECRET, f"{SECRET}\n"):
        key_file.write_text(text)
        assert load_root(KEY_ID) == ROOT
    key_file.write_text(f"{SECRET}\n\n")
    with pytest.raises(DamagedError, match="has 66 bytes where at most 65 are right"):
        load_root(KEY_ID)


# Credentials


def test_credentials_are_kept_in_a_keychain(keychain: MemoryKeychain, satchel_home: Path) -> None:
    assert save_credentials(URL, CREDENTIALS)
    assert load_credentials(URL) == CREDENTIALS
    assert load_credentials(URL + "/other") is None
    assert save_credentials(URL, Credentials("AK", "SK"))
    assert load_credentials(URL) == Credentials("AK", "SK", None)
    assert not satchel_home.exists()


@pytest.mark.parametrize("backend", [None, NullKeychain, BrokenKeychain])
def test_credentials_are_kept_nowhere_else(
    backend: type | None, satchel_home: Path, use: Callable[..., None]
) -> None:
    if backend:
        use(backend())
    assert not save_credentials(URL, CREDENTIALS)
    assert load_credentials(URL) is None
    assert not satchel_home.exists()


@pytest.mark.parametrize(
    "kept", ["", "SK-canary", '{"access_key":"SK-canary"}', '{"access_key":1,"secret_key":"SK-canary"}']
)
def test_damaged_credentials_are_one_line_and_not_shown(kept: str, keychain: MemoryKeychain) -> None:
    keychain.kept["satchel", URL] = kept
    with pytest.raises(DamagedError) as raised:
        load_credentials(URL)
    assert raised.value.one_line().startswith(
        f"the credentials for {URL} in the system keychain are damaged; "
    )
    assert "SK-canary" not in all_of(raised.value)


def test_satchels_own_variables_come_first(keychain: MemoryKeychain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("R2_ACCESS_KEY", "AK-r2")
    monkeypatch.setenv("R2_SECRET_KEY", "SK-r2")
    assert s3_credentials(URL, ENDPOINT) == Credentials("AK-r2", "SK-r2")
    save_credentials(URL, Credentials("AK-kept", "SK-kept"))
    assert s3_credentials(URL, ENDPOINT) == Credentials("AK-kept", "SK-kept")
    monkeypatch.setenv("SATCHEL_S3_ACCESS_KEY_ID", "AK-own")
    monkeypatch.setenv("SATCHEL_S3_SECRET_ACCESS_KEY", "SK-own\n")
    assert s3_credentials(URL, ENDPOINT) == Credentials("AK-own", "SK-own")
    monkeypatch.setenv("SATCHEL_S3_SESSION_TOKEN", "token")
    assert s3_credentials(URL, None) == Credentials("AK-own", "SK-own", "token")


@pytest.mark.parametrize(
    ("endpoint", "is_it"),
    [
        (ENDPOINT, True),
        ("HTTPS://0123ABCD.r2.CloudflareStorage.com:443/", True),
        ("http://0123abcd.r2.cloudflarestorage.com", False),
        ("https://4567.r2.cloudflarestorage.com", False),
        ("https://0123abcd.r2.cloudflarestorage.com.example.org", False),
        ("https://[", False),
        (None, False),
    ],
)
def test_r2s_variables_are_for_its_endpoint_alone(
    endpoint: str | None, is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("R2_ACCESS_KEY", "AK-r2")
    monkeypatch.setenv("R2_SECRET_KEY", "SK-r2")
    assert s3_credentials(URL, endpoint) == (Credentials("AK-r2", "SK-r2") if is_it else None)


def test_with_nothing_said_boto3_looks() -> None:
    assert s3_credentials(URL, None) is None
    assert default_address() is None
    assert default_endpoint() is None
    assert default_region(None) is None


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("SATCHEL_S3_ACCESS_KEY_ID", "SATCHEL_S3_SECRET_ACCESS_KEY"),
        ("SATCHEL_S3_SECRET_ACCESS_KEY", "SATCHEL_S3_ACCESS_KEY_ID"),
        ("R2_ACCESS_KEY", "R2_SECRET_KEY"),
    ],
)
def test_half_of_a_pair_is_told(given: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2_ENDPOINT", ENDPOINT)
    monkeypatch.setenv(given, "canary")
    monkeypatch.setenv(missing, "")
    expected = f"{given} is set and {missing} is not"
    assert one_line(UsageError, lambda: s3_credentials(URL, ENDPOINT)) == expected


@pytest.mark.parametrize("text", ["AK\ncanary", "AK canary", "AK-cänary", "AK\x00canary", "\udcffcanary"])
@pytest.mark.parametrize(
    "name",
    [
        "SATCHEL_S3_ACCESS_KEY_ID",
        "SATCHEL_S3_SECRET_ACCESS_KEY",
        "SATCHEL_S3_SESSION_TOKEN",
        "R2_ACCESS_KEY",
        "R2_SECRET_KEY",
    ],
)
def test_what_is_no_credential_is_refused_and_not_repeated(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2_ENDPOINT", ENDPOINT)
    kind = "R2" if name.startswith("R2") else "SATCHEL"
    for other in (
        "SATCHEL_S3_ACCESS_KEY_ID",
        "SATCHEL_S3_SECRET_ACCESS_KEY",
        "R2_ACCESS_KEY",
        "R2_SECRET_KEY",
    ):
        if other.startswith(kind):
            monkeypatch.setenv(other, "right")
    monkeypatch.setattr(os, "environ", {**os.environ, name: text})  # a real one holds no zero
    assert one_line(UsageError, lambda: s3_credentials(URL, ENDPOINT)) == (
        f"{name} holds a space, a line end or a sign that is not ASCII; look how it was copied"
    )


def test_a_credential_may_have_spaces_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_S3_ACCESS_KEY_ID", " AK/+=~!\n")
    monkeypatch.setenv("SATCHEL_S3_SECRET_ACCESS_KEY", "\tSK ")
    assert s3_credentials(URL, ENDPOINT) == Credentials("AK/+=~!", "SK")


def test_where_a_remote_is_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2_BUCKET", "bags")
    monkeypatch.setenv("R2_ENDPOINT", ENDPOINT)
    assert default_address() == "s3://bags/satchel"
    assert default_endpoint() == ENDPOINT
    assert default_region(ENDPOINT) == "auto"
    assert default_region("http://127.0.0.1:9000") is None
    assert default_region("https://[") is None
    monkeypatch.setenv("SATCHEL_S3_ENDPOINT", "http://127.0.0.1:9000")
    monkeypatch.setenv("SATCHEL_S3_REGION", "eu-central-1")
    assert default_endpoint() == "http://127.0.0.1:9000"
    assert default_region(ENDPOINT) == "eu-central-1"


# The configuration


def test_the_configuration_comes_back(satchel_home: Path) -> None:
    assert load_config() is None
    assert not is_configured()
    save_config(CONFIG)
    assert load_config() == CONFIG
    assert is_configured()
    path = satchel_home / "sync" / "remote.json"
    assert json.loads(path.read_bytes()) == {
        "url": URL,
        "endpoint": ENDPOINT,
        "region": "auto",
        "key_id": KEY_ID,
        "exclusive": True,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DamagedError),
        (b"{}", DamagedError),
        (b'{"url":"","key_id":"54ece1a91efb41ef","exclusive":true}', DamagedError),
        (b'{"url":"s3://bags","key_id":"../../etc","exclusive":true}', DamagedError),
        (b'{"url":"s3://bags","key_id":"54ece1a91efb41ef","exclusive":1}', DamagedError),
        (b" " * (16 << 10) + b"{}", DamagedError),
        (b'{"url":"s3://bags","key_id":"54ece1a91efb41ef","exclusive":true,"new":1}', VersionError),
    ],
)
def test_a_configuration_that_cannot_be_understood_is_named(data: bytes, error: type[SatchelError]) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_bytes(data)
    assert str(config_path()) in one_line(error, load_config)


def test_to_ask_whether_sync_is_configured_needs_little() -> None:
    ask = "import sys; from satchel.sync.configuration import is_configured; is_configured(); "
    heavy = (
        "print([name for name in ('boto3', 'botocore', 'keyring', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", ask + heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Setting up and joining


def test_two_machines_get_one_key_through_the_passphrase(
    keychain: MemoryKeychain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remote = MemoryRemote()
    first = set_up(remote, HERE, PASSPHRASE)
    assert first.config == load_config()
    assert first.config.url == URL
    assert first.config.endpoint == ENDPOINT
    assert first.config.region == "auto"
    assert first.config.exclusive
    assert first.config.key_id == Keys.of(first.root).id
    assert first.probe.lines[0] == "write, read, list, delete: work"
    assert first.key_file is None
    assert first.credentials_kept is None
    assert [listed.name for listed in remote.list("")] == ["v1/key"]
    assert has_passphrase(remote, HERE)

    keychain.kept.clear()
    monkeypatch.setenv("SATCHEL_HOME", str(tmp_path / "other"))
    assert load_config() is None
    second = join(remote, HERE, passphrase=PASSPHRASE)
    assert second.root == first.root
    assert second.config == first.config == load_config()
    assert load_root(second.config.key_id) == first.root


def test_words_open_what_has_no_passphrase() -> None:
    remote = MemoryRemote()
    first = set_up(remote, HERE, None)
    assert not has_passphrase(remote, HERE)
    assert len(first.root.words().split()) == 24
    expected = "this remote has no passphrase; join it with the recovery words"
    assert one_line(UsageError, lambda: join(remote, HERE, passphrase=PASSPHRASE)) == expected
    assert join(remote, HERE, words=first.root.words().upper()).root == first.root


def test_words_open_what_has_a_passphrase_too() -> None:
    remote = MemoryRemote()
    first = set_up(remote, HERE, PASSPHRASE)
    assert join(remote, HERE, words=first.root.words()).root == first.root


def test_where_the_key_went_is_told(satchel_home: Path) -> None:
    done = set_up(MemoryRemote(), HERE, None)
    assert done.key_file == satchel_home / "sync" / done.config.key_id / "key"


def test_credentials_given_are_kept(keychain: MemoryKeychain) -> None:
    done = set_up(MemoryRemote(), Destination(URL, credentials=CREDENTIALS), None)
    assert done.credentials_kept is True
    assert load_credentials(URL) == CREDENTIALS


def test_credentials_that_no_keychain_takes_are_told() -> None:
    assert set_up(MemoryRemote(), Destination(URL, credentials=CREDENTIALS), None).credentials_kept is False


def test_a_remote_that_was_set_up_is_refused_and_unchanged() -> None:
    remote = MemoryRemote()
    set_up(remote, HERE, PASSPHRASE)
    before, config = remote.get("v1/key", 1 << 14), load_config()
    for passphrase in (PASSPHRASE, None):
        with pytest.raises(RefusedError) as raised:
            set_up(remote, HERE, passphrase)
        assert raised.value.exit_code == 6
        assert raised.value.one_line() == ("this remote is set up already; join it with `satchel sync join`")
    assert remote.get("v1/key", 1 << 14) == before
    assert load_config() == config


def test_of_two_machines_that_set_up_at_once_one_is_refused(
    keychain: MemoryKeychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, theirs = MemoryRemote(), keys.make_key_object(ROOT, None)
    made = keys.make_key_object

    def make(root: RootKey, passphrase: str | None) -> bytes:
        remote.put("v1/key", theirs)  # the other machine is faster
        return made(root, passphrase)

    monkeypatch.setattr(setup, "make_key_object", make)
    assert one_line(RefusedError, lambda: set_up(remote, HERE, None)).startswith(
        "this remote is set up already"
    )
    assert remote.get("v1/key", 1 << 14) == theirs
    assert not is_configured()
    assert keychain.kept == {}


def test_where_conditions_are_ignored_setup_looks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = CarelessRemote()
    done = set_up(remote, HERE, PASSPHRASE)
    assert not done.config.exclusive
    assert one_line(RefusedError, lambda: set_up(remote, HERE, PASSPHRASE))

    other, theirs = CarelessRemote(), keys.make_key_object(ROOT, None)
    made = keys.make_key_object

    def make(root: RootKey, passphrase: str | None) -> bytes:
        other.put("v1/key", theirs)
        return made(root, passphrase)

    monkeypatch.setattr(setup, "make_key_object", make)
    assert one_line(RefusedError, lambda: set_up(other, HERE, None))
    assert other.get("v1/key", 1 << 14) == theirs


def test_where_conditions_are_ignored_setup_reads_what_it_wrote(keychain: MemoryKeychain) -> None:
    theirs = keys.make_key_object(ROOT, None)

    class Overtaken(CarelessRemote):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, theirs if name == "v1/key" else data)

    assert one_line(RefusedError, lambda: set_up(Overtaken(), HERE, None))
    assert not is_configured()
    assert keychain.kept == {}


@pytest.mark.parametrize("passphrase", [PASSPHRASE, None])
@pytest.mark.parametrize(
    "step", ["save_root", "make_key_object", "probe", "_key_object", "_create", "save_config"]
)
def test_a_setup_that_was_killed_leaves_nothing_configured_and_can_be_run_again(
    passphrase: str | None, step: str, monkeypatch: pytest.MonkeyPatch, keychain: MemoryKeychain
) -> None:
    remote = MemoryRemote()
    real = getattr(setup, step)

    def killed_after(*args: object) -> object:
        if step != "save_config":
            real(*args)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(setup, step, killed_after)
        with pytest.raises(KilledError):
            set_up(remote, HERE, passphrase)
    assert not is_configured()
    done = set_up(remote, HERE, passphrase)
    assert join(remote, HERE, words=done.root.words()).root == done.root
    if passphrase:
        assert join(remote, HERE, passphrase=passphrase).root == done.root


@pytest.mark.parametrize("passphrase", [PASSPHRASE, None])
def test_the_words_are_shown_before_anything_is_configured_and_again_if_that_was_killed(
    passphrase: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, shown = MemoryRemote(), list[str]()

    def show(root: RootKey) -> None:
        assert not is_configured()
        keys.check_key_object(remote.get("v1/key", 1 << 14), root)
        shown.append(root.words())

    def killed(*_: object) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        set_up(remote, HERE, passphrase, killed)
    assert not is_configured()
    with monkeypatch.context() as patch:
        patch.setattr(setup, "save_config", killed)
        with pytest.raises(KilledError):
            set_up(remote, HERE, passphrase, show)
    done = set_up(remote, HERE, passphrase, show)
    assert is_configured()
    assert shown == [done.root.words()] * 2


@pytest.mark.parametrize("passphrase", [PASSPHRASE, None])
def test_whether_a_remote_can_be_set_up_is_known_without_the_passphrase(
    passphrase: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remote = MemoryRemote()
    check_free(remote)
    assert list(remote.list("")) == []
    with monkeypatch.context() as patch:
        patch.setattr(setup, "save_config", lambda config: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            set_up(remote, HERE, passphrase)
    check_free(remote)  # what was killed here can be gone on with
    with monkeypatch.context() as patch:
        patch.setenv("SATCHEL_HOME", str(tmp_path / "other"))
        with pytest.raises(RefusedError, match="this remote is set up already"):
            check_free(remote)
    set_up(remote, HERE, passphrase)
    with pytest.raises(RefusedError, match="this remote is set up already"):
        check_free(remote)


def test_a_setup_whose_answer_was_lost_finds_its_key_again() -> None:
    class Lossy(MemoryRemote):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            stored = super().put_if_absent(name, data)
            if name == "v1/key":
                raise TransientError("the connection was closed")
            return stored

    remote = Lossy()
    with pytest.raises(NetworkError):
        set_up(remote, HERE, None)
    assert not is_configured()
    done = set_up(remote, HERE, None)
    assert keys.parse_key_object(remote.get("v1/key", 1 << 14)).id == done.config.key_id


def test_a_killed_setup_is_not_gone_on_with_by_another_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = MemoryRemote()
    with monkeypatch.context() as patch:
        patch.setattr(setup, "save_config", lambda config: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            set_up(remote, HERE, PASSPHRASE)
    for passphrase in ("another one", None):
        assert one_line(RefusedError, lambda passphrase=passphrase: set_up(remote, HERE, passphrase))
    assert not is_configured()


@pytest.mark.parametrize("size", [9, 50])
def test_a_passphrase_that_is_no_text_is_refused_before_anything_is_written(size: int) -> None:
    remote = MemoryRemote()
    assert one_line(UsageError, lambda: set_up(remote, HERE, "\udcff" * size, pytest.fail)) == (
        "the passphrase is not text in UTF-8"
    )
    assert one_line(UsageError, lambda: check_passphrase("\udcff" * size)) == (
        "the passphrase is not text in UTF-8"
    )
    assert list(remote.list("")) == []


@pytest.mark.parametrize("passphrase", ["", "1234567", "Ka\u0308se 1\u0308"])
def test_a_passphrase_has_eight_characters(passphrase: str) -> None:
    remote = MemoryRemote()
    expected = "a passphrase has at least 8 characters; five random words make a good one"
    assert one_line(UsageError, lambda: set_up(remote, HERE, passphrase)) == expected
    assert list(remote.list("")) == []
    check_passphrase("12345678")


def test_a_wrong_passphrase_configures_nothing() -> None:
    remote = MemoryRemote()
    remote.put("v1/key", (GOLDEN / "key").read_bytes())
    with pytest.raises(UsageError) as raised:
        join(remote, HERE, passphrase="Zürich, 8 Kase")
    assert raised.value.exit_code == 2
    assert raised.value.one_line() == "the passphrase is another; try it again, or use the recovery words"
    assert one_line(UsageError, lambda: join(remote, HERE, words=RootKey(bytes(32)).words())) == (
        "the recovery words are those of another remote"
    )
    assert not is_configured()
    assert [listed.name for listed in remote.list("")] == ["v1/key"]
    assert join(remote, HERE, passphrase=PASSPHRASE).root == ROOT


def test_a_remote_that_was_never_set_up_cannot_be_joined() -> None:
    for act in (
        lambda: join(MemoryRemote(), HERE, passphrase=PASSPHRASE),
        lambda: has_passphrase(MemoryRemote(), HERE),
    ):
        assert one_line(NotFoundError, act) == (
            f"{URL} at {ENDPOINT} was never set up: there is no key in it; set it up with"
            " `satchel sync setup`"
        )


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", bytes(100_000)])
def test_a_damaged_key_object_is_named(data: bytes) -> None:
    remote = MemoryRemote()
    remote.put("v1/key", data)
    for act in (
        lambda: join(remote, HERE, passphrase=PASSPHRASE),
        lambda: join(remote, HERE, words=ROOT.words()),
        lambda: set_up(remote, HERE, PASSPHRASE),
        lambda: has_passphrase(remote, HERE),
    ):
        with pytest.raises(DamagedError) as raised:
            act()
        assert raised.value.exit_code == 4
        assert raised.value.one_line().startswith("the key object v1/key is damaged: ")
    assert not is_configured()


def test_joining_again_is_fine_and_mends_a_damaged_configuration() -> None:
    remote = MemoryRemote()
    done = set_up(remote, HERE, PASSPHRASE)
    assert join(remote, HERE, passphrase=PASSPHRASE).config == done.config
    config_path().write_bytes(b"\0")
    assert replaced_by(HERE) is None
    assert join(remote, HERE, passphrase=PASSPHRASE).config == done.config == load_config()


def test_joining_another_remote_says_what_it_replaces_and_keeps_its_key() -> None:
    assert replaced_by(HERE) is None
    first = set_up(MemoryRemote(), HERE, None)
    assert replaced_by(HERE) is None
    other = Destination("file:///Volumes/NAS/satchel")
    assert replaced_by(other) == first.config
    assert replaced_by(Destination(URL)) == first.config
    second = set_up(MemoryRemote(), other, None)
    assert load_config() == second.config
    assert load_root(first.config.key_id) == first.root
    assert load_root(second.config.key_id) == second.root


def test_what_a_later_version_configured_is_not_replaced_unasked() -> None:
    save_config(CONFIG)
    config_path().write_bytes(config_path().read_bytes().replace(b"{", b'{"new":1,', 1))
    with pytest.raises(VersionError):
        replaced_by(HERE)


def test_a_full_disk_configures_nothing(monkeypatch: pytest.MonkeyPatch, satchel_home: Path) -> None:
    satchel_home.mkdir(mode=0o700)
    (satchel_home / "sync").write_bytes(b"a file where a folder should be")
    with pytest.raises(SatchelError, match="cannot write"):
        set_up(MemoryRemote(), HERE, None)
    assert not is_configured()


# Nothing shows a secret


def test_what_is_shown_of_a_setup_has_no_secret_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    here = Destination(URL, credentials=CREDENTIALS)
    done = set_up(MemoryRemote(), here, "canary passphrase")
    config = config_path().read_text()
    captured = capfd.readouterr()
    shown = f"{done} {done!r} {done.config} {here!r} {CREDENTIALS} {config} {captured.out} {captured.err}"
    words = done.root.words()
    for secret in ("canary", done.root.secret.hex(), repr(done.root.secret), words, words.split()[0] + " "):
        assert secret not in shown
    stored = secrets._StoredCredentials(access_key="canary", secret_key="canary", session_token="canary")
    assert "canary" not in f"{stored} {stored!r}"


def test_errors_of_setup_have_no_secret_in_them(use: Callable[..., None]) -> None:
    remote, empty = MemoryRemote(), MemoryRemote()
    remote.put("v1/key", (GOLDEN / "key").read_bytes())
    here = Destination(URL, credentials=CREDENTIALS)
    attempts: list[Callable[[], object]] = [
        lambda: set_up(remote, here, "canary passphrase"),
        lambda: set_up(empty, here, "canary"),
        lambda: join(remote, here, passphrase="canary passphrase"),
        lambda: join(remote, here, words="canary words"),
        lambda: join(empty, here, passphrase="canary passphrase"),
    ]
    use(LockedKeychain())
    attempts.append(lambda: join(remote, here, passphrase=PASSPHRASE))
    for attempt in attempts:
        with pytest.raises(SatchelError) as raised:
            attempt()
        shown = raised.value.one_line() + all_of(raised.value)
        for secret in ("canary", PASSPHRASE, SECRET, repr(ROOT.secret)):
            assert secret not in shown


def test_tests_have_no_keychain_of_the_users() -> None:
    assert os.environ["PYTHON_KEYRING_BACKEND"] == "keyring.backends.fail.Keyring"
    assert type(keyring.get_keyring()).__module__ == "keyring.backends.fail"
