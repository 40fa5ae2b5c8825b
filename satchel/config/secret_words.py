"""Tells what looks like a secret, by its key or its value, and where it belongs instead of a settings file.

Errors name the key and never repeat the value. Knows nothing of which settings there are.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from satchel.config.complaints import placed
from satchel.errors import UsageError

_KEYCHAIN = "`satchel sync setup` keeps it in the system's keychain"
_OTHER = f"what opens a bucket, {_KEYCHAIN}; others belong in the environment"

# By what a key has in it, in this order; `_` stands for every separator.
_KEYS = (
    (re.compile(r"passphrase|recovery_?words?"), f"{_KEYCHAIN}, or set SATCHEL_PASSPHRASE for one command"),
    (re.compile(r"(hf|hugging_?face|hub)_?token"), "`hf auth login` keeps it"),
    (
        re.compile(
            r"(access|secret)_?(access_?)?key|aws_|session_?token|(sync|s3|r2)_(secret|key|token|pass)"
        ),
        f"{_KEYCHAIN}, or set SATCHEL_S3_ACCESS_KEY_ID and SATCHEL_S3_SECRET_ACCESS_KEY",
    ),
    (
        re.compile(
            r"(^|_)(secrets?|passw(or)?d|credentials?|token)$|api_?(key|token)|(private|root|encryption)_?key"
            r"|(auth|access|bearer|github)_?token|_(secret|password)(_|$)"
        ),
        _OTHER,
    ),
)
_LIKE_MAX_TOKENS = re.compile(r"(max|min|num|new|top|stop)_token$")  # a setting spelt wrong, no secret

# Each takes time in proportion to the text, which may be a megabyte: what repeats has an end.
_VALUES = (
    (re.compile(r"://[^/\s@]{0,200}:[^/\s@]{1,1000}@", re.I), "a name and password in its address"),
    (re.compile(r"https?://[^/\s@]+@", re.I), "a name in its address"),
    (re.compile(r"[?&](api_?key|token|access_token|secret|password|x-amz-signature)=[^&\s]", re.I), "a key"),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), "what looks like an AWS key"),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), "what looks like a token of the Hugging Face hub"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}"), "what looks like an API key"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), "a private key"),
)


def refuse_secrets(settings: Mapping[str, object], known: Container[str], source: str) -> None:
    """
    Args:
        settings: by dotted key.
        known: the keys of settings, which are never taken for a secret's name.

    Raises:
        UsageError: a key or a value is one of a secret; says where it belongs.
    """
    for key, value in settings.items():
        if key not in known and (place := _place_of(key)):
            raise UsageError(
                f"{placed(source)}{key[:80]!r} looks like a secret, which no settings file holds", place
            )
        if isinstance(value, str) and (found := _secret_in(value)):
            raise UsageError(
                f"{placed(source)}{key[:80]} holds {found}, which no settings file holds", _place_in(key)
            )


def _place_in(key: str) -> str:
    """Where the secret value of a setting belongs."""
    if key.startswith("models."):
        return "name the place without it"
    return f"set SATCHEL_{key.upper().replace('.', '_')} in the environment instead"


def masked(value: object) -> object:
    """A value to be shown: an address without its password."""
    if not isinstance(value, str):
        return value
    hidden = re.sub(r"(://[^/\s@:]*:)[^/\s@]+@", r"\1***@", value)
    hidden = re.sub(r"(https?://)[^/\s@:]+@", r"\1***@", hidden, flags=re.I)
    return "***" if _secret_in(re.sub(r"//([^/\s@:]*:)?\*\*\*@", "//", hidden)) else hidden


def _place_of(key: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower())
    if key.startswith("models.") or _LIKE_MAX_TOKENS.search(words):
        return ""
    return next((place for pattern, place in _KEYS if pattern.search(words)), "")


def _secret_in(value: str) -> str:
    return next((what for pattern, what in _VALUES if pattern.search(value)), "")
