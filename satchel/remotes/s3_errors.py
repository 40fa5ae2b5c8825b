"""What went wrong with S3, as one of our errors. Knows of nothing else that botocore does; imports it.

Servers' own texts are left out of messages: some repeat what was sent, signatures and key ids with it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from satchel.errors import NetworkError, NotFoundError, SatchelError
from satchel.remotes.remote import TransientError
from satchel.remotes.s3 import CredentialsError

# An answer that no S3 gives (a number that is none, an element twice) can trip botocore up in these ways, and
# so can a fault of ours: `is_ours`.
_TRIPPED = (ValueError, TypeError, LookupError)
# What a call of a client raises, and reading what it answered.
FAILURES = (boto.ClientError, boto.BotoCoreError, ResponseParserError, HTTPError, *_TRIPPED)
_LIBRARIES = ("botocore", "urllib3")
_US = __name__.split(".")[0]

_KEYS_HINT = "check the credentials and which endpoint they are for; `satchel sync join` again keeps new ones"
_BUCKET_HINT = "make it, or check its name, --endpoint and --region"
_RENEW_HINT = "renew them where they come from: `aws sso login`, or the SATCHEL_S3_ variables"
_CLOCK = (
    "the clock of this machine is wrong: {where} refuses its requests",
    "set date and time, then try again",
)
_REGION = ("{where} is in another region", "give it with --region")

# By S3's error code: the message and what to do.
_REFUSALS = {
    "NoSuchBucket": ("there is no bucket {where}", _BUCKET_HINT),
    # Not NotFoundError: there is something that is missing, and it is no object.
    "404": ("there is no bucket {where}, or no S3 service there", _BUCKET_HINT),
    "AccessDenied": (
        "the credentials have no right to {action} in {where}",
        "they need to read, write, list and delete objects there",
    ),
    # Answers to HEAD say no more: the keys may be wrong, too.
    "403": (
        "{where} refuses the credentials, or to {action} with them",
        "they need to read, write, list and delete objects there",
    ),
    "InvalidAccessKeyId": ("{where} does not know the access key", _KEYS_HINT),
    "SignatureDoesNotMatch": ("the secret key is not the access key's at {where}", _KEYS_HINT),
    "ExpiredToken": ("the credentials for {where} have expired", _RENEW_HINT),
    "InvalidToken": ("{where} does not take the session token", _RENEW_HINT),
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "NotImplemented": ("{where} cannot {action} this way", ""),
}
_OF_CREDENTIALS = {
    "403",
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_ALIASES = {
    "401": "403",
    "501": "NotImplemented",
    "Forbidden": "403",
    "NoSuchKey": "404",
    "NotFound": "404",
    "TokenRefreshRequired": "ExpiredToken",
    "Unauthorized": "403",
}

_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
# These come with other statuses, or after a status of success: bodies that did not arrive whole, an upload in
# parts that another machine cleared away, load.
_TRANSIENT_CODES = {
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "NoSuchUpload",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentSHA256Mismatch",
}

_DROPPED = (
    boto.ConnectionClosedError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
    boto.HTTPClientError,
    HTTPError,
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.MetadataRetrievalError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
    boto.ProfileNotFound,
    boto.SSOError,
    getattr(boto, "LoginError", boto.SSOError),  # younger than the oldest boto3 that serves
)


def is_ours(err: Exception) -> bool:
    """Whether one of `FAILURES` is a fault of Satchel's own, by whose code it was that fell over.

    Modules of Python, where it may have come to light, count as those that called them.
    """
    if isinstance(err, boto.ClientError | boto.BotoCoreError | ResponseParserError | HTTPError):
        return False
    packages = [
        frame.f_globals.get("__name__", "").split(".")[0] for frame, _ in traceback.walk_tb(err.__traceback__)
    ]
    return next((each for each in reversed(packages) if each in (*_LIBRARIES, _US)), "") == _US


def in_another_region(where: str) -> NetworkError:
    message, hint = _REGION
    return NetworkError(message.format(where=where), hint)


def remote_error(err: Exception, where: str, name: str = "") -> SatchelError:
    """The error of our tree for one of `FAILURES` that is not ours.

    Args:
        where: the bucket and its server.
        name: the object's, if the call was for one.
    """
    if isinstance(err, boto.ClientError):
        return _answered(err, where, name)
    if isinstance(err, boto.ReadTimeoutError | boto.ConnectTimeoutError):
        return TransientError(f"{where} did not answer in time")
    if isinstance(err, boto.EndpointConnectionError | boto.ProxyConnectionError):
        return NetworkError(f"{where} cannot be reached", "check the network and --endpoint")
    if isinstance(err, boto.SSLError):
        return NetworkError(
            f"there is no trusted connection to {where}", "check --endpoint and its certificate"
        )
    if isinstance(err, _NO_CREDENTIALS):
        return CredentialsError(
            f"no credentials were found for {where}",
            "set SATCHEL_S3_ACCESS_KEY_ID and SATCHEL_S3_SECRET_ACCESS_KEY, or log in as for the aws command",
        )
    if isinstance(err, boto.PaginationError):  # a mark again
        return NetworkError(f"a listing of {where} has no end")
    if isinstance(err, boto.HTTPClientError) and isinstance(err.kwargs.get("error"), ValueError):
        return CredentialsError(
            f"the credentials for {where} cannot be sent",
            "a line end is in them, or another sign that does not belong there",
        )
    if isinstance(err, _DROPPED):
        return TransientError(f"the connection to {where} broke off")
    if isinstance(err, ResponseParserError):  # it may be half of an answer
        return TransientError(f"what {where} answered makes no sense")
    if isinstance(err, _TRIPPED):
        return NetworkError(f"what {where} answered makes no sense")
    return NetworkError(f"{where} cannot be used: {type(err).__name__}")


def _status(err: Any) -> int:
    """The HTTP status of a `ClientError`."""
    return int(err.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(err: Any) -> str:
    """S3's error code in a `ClientError`; the status where the answer had no body to say it."""
    code = str(err.response.get("Error", {}).get("Code", ""))
    return code if re.fullmatch("[A-Za-z0-9._-]{1,64}", code) else str(_status(err))


def _answered(err: Any, where: str, name: str) -> SatchelError:
    code, status = _code(err), _status(err)
    if err.operation_name == "GetObject" and _ALIASES.get(code, code) == "404":
        return NotFoundError(f"there is no object {name} in {where}")
    if code in _TRANSIENT_CODES or (status in _TRANSIENT_STATUSES and code not in _REFUSALS):
        headers = err.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return TransientError(f"{where} answered {_label(code, status)}", wait_s=_asked_wait_s(headers))
    if 300 <= status < 400:  # `S3Remote` has told others apart
        return in_another_region(where)
    known = _ALIASES.get(code, code)
    if known not in _REFUSALS:
        return NetworkError(f"{where} refused to {_action(err)}: {_label(code, status)}")
    message, hint = _REFUSALS[known]
    kind = CredentialsError if known in _OF_CREDENTIALS else NetworkError
    return kind(message.format(where=where, action=_action(err)), hint)


def _action(err: Any) -> str:
    """`PutObject` as `put object`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", err.operation_name).lower()


def _label(code: str, status: int) -> str:
    return code if code == str(status) else f"{status} {code}"


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` asks for, in seconds or as a time, which is reckoned by the server's clock."""
    asked = headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", asked):
        return float(asked)
    try:
        span = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):  # no date; one with and one without a zone
        return None
    return max(0.0, span.total_seconds())
