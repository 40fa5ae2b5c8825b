"""Where a remote is, as a user writes it. Knows nothing of configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from satchel.errors import UsageError
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.s3 import Credentials, S3Remote

MAX_PREFIX_LENGTH = 512

_RIGHT = "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """A bucket with a prefix, or a directory.

    Attributes:
        bucket: of S3; empty for a directory.
        prefix: without `/` at either end; may be empty.
        directory: absolute; None for a bucket.
    """

    bucket: str = ""
    prefix: str = ""
    directory: Path | None = None

    @classmethod
    def parse(cls, text: str) -> RemoteAddress:
        """`s3://bucket/prefix` or `file:///path`, `%xx` in a path standing for a byte.

        Raises:
            UsageError: it is neither.
        """
        scheme, separator, rest = text.strip().partition("://")
        if "@" in rest.partition("/")[0]:  # a password may stand before it, so it is not repeated
            raise UsageError("a remote's address must hold no credentials", _RIGHT)
        match scheme.lower() if separator else "":
            case "s3":
                return cls._of_bucket(rest, text)
            case "file":
                return cls._of_directory(rest, text)
            case "http" | "https":
                hint = (
                    f"give the server with --endpoint {scheme}://HOST, and the bucket as s3://BUCKET/PREFIX"
                )
                raise UsageError(f"{text!a} is a server's address", hint)
        raise UsageError(f"{text!a} is no remote", _RIGHT)

    @classmethod
    def _of_bucket(cls, rest: str, text: str) -> RemoteAddress:
        bucket, _, tail = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            hint = "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"
            raise UsageError(f"{text!a} names no bucket", hint)
        parts = [part for part in tail.split("/") if part]
        prefix = "/".join(parts)
        if len(prefix) > MAX_PREFIX_LENGTH or not all(map(_PREFIX_PART.fullmatch, parts)):
            hint = (
                "a prefix has letters, digits, dots, underscores and hyphens, and no part begins with a dot"
            )
            raise UsageError(f"{text!a} has no valid prefix", hint)
        return cls(bucket, prefix)

    @classmethod
    def _of_directory(cls, rest: str, text: str) -> RemoteAddress:
        host, _, tail = rest.partition("/")
        path = Path("/" + unquote(tail).lstrip("/"))
        if host not in ("", "localhost"):
            raise UsageError(
                f"{text!a} is no absolute path", f"as in file:///{rest}; a server is mounted first"
            )
        if ".." in path.parts or path == Path("/") or "\0" in str(path):
            raise UsageError(f"{text!a} names no folder of its own", _RIGHT)
        return cls(directory=path)

    def __str__(self) -> str:
        """The text of which `parse` makes an equal address."""
        if self.directory:
            return f"file://{quote(str(self.directory))}"
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def open(
        self,
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
    ) -> S3Remote | DirectoryRemote:
        """The remote itself, which tries nothing twice and encrypts nothing.

        Raises:
            UsageError, NetworkError: as of `S3Remote`. That a place cannot be reached shows at the first use.
        """
        if self.directory:
            return DirectoryRemote(self.directory)
        return S3Remote(self.bucket, self.prefix, endpoint, region, credentials)
