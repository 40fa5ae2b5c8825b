"""Objects in a bucket that speaks S3: AWS, R2, MinIO, Ceph. Knows nothing of what objects hold."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from satchel.errors import DamagedError, NetworkError, UsageError
from satchel.remotes.remote import OURS, Listed, Stat, TransientError, check_name, check_prefix

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
CONNECTIONS = 32
MAX_PAGES = 10_000  # of a listing, of 1,000 keys each where a server does as S3 does

# R2 wants all parts of an upload but the last to be equal, and 5 MiB or more:
# https://developers.cloudflare.com/r2/objects/multipart-objects
# bench/sync.py, 50 MB at 50 Mbit/s and 40 ms a request: whole 8.6 to 10.1 s; in these parts, one after the
# other, 8.6 to 9.4 s; 5 and 16 MiB gain nothing. Four at once take 8.2 s, but several objects go at once
# anyway, and whoever is interrupted would wait for the threads. What is smaller than two parts goes whole,
# which is one request in place of four.
MULTIPART_BYTES = 16 << 20
PART_BYTES = 8 << 20

# Every service says one of these of a listing, be it empty.
_OF_A_LISTING = {"Name", "Bucket", "IsTruncated"}
_NO_XML = re.compile(rb"\s*([^<\s]|<(!doctype\s+)?html\b)", re.IGNORECASE)

MAX_LINK_S = 7 * 24 * 3600  # SigV4's own bound


@dataclass(frozen=True, slots=True)
class Credentials:
    """What S3 knows a user by. No part of it shows in `repr`."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class CredentialsError(NetworkError):
    """The service does not take the credentials, or there are none: others may do."""


