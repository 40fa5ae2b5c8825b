"""SHA-256 of files and texts, remembered between runs. Knows nothing of what the files mean."""

from __future__ import annotations

import contextlib
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from satchel.config.paths import cache_dir
from satchel.files import atomic_file


def file_sha256(path: Path) -> str:
    """The SHA-256 of the file at `path`, hexadecimal.

    The result is kept under the file's real path, size and modification time, so that starting does not
    read gigabytes again. A file changed with all three kept (only a deliberate act does that) goes unnoticed.
    """
    path = path.resolve()
    stat = path.stat()
    key = text_sha256(f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}")
    record = cache_dir() / "digests" / key
    # Without its record a digest is only slower.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if len(known := record.read_text()) == 64:
            return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError), atomic_file(record) as work:
        work.write_text(digest)
    return digest


def files_sha256(paths: list[Path]) -> str:
    """One digest over the names and contents of `paths`, in the order of their names."""
    paths = sorted(paths, key=lambda path: path.name)
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter lock
        digests = list(pool.map(file_sha256, paths))
    return json_sha256([[path.name, digest] for path, digest in zip(paths, digests, strict=True)])


def json_sha256(value: Any) -> str:
    """The digest of `value` as canonical JSON: sorted keys, no spaces."""
    return text_sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def text_sha256(text: str) -> str:
    """The digest of `text` in UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
