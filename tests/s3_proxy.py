"""A proxy on loopback between a client and an S3 server, which does what networks and buckets do wrong.

Requests and replies are passed on whole and as they came, the Host header with them (SigV4 signs it); all but
`Expect`, which is answered here. Knows nothing of who is the client, nor of what the objects hold.
"""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import socketserver
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, Self
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from http_framing import PIECE_BYTES, Body, Reply, Stream, parse_head, read_reply

BURST_S = 0.02  # as much as an idle link saves up; evens out that sleeps last a little too long


class Fault(StrEnum):
    """What befalls a request. The connection is closed after the first four."""

    DROP = "drop"  # the upstream sees nothing of it
    CUT = "cut"  # the upstream sees half of the body; without a body, as DROP
    LOSE_REPLY = "lose reply"  # the upstream has done it, the client hears nothing
    TRUNCATE = "truncate"  # the client gets half of the reply's body; without a body, as LOSE_REPLY
    DELAY = "delay"
    TOO_MANY = "too many"  # 429 with Retry-After; the upstream sees nothing of it, nor of the two below
    ERROR = "error"  # 500
    SLOW_DOWN = "slow down"  # 503 SlowDown
    DUPLICATE = "duplicate"  # the upstream gets it twice, the client gets the second reply


@dataclass(frozen=True, slots=True)
class Request:
    """
    Attributes:
        number: from 1 in the order of arrival.
        path: as sent, without the query.
        headers: by lower-case name.
        status: what the upstream or the proxy answered, even if the answer was lost; None if nothing did.
    """

    number: int
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    status: int | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply of the proxy's own, in the form of S3's errors."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def reply(self, method: str) -> Reply:
        document = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message></Error>"
        ).encode()
        headers = {"Content-Type": "application/xml", "Content-Length": str(len(document)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return Reply(self.status, head, b"" if method == "HEAD" else document, last=False)


class Rule(Protocol):
    def decide(self, request: Request, body: Callable[[], bytes]) -> Fault | Refusal | None:
        """What befalls a request; None: nothing. `body()` waits for all of the body."""


class Faults:
    """A share `rate` of the requests meets one of `kinds`: seed and number alone say which, and what."""

    def __init__(self, seed: int, rate: float, kinds: Sequence[Fault] = tuple(Fault)) -> None:
        self._seed, self._rate, self._kinds = seed, rate, kinds

    def decide(self, request: Request, body: Callable[[], bytes]) -> Fault | None:
        chance = random.Random(f"{self._seed}/{request.number}")
        return chance.choice(self._kinds) if chance.random() < self._rate else None


class Scripted:
    """Of a method's requests with a pattern in their path and query, `times` from the nth on meet a fault."""

    def __init__(self, fault: Fault, method: str, pattern: str = "", nth: int = 1, times: int = 1) -> None:
        self._fault, self._method, self._pattern = fault, method, re.compile(pattern)
        self._struck = range(nth, nth + times)
        self._seen = 0
        self._one_at_a_time = threading.Lock()

    def decide(self, request: Request, body: Callable[[], bytes]) -> Fault | None:
        target = f"{request.path}?{request.query}" if request.query else request.path
        if request.method != self._method or not self._pattern.search(target):
            return None
        with self._one_at_a_time:
            self._seen += 1
            return self._fault if self._seen in self._struck else None


class R2Rules:
    """Refuses what Cloudflare R2 refuses and other servers take, as far as uploads, reads and listings go.

    Sources: developers.cloudflare.com/r2, api/s3/api (what is not implemented), objects/multipart-objects
    (parts of equal size). Checksum headers are refused as R2 did when SDKs began to send them unasked (501
    "Header 'x-amz-checksum-crc32' with value … not implemented", January 2025); it has since come to accept
    some. Parts made by UploadPartCopy are not looked at.
    """

    _OPERATIONS = re.compile(
        r"accelerate|acl|analytics|attributes|intelligent-tiering|inventory|legal-hold|logging|metrics|notification"
        r"|object-lock|ownershipControls|policy|policyStatus|publicAccessBlock|replication|requestPayment|restore"
        r"|retention|select|tagging|torrent|versioning|versions|website"
    )
    _HEADERS = re.compile(
        r"x-amz-(acl|bucket-object-lock-enabled|bypass-governance-retention|checksum-.+|grant-.+|mfa|object-lock-.+"
        r"|request-payer|sdk-checksum-algorithm|server-side-encryption(?!-customer-).*"
        r"|(source-)?expected-bucket-owner|tagging|tagging-directive|trailer|website-redirect-location)"
    )

    def __init__(self) -> None:
        self._part_bytes: dict[str, dict[int, int]] = defaultdict(dict)  # by upload id and part number

    def decide(self, request: Request, body: Callable[[], bytes]) -> Refusal | None:
        # A presigned URL carries in its query what would be headers.
        query = dict(urllib.parse.parse_qsl(request.query, keep_blank_values=True))
        fields = dict(request.headers) | {name.lower(): value for name, value in query.items()}
        for name, value in fields.items():
            if self._HEADERS.fullmatch(name):
                return self._not_implemented(f"Header '{name}' with value '{value}'")
        if fields.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            return self._not_implemented(fields["x-amz-content-sha256"])
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            return self._not_implemented("Content-Encoding aws-chunked")
        for name in filter(self._OPERATIONS.fullmatch, query):
            return self._not_implemented(f"{request.method} ?{name}")
        if "uploadId" in query:
            return self._multipart(request, query, body)
        return None

    def _multipart(
        self, request: Request, query: Mapping[str, str], body: Callable[[], bytes]
    ) -> Refusal | None:
        part_bytes = self._part_bytes[query["uploadId"]]
        if request.method == "PUT" and "content-length" in request.headers:
            part_bytes[int(query["partNumber"])] = int(request.headers["content-length"])
        elif request.method == "POST":
            listed = ElementTree.fromstring(body()).iterfind(".//{*}PartNumber")
            numbers = sorted(int(element.text or 0) for element in listed)
            sizes = [part_bytes[number] for number in numbers if number in part_bytes]
            if len(set(sizes[:-1])) > 1 or sizes[-1:] > sizes[:1]:
                return Refusal(400, "InvalidPart", "All non-trailing parts must have the same length.")
        return None

    @staticmethod
    def _not_implemented(what: str) -> Refusal:
        return Refusal(501, "NotImplemented", f"{what} not implemented")


class S3Proxy:
    """`with S3Proxy("http://127.0.0.1:9000", rules=[R2Rules()]) as proxy: client(endpoint_url=proxy.url)`.

    Attributes:
        rules: all are asked; the first fault and the first refusal count. May be changed between requests.
        requests: those that have an outcome, in the order of the outcomes, each before its reply is sent.
        sent_bytes: from client to proxy, heads and bodies.
        received_bytes: from proxy to client, likewise.
    """

    def __init__(
        self,
        upstream: str,
        rules: Sequence[Rule] = (),
        bandwidth_bps: float | None = None,
        latency_s: float = 0.0,
        delay_s: float = 0.1,
        retry_after_s: int = 1,
    ) -> None:
        """
        Args:
            upstream: `http://host:port`.
            bandwidth_bps: bits a second, in each direction, that all connections share.
            latency_s: added to every request.
            delay_s: what `Fault.DELAY` adds.
            retry_after_s: what `Fault.TOO_MANY` asks to wait.
        """
        parts = urllib.parse.urlsplit(upstream)
        assert parts.scheme == "http" and parts.hostname and parts.port, upstream
        self.upstream = (parts.hostname, parts.port)
        self.rules = list(rules)
        self.requests: list[Request] = []
        self.latency_s, self.delay_s = latency_s, delay_s
        self._refusals = {
            Fault.TOO_MANY: Refusal(
                429, "TooManyRequests", "Reduce your request rate.", {"Retry-After": str(retry_after_s)}
            ),
            Fault.ERROR: Refusal(500, "InternalError", "We encountered an internal error. Please try again."),
            Fault.SLOW_DOWN: Refusal(503, "SlowDown", "Please reduce your request rate."),
        }
        self.stopped = threading.Event()
        self.up, self.down = (_Link(bandwidth_bps, self.stopped) for _ in range(2))
        self._begun = 0
        self._sockets: set[socket.socket] = set()
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        self._server = _Server(self)
        self.url = "http://{}:{}".format(*self._server.server_address)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._one_at_a_time:
            open_sockets = list(self._sockets)
        for sock in open_sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def sent_bytes(self) -> int:
        return self.up.passed_bytes

    @property
    def received_bytes(self) -> int:
        return self.down.passed_bytes

    def begin(self) -> int:
        """The number of a request that has arrived."""
        with self._one_at_a_time:
            self._begun += 1
            return self._begun

    def decide(self, request: Request, body: Callable[[], bytes]) -> tuple[Fault | None, Refusal | None]:
        """What the network does to it, and what the bucket has against it."""
        decisions = [rule.decide(request, body) for rule in self.rules]
        fault = next((it for it in decisions if isinstance(it, Fault)), None)
        refusal = next((it for it in decisions if isinstance(it, Refusal)), None)
        return fault, self._refusals.get(fault, refusal) if fault else refusal

    def record(self, request: Request, status: int | None, fault: Fault | None) -> None:
        with self._one_at_a_time:
            self.requests.append(replace(request, status=status, fault=fault))

    @contextlib.contextmanager
    def watched(self, sock: socket.socket) -> Iterator[None]:
        """The socket is shut down when the proxy is, and closed in the end."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._one_at_a_time:
            self._sockets.add(sock)
        try:
            yield
        finally:
            with self._one_at_a_time:
                self._sockets.discard(sock)
            sock.close()


class _Link:
    """One direction of the network: a bucket of tokens that all connections share."""

    def __init__(self, bandwidth_bps: float | None, stopped: threading.Event) -> None:
        self.passed_bytes = 0
        self._bandwidth_bps, self._stopped = bandwidth_bps, stopped
        self._free_at = 0.0
        self._one_at_a_time = threading.Lock()

    def carry(self, count: int) -> None:
        """Wait as long as `count` bytes need."""
        with self._one_at_a_time:
            self.passed_bytes += count
            if self._bandwidth_bps is None:
                return
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BURST_S) + count * 8 / self._bandwidth_bps
            wait_s = self._free_at - now
        self._stopped.wait(max(wait_s, 0))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: S3Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.proxy = proxy


class _Connection(socketserver.BaseRequestHandler):
    """A client's connection, and its own one to the upstream."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        self._proxy = self.server.proxy
        self._client = Stream(self.request, self._proxy.up.carry)
        self._upstream: socket.socket | None = None
        self._upstream_open = contextlib.ExitStack()
        # The client, the upstream or the end of the proxy closes a connection halfway: nothing is left to do.
        with self._proxy.watched(self.request), self._upstream_open, contextlib.suppress(OSError, EOFError):
            while self._serve():
                pass

    def _serve(self) -> bool:
        """Serve one request; whether another may follow on this connection."""
        proxy = self._proxy
        head = self._client.read_until(b"\r\n\r\n")
        (method, target, version), headers = parse_head(head)
        path, _, query = target.partition("?")
        request = Request(proxy.begin(), method, path, query, headers)
        expects = headers.get("expect", "").lower() == "100-continue"
        body = Body(self._client, headers, self._continue if expects else lambda: None)
        fault, refusal = proxy.decide(request, body.whole)
        if proxy.stopped.wait(proxy.latency_s + (proxy.delay_s if fault is Fault.DELAY else 0)):
            return False
        # `Expect` has been answered. SigV4 does not sign it.
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))

        if fault in (Fault.DROP, Fault.CUT):
            half = body.half() if fault is Fault.CUT else b""
            if half:
                self._connect().sendall(head + half)
            proxy.record(request, None, fault)
            return False
        message = head + body.whole()
        if refusal is None:
            try:
                for _ in range(2 if fault is Fault.DUPLICATE else 1):
                    reply = self._forward(message, method)
            except (OSError, EOFError) as error:
                refusal = Refusal(502, "BadGateway", f"the upstream: {error}")
        if refusal is not None:
            reply = refusal.reply(method)
        proxy.record(request, reply.status, fault)
        if fault is Fault.TRUNCATE and reply.body:
            self._send(reply.head + reply.body[: len(reply.body) // 2])
        if fault in (Fault.TRUNCATE, Fault.LOSE_REPLY):
            return False
        self._send(reply.head + reply.body)
        return (
            not reply.last and version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
        )

    def _continue(self) -> None:
        self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._proxy.down.carry(len(piece))
            self.request.sendall(piece)

    def _forward(self, message: bytes, method: str) -> Reply:
        upstream = self._connect()
        upstream.sendall(message)
        reply = read_reply(Stream(upstream), method)
        if reply.last:
            self._upstream_open.close()
            self._upstream = None
        return reply

    def _connect(self) -> socket.socket:
        """A connection to the upstream: that of the last request, unless the upstream has closed it since."""
        if self._upstream is not None and select.select([self._upstream], [], [], 0)[0]:
            self._upstream_open.close()
            self._upstream = None
        if self._upstream is None:
            self._upstream = socket.create_connection(self._proxy.upstream)
            self._upstream_open.enter_context(self._proxy.watched(self._upstream))
        return self._upstream