class S3Remote:
    """A `Remote` below a prefix of a bucket.

    Whether `put_if_absent` excludes others is up to the server: some ignore the condition. Where one does not
    know it and says so, NetworkError is raised.

    Args:
        prefix: of all keys, without `/` at either end; may be empty.
        endpoint: `https://host[:port]`; None for AWS.
        region: None for the one that boto3 is configured with, or us-east-1.
        credentials: None for those that boto3 finds (environment, files, single sign-on, …).

    Raises:
        UsageError: the endpoint or the region cannot be one.
        NetworkError: boto3's own configuration is wrong.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._where = f"s3://{bucket}"
        check_endpoint(endpoint)
        with self._translated():
            self._client = _client(endpoint, region, credentials)
        self._where += f" at {urlsplit(self._client.meta.endpoint_url).netloc}"
        # Goes before what is registered for `before-parse.s3.*`, which takes no XML for an error of S3.
        self._client.meta.events.register("before-parse.*.*", self._check_answer)

    def put(self, name: str, data: bytes) -> None:
        if len(data) >= MULTIPART_BYTES:
            self._put_parts(name, io.BytesIO(data))
            return
        key = self._key(name)
        with self._translated(name):
            self._client.put_object(**key, Body=data)

    def put_file(self, name: str, path: Path) -> None:
        """As `put`, of what is in a file, one part of which is in memory at a time.

        Raises:
            OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < MULTIPART_BYTES:
                self.put(name, file.read())
            else:
                self._put_parts(name, file)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        key = self._key(name)
        with self._translated(name):
            try:
                self._client.put_object(**key, Body=data, IfNoneMatch="*")
            except self._client.exceptions.ClientError as err:
                if _status(err.response) == 412:
                    return False
                raise
        return True

    def get(self, name: str, max_bytes: int) -> bytes:
        key = self._key(name)
        with self._translated(name):
            answer = self._client.get_object(**key)
            length = answer.get("ContentLength")
            with contextlib.closing(answer["Body"]) as body:
                data = body.read(max_bytes + 1) if length is None or length <= max_bytes else None
        if data is None or len(data) > max_bytes:
            raise DamagedError(f"object {name} has more than {max_bytes} bytes, which is not right")
        if length is not None and len(data) != length:
            raise TransientError(f"{self._where} sent {len(data)} of {length} bytes of {name}")
        return data

    def stat(self, name: str) -> Stat | None:
        key = self._key(name)
        with self._translated(name):
            try:
                answer = self._client.head_object(**key)
            except self._client.exceptions.ClientError as err:
                if _status(err.response) == 404:
                    return None
                raise
        return Stat(answer.get("ContentLength", 0), _age_s(answer.get("LastModified"), answer))

    def list(self, prefix: str) -> Iterator[Listed]:
        """As of `Remote`; keys that cannot be an object's of ours are passed over."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + check_prefix(prefix)
        )
        for page in self._pages(pages):
            for item in page.get("Contents", ()):
                if name := self._name(item):
                    age_s = _age_s(item.get("LastModified"), page)
                    yield Listed(name, item.get("Size", 0), age_s, item.get("ETag", ""))

    def delete(self, name: str) -> None:
        key = self._key(name)
        there_is_none = self._client.exceptions.NoSuchKey  # Google's service says so; S3 itself does not
        with self._translated(name), contextlib.suppress(there_is_none):
            self._client.delete_object(**key)

    def presigned_url(self, name: str, seconds: int) -> str:
        """A link by which anybody can get the object for so long.

        It ends earlier if it is made with credentials that do.

        Raises:
            UsageError: longer than `MAX_LINK_S`, or no time at all.
        """
        if not 1 <= seconds <= MAX_LINK_S:
            raise UsageError(f"a link cannot last {seconds} s", f"at most {MAX_LINK_S // 86400} days")
        key = self._key(name)
        with self._translated(name):
            return str(self._client.generate_presigned_url("get_object", key, ExpiresIn=seconds))

    def _put_parts(self, name: str, file: IO[bytes]) -> None:
        """Put an object in parts. What was interrupted is dropped by `abort_old_uploads`, as what was killed:
        boto3's `upload_fileobj` would ask the server to drop it at once, and wait for the answer.
        """
        client, key = self._client, self._key(name)
        with self._translated(name):
            upload_id = client.create_multipart_upload(**key).get("UploadId")
            if not upload_id:
                raise self._is_no_service()
            upload = {**key, "UploadId": upload_id}
            try:
                parts: list[dict[str, Any]] = []
                while data := file.read(PART_BYTES):
                    number = len(parts) + 1
                    answer = client.upload_part(**upload, PartNumber=number, Body=data)
                    parts.append({"PartNumber": number, "ETag": answer.get("ETag", "")})
                client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            except Exception:
                with contextlib.suppress(NetworkError), self._translated():  # the first failure says more
                    client.abort_multipart_upload(**upload)
                raise

    def abort_old_uploads(self, age_s: float) -> int:
        """Drop the parts of objects that somebody began to put so long ago and never finished; how many.

        What is uploaded beside our objects is left alone.
        """
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._prefix + OURS
        )
        old: list[tuple[str, str]] = []
        try:
            for page in self._pages(pages):
                for upload in page.get("Uploads", ()):
                    name, upload_id = self._name(upload) or "", upload.get("UploadId")
                    age = _age_s(upload.get("Initiated"), page)
                    if name.startswith(OURS) and upload_id and age is not None and age >= age_s:
                        old.append((name, upload_id))
        except TransientError as err:
            if "NoSuchUpload" not in str(err):  # which some servers say where there are none
                raise
        for name, upload_id in old:
            with self._translated():
                self._client.abort_multipart_upload(**self._key(name), UploadId=upload_id)
        return len(old)

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_name(name)}

    def _name(self, item: Mapping[str, Any]) -> str | None:
        """The object's that is listed; None if it is not one of ours, whatever the server was asked for."""
        key = item.get("Key", "")
        with contextlib.suppress(ValueError):
            return check_name(key.removeprefix(self._prefix)) if key.startswith(self._prefix) else None
        return None

    def _pages(self, pages: Any) -> Iterator[dict[str, Any]]:
        """
        Raises:
            NetworkError: the server has no end of them, or sends what is no listing, as the page of a network
                that wants a login.
        """
        rest = iter(pages)
        for _ in range(MAX_PAGES):
            with self._translated():
                page = next(rest, None)
            if page is None:
                return
            if not page.keys() & _OF_A_LISTING:
                raise self._is_no_service()
            yield page
        raise NetworkError(f"a listing of {self._where} has no end")

    def _check_answer(self, response_dict: Mapping[str, Any], **_: object) -> None:
        """Look at an answer before boto3 does, which goes on to ask for a region while it is redirected.

        Raises:
            NetworkError: the answer is no S3 service's, or tells no region.
        """
        from satchel.remotes.s3_errors import in_another_region

        status, headers, body = (response_dict[part] for part in ("status_code", "headers", "body"))
        body = body if isinstance(body, bytes) else b""  # an object's is not read yet
        if 300 <= status < 400 and "x-amz-bucket-region" not in headers:
            if response_dict["context"]["operation_name"] == "HeadBucket":
                raise in_another_region(self._where)
            if b"<Code>PermanentRedirect<" not in body:
                raise NetworkError(
                    f"{self._where} redirects elsewhere, which is not followed", "check --endpoint"
                )
        if status < 300 and _NO_XML.match(body):
            raise self._is_no_service()

    def _is_no_service(self) -> NetworkError:
        return NetworkError(f"{self._where} answers, but not as an S3 service", "check --endpoint")

    @contextlib.contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        from satchel.remotes.s3_errors import FAILURES, is_ours, remote_error

        try:
            yield
        except FAILURES as err:
            if is_ours(err):
                raise
            raise remote_error(err, self._where, name) from err


