"""Real models, loaded once a run, and a home of their own for all that a test writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import satchel  # noqa: F401 (a fixture)
from keychains import MemoryKeychain

from satchel.engine.model import LoadedModel, load_model

TEST_MODELS = "SATCHEL_TEST_MODELS"

# For the whole run, and for what tests start: no keychain, no bucket and no passphrase of the user's.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
_THEIRS = ("SATCHEL_S3_", "SATCHEL_PASSPHRASE", "SATCHEL_RECOVERY_WORDS", "R2_", "AWS_")
for _name in [name for name in os.environ if name.startswith(_THEIRS)]:
    del os.environ[_name]
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# What a shell starts in its background, and all that this starts, is deaf to Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def satchel_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's sessions or settings. The cache of converted models is shared on purpose."""
    home = tmp_path / "home"
    monkeypatch.setenv("SATCHEL_HOME", str(home))
    monkeypatch.delenv("SATCHEL_CONFIG", raising=False)
    return home


@pytest.fixture
def cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that Argon2id may cost: 20 ms."""
    from satchel.sync import keys

    monkeypatch.setattr(keys, "ITERATIONS", 2)
    monkeypatch.setattr(keys, "LANES", 1)
    monkeypatch.setattr(keys, "MEMORY_KIB", 19 << 10)


@pytest.fixture
def keychain() -> Iterator[MemoryKeychain]:
    """A keychain that works, empty, in place of none."""
    import keyring

    before = keyring.get_keyring()
    chain = MemoryKeychain()
    keyring.set_keyring(chain)
    yield chain
    keyring.set_keyring(before)


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    return load_model("embedded")


@pytest.fixture(scope="session")
def test_models_dir() -> Path:
    folder = os.environ.get(TEST_MODELS)
    if not folder:
        pytest.skip(f"{TEST_MODELS} names no folder with the larger test models")
    return Path(folder)


@pytest.fixture(scope="session")
def qwen(test_models_dir: Path) -> LoadedModel:
    return _load_file(test_models_dir / "qwen25-0.5b.gguf")


@pytest.fixture(scope="session")
def gemma(test_models_dir: Path) -> LoadedModel:
    return _load_file(test_models_dir / "gemma3-270m.gguf")


def _load_file(path: Path) -> LoadedModel:
    if not path.is_file():
        pytest.skip(f"{path.name} is not in {TEST_MODELS}")
    return load_model(str(path))
