"""What the environment and the keychain say of the bucket to use and of what opens it.

Knows nothing of S3, of flags, or of the other places where boto3 looks.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.remotes.s3 import Credentials

ACCESS_KEY = "SATCHEL_S3_ACCESS_KEY_ID"
SECRET_KEY = "SATCHEL_S3_SECRET_ACCESS_KEY"  # noqa: S105 - the name of one
SESSION_TOKEN = "SATCHEL_S3_SESSION_TOKEN"  # noqa: S105
ENDPOINT = "SATCHEL_S3_ENDPOINT"
REGION = "SATCHEL_S3_REGION"

# As mac-code reads them.
R2_ENDPOINT, R2_ACCESS_KEY, R2_SECRET_KEY, R2_BUCKET = (
    "R2_ENDPOINT",
    "R2_ACCESS_KEY",
    "R2_SECRET_KEY",
    "R2_BUCKET",
)
R2_HOSTS = ".r2.cloudflarestorage.com"
PREFIX = "satchel"  # of the objects in a bucket that is named alone


def s3_credentials(url: str, endpoint: str | None) -> Credentials | None:
    """What opens the bucket at `url`, in this order: `SATCHEL_S3_*`; what the keychain has for `url`; `R2_*`,
    where `R2_ENDPOINT` is this endpoint. None: boto3 is to look (`AWS_*`, ~/.aws, single sign-on, …).

    Raises:
        UsageError: one of a pair of variables is set, and the other is not; as `checked_credential`.
        SatchelError: the keychain is locked, or what it has is damaged.
    """
    from satchel.remotes.s3 import Credentials
    from satchel.sync.secrets import load_credentials

    if pair := _pair(ACCESS_KEY, SECRET_KEY):
        token = _variable(SESSION_TOKEN)
        return Credentials(*pair, session_token=token and checked_credential(token, SESSION_TOKEN))
    if kept := load_credentials(url):
        return kept
    r2 = _variable(R2_ENDPOINT)
    if endpoint and r2 and _place(endpoint) == _place(r2) and (pair := _pair(R2_ACCESS_KEY, R2_SECRET_KEY)):
        return Credentials(*pair)
    return None


def are_in_environment() -> bool:
    """Whether Satchel's own variables have them, which come before all that is kept or typed."""
    return _variable(ACCESS_KEY) is not None


def checked_credential(text: str, label: str) -> str:
    """`text` without spaces around it.

    Raises:
        UsageError: it holds what no credential does, and no request could carry. It is not repeated.
    """
    text = text.strip()
    if not re.fullmatch("[!-~]*", text):
        raise UsageError(
            f"{label} holds a space, a line end or a sign that is not ASCII", "look how it was copied"
        )
    return text


def default_address() -> str | None:
    """The remote to use where none is given."""
    bucket = _variable(R2_BUCKET)
    return f"s3://{bucket}/{PREFIX}" if bucket else None


def default_endpoint() -> str | None:
    """Where the S3 service is if that is not said; None: at AWS."""
    return _variable(ENDPOINT) or _variable(R2_ENDPOINT)


def default_region(endpoint: str | None) -> str | None:
    """The region to sign for if none is given; None: the one that boto3 finds."""
    if region := _variable(REGION):
        return region
    return "auto" if endpoint and _place(endpoint)[1].endswith(R2_HOSTS) else None


def _variable(name: str) -> str | None:
    """An empty variable is none."""
    return os.environ.get(name, "").strip() or None


def _pair(first: str, second: str) -> tuple[str, str] | None:
    one, other = _variable(first), _variable(second)
    if one and other:
        return checked_credential(one, first), checked_credential(other, second)
    if one or other:
        given, missing = (first, second) if one else (second, first)
        raise UsageError(f"{given} is set and {missing} is not")
    return None


def _place(endpoint: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path: equal for one endpoint, however it is written."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:  # whoever opens it says so
        return "", endpoint, None, ""
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")
