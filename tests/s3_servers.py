"""S3 servers on loopback, each a process of its own, and one that a test makes to answer as it wants.

Knows nothing of our remotes but what credentials look like.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from satchel.remotes.s3 import Credentials

RGW = "SATCHEL_TEST_RGW"
RGW_KEYS = "SATCHEL_TEST_RGW_KEYS"

_BIN = Path(sys.executable).parent
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    credentials: Credentials

    def client(self) -> Any:
        """A client for what tests look at behind a remote's back."""
        return _client(self.endpoint, self.credentials)

    def make_bucket(self, name: str) -> str:
        """Make a bucket that may be there already."""
        client = self.client()
        with contextlib.suppress(
            client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists
        ):
            client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        return [item["Key"] for item in self.client().list_objects_v2(Bucket=bucket).get("Contents", ())]


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """Checks signatures and rights, and honours conditions."""
    # The calls that may come unsigned make the user, the right and the key that all others need.
    environment = {"INITIAL_NO_AUTH_ACTION_COUNT": "3"}
    command = [str(_BIN / "moto_server"), "-H", "127.0.0.1", "-p", "0"]
    with _running(command, r"Running on (http://127\.0\.0\.1:\d+)", environment) as endpoint:
        iam = _client(endpoint, Credentials("none", "none"), "iam")
        iam.create_user(UserName="satchel")
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="satchel", PolicyName="s3", PolicyDocument=policy)
        key = iam.create_access_key(UserName="satchel")["AccessKey"]
        yield S3Server(endpoint, Credentials(key["AccessKeyId"], key["SecretAccessKey"]))


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Keeps objects as files, checks secrets, and ignores conditions without a word."""
    folder = tmp_path_factory.mktemp("rclone")
    keys = Credentials("RCLONEKEY", "rclone-secret")
    command = [str(_BIN / "rclone"), "serve", "s3", "--config", os.devnull, "--addr", "127.0.0.1:0"]
    command += ["--auth-key", f"{keys.access_key},{keys.secret_key}", str(folder)]
    with _running(command, r"on \[(http://127\.0\.0\.1:\d+)/\]") as endpoint:
        yield S3Server(endpoint, keys)


@pytest.fixture(scope="session")
def rgw() -> S3Server:
    """A Ceph gateway that somebody else has started."""
    endpoint, keys = os.environ.get(RGW), os.environ.get(RGW_KEYS, "")
    if not endpoint:
        pytest.skip(f"{RGW} names no gateway")
    access_key, _, secret_key = keys.partition(":")
    return S3Server(endpoint, Credentials(access_key, secret_key))


@functools.cache  # it takes a quarter of a second
def _client(endpoint: str, credentials: Credentials, service: str = "s3") -> Any:
    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"},
            signature_version="s3v4" if service == "s3" else None,
        ),
    )


@contextlib.contextmanager
def _running(
    command: Sequence[str], address: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The server's address, that it writes on its error output as the first group of `address`."""
    process = subprocess.Popen(
        command,
        env=os.environ | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    # What it writes must be read for as long as it runs, or it would wait for that in the end.
    found: list[str] = []
    written: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if not found:
                written.append(line)
                if match := re.search(address, line):
                    found.append(match[1])
                    ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(_START_S), f"{command[0]} did not start"
        assert found, f"{command[0]} ended: {''.join(written)}"
        _wait_until_it_answers(found[0])
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _wait_until_it_answers(endpoint: str) -> None:
    host, port = endpoint.removeprefix("http://").split(":")
    until = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"{endpoint} does not answer"
            time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came. Header names are in lower case, a path is with its query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """
    Attributes:
        status: 0 closes the connection without an answer.
        length: what `Content-Length` says, where that is not the truth.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


class ScriptedServer:
    """A server of HTTP on loopback that answers what `answer` says, within a `with` block.

    Attributes:
        seen: the requests so far.
    """

    def __init__(self, answer: Callable[[Seen], Answer], bytes_per_s: float | None = None) -> None:
        """`bytes_per_s`: how fast a body is read, if not at once."""
        self.seen: list[Seen] = []
        self._answer = answer
        self._bytes_per_s = bytes_per_s
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if self.raw_requestline and self.parse_request():
                    script._serve(self)
                else:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if bytes_per_s is not None:  # else the system would take the body at once
            self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = self._read(handler, int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        seen = Seen(handler.command, handler.path, headers, body)
        self.seen.append(seen)
        answer = self._answer(seen)
        if not answer.status:
            handler.close_connection = True
            return
        handler.send_response_only(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header(
            "Content-Length", str(len(answer.body) if answer.length is None else answer.length)
        )
        handler.end_headers()
        if seen.method != "HEAD":
            handler.wfile.write(answer.body)
        handler.close_connection = answer.length is not None

    def _read(self, handler: BaseHTTPRequestHandler, size: int) -> bytes:
        if self._bytes_per_s is None:
            return handler.rfile.read(size)
        body = b""
        while len(body) < size:
            body += handler.rfile.read(min(1 << 16, size - len(body)))
            time.sleep((1 << 16) / self._bytes_per_s)
        return body


def s3_error(status: int, code: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A refusal as S3 writes it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said to a test</Message></Error>"
    return Answer(status, body.encode(), headers or {})
