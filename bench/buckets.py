"""A bucket on loopback, and machines that sync with it. Knows nothing of models or of what is measured.

The bucket is a directory that `rclone serve s3` serves: a real server over real HTTP, which keeps connections
open, and fast enough not to be what is measured. It excludes no two writers from one name, so entries get
random parts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from satchel.cache_store.local import LocalStore
from satchel.remotes.encrypted import EncryptedRemote
from satchel.remotes.retry import RetryingRemote
from satchel.remotes.s3 import Credentials, S3Remote
from satchel.sync.configuration import SyncConfig, save_config
from satchel.sync.keys import Keys, RootKey
from satchel.sync.records import SyncRecords
from satchel.sync.secrets import save_root
from satchel.sync.syncer import Syncer

BUCKET, REGION = "bench", "us-east-1"
CREDENTIALS = Credentials("BENCHKEY", "bench-secret")
ROOT = RootKey(bytes(range(32)))
KEYS = Keys.of(ROOT)

START_S = 30.0


@contextmanager
def served_bucket() -> Iterator[str]:
    """The endpoint of a server that has an empty bucket."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        (Path(folder) / BUCKET).mkdir()
        address = free.getsockname()
        free.close()
        command = [str(Path(sys.executable).with_name("rclone")), "serve", "s3", "--config", os.devnull]
        command += ["--addr", "{}:{}".format(*address)]
        command += ["--auth-key", f"{CREDENTIALS.access_key},{CREDENTIALS.secret_key}", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(address, server)
            yield "http://{}:{}".format(*address)
        finally:
            server.terminate()
            server.wait()


def _wait_for(address: tuple[str, int], server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(address, timeout=1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("rclone did not start") from None
            time.sleep(0.05)


def bare_remote(endpoint: str, prefix: str) -> S3Remote:
    return S3Remote(BUCKET, prefix, endpoint, REGION, CREDENTIALS)


def machine(home: Path, endpoint: str, prefix: str) -> Syncer:
    """A machine with its store in `home`, which knows of `prefix` what it has seen before."""
    remote = EncryptedRemote(RetryingRemote(bare_remote(endpoint, prefix)), KEYS.objects)
    return Syncer(LocalStore(home), remote, KEYS, SyncRecords(home / "sync" / prefix), exclusive=False)


def configured(home: Path, endpoint: str, prefix: str) -> dict[str, str]:
    """Give an empty machine its configuration and key; the environment of `satchel` on it."""
    settings = {
        "SATCHEL_HOME": str(home),
        "SATCHEL_S3_ACCESS_KEY_ID": CREDENTIALS.access_key,
        "SATCHEL_S3_SECRET_ACCESS_KEY": CREDENTIALS.secret_key,
        # The key goes into a file: this system's own keychain has no part in it.
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    url = f"s3://{BUCKET}/{prefix}"
    with patch.dict(os.environ, settings):
        save_root(ROOT, KEYS.id)
        save_config(SyncConfig(url=url, endpoint=endpoint, region=REGION, key_id=KEYS.id, exclusive=False))
    return os.environ | settings