def check_endpoint(endpoint: str | None) -> str | None:
    """
    Raises:
        UsageError: it is not `http://host`, `https://host`, either with a port.
    """
    if endpoint is None:
        return None
    right = "it is as https://ACCOUNT.r2.cloudflarestorage.com or http://127.0.0.1:9000"
    if "@" in endpoint:  # a password may stand before it, so it is not repeated
        raise UsageError("the endpoint must hold no credentials", right)
    try:
        parts = urlsplit(endpoint)
        fits = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:
        fits = False
    if not fits or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"{endpoint!r} is no endpoint", right)
    return endpoint


def _client(endpoint: str | None, region: str | None, credentials: Credentials | None) -> Any:
    """A client of boto3, which can be used from several threads."""
    import boto3
    from botocore.config import Config
    from botocore.handlers import add_expect_header

    # A session of its own: the default one is not safe to be made in several threads.
    session = boto3.session.Session()
    config = Config(
        # Servers that are not AWS stumble over the checksums that boto3 adds by default. Over the body's
        # SHA-256, which is signed, they do not.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=CONNECTIONS,
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    try:
        client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=region or session.region_name or "us-east-1",
            aws_access_key_id=credentials and credentials.access_key,
            aws_secret_access_key=credentials and credentials.secret_key,
            aws_session_token=credentials and credentials.session_token,
            config=config,
        )
    except ValueError as err:
        raise UsageError(f"{region!r} is no region, or {endpoint!r} no endpoint") from err
    if endpoint:
        # R2 never answers `Expect: 100-continue`, and boto3 would wait for it a second a part:
        # https://developers.cloudflare.com/r2/api/s3/extensions/
        client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


def _status(answer: Mapping[str, Any]) -> int:
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def _age_s(made: datetime | None, answer: Mapping[str, Any]) -> float | None:
    """How old what was `made` then is, by the clock of the server that gave the answer."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if made is None or date is None:
        return None
    try:
        now = parsedate_to_datetime(date)
        return max(0.0, (now - made).total_seconds())  # made in the second that `Date` is cut off to
    except (ValueError, TypeError):  # no date; one with and one without a zone
        return None
