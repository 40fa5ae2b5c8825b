"""The proxy that tests and benches put before S3 servers: what it passes on, breaks, refuses and counts."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    ResponseStreamingError,
)
from http_framing import Stream, parse_head
from s3_proxy import Fault, Faults, R2Rules, Refusal, Request, S3Proxy, Scripted
from s3_servers import S3Server, moto, rclone  # noqa: F401, two of them fixtures

MIB = 1 << 20
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
PUT = (
    b"PUT /b/k HTTP/1.1\r\nHost: bucket.example\r\nX-Odd:  two  spaces \r\nContent-Length: 8\r\n\r\nabcdefgh"
)


class Upstream(socketserver.ThreadingTCPServer):
    """Keeps what comes in, byte by byte, and answers each whole request with `reply`."""

    daemon_threads = True

    def __init__(self, reply: bytes = REPLY) -> None:
        super().__init__(("127.0.0.1", 0), _Recorder)
        self.url = "http://{}:{}".format(*self.server_address)
        self.reply = reply
        self.got: list[bytes] = []  # by connection, in the order of their ends

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Recorder(socketserver.BaseRequestHandler):
    server: Upstream

    def handle(self) -> None:
        self.got = bytearray()
        stream = Stream(self)  # type: ignore[arg-type]
        with contextlib.suppress(EOFError):
            while True:
                headers = parse_head(stream.read_until(b"\r\n\r\n"))[1]
                if "transfer-encoding" in headers:
                    stream.read_chunks()
                stream.read(int(headers.get("content-length", 0)))
                self.request.sendall(self.server.reply)
        self.server.got.append(bytes(self.got))

    def recv(self, count: int) -> bytes:
        piece = self.request.recv(count)
        self.got += piece
        return piece


def raw(proxy: S3Proxy, request: bytes) -> bytes:
    """All that the proxy sends back to a client that sends `request` and closes its side."""
    with socket.create_connection(_address(proxy)) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def _address(proxy: S3Proxy) -> tuple[str, int]:
    host, port = proxy.url.removeprefix("http://").split(":")
    return host, int(port)


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# What is passed on


def test_requests_and_replies_are_passed_on_byte_for_byte_and_counted() -> None:
    with Upstream() as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, PUT) == REPLY
        wait_for(lambda: upstream.got)
        assert upstream.got == [PUT]
        assert proxy.sent_bytes == 92
        assert proxy.received_bytes == 49
    headers = {"host": "bucket.example", "x-odd": "two  spaces", "content-length": "8"}
    assert proxy.requests == [Request(1, "PUT", "/b/k", "", headers, 200, None)]


def test_a_connection_serves_request_after_request_over_one_to_the_upstream() -> None:
    get = b"GET /b/k?x=1&y HTTP/1.1\r\nHost: h\r\n\r\n"
    with Upstream() as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, PUT + get + PUT) == REPLY * 3
        wait_for(lambda: upstream.got)
        assert upstream.got == [PUT + get + PUT]
    assert [(it.number, it.path, it.query) for it in proxy.requests] == [
        (1, "/b/k", ""),
        (2, "/b/k", "x=1&y"),
        (3, "/b/k", ""),
    ]


def test_a_client_that_asks_to_close_is_obeyed() -> None:
    get = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    with Upstream() as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, get + get) == REPLY


def test_chunked_bodies_pass_unchanged_in_both_directions() -> None:
    chunks = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    put = b"PUT /k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    with Upstream(reply) as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, put + put) == reply + reply
        wait_for(lambda: upstream.got)
        assert upstream.got == [put + put]


def test_expect_is_answered_once_and_not_passed_on() -> None:
    put = PUT.replace(b"X-Odd", b"Expect: 100-Continue\r\nX-Odd")
    with Upstream() as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, put) == b"HTTP/1.1 100 Continue\r\n\r\n" + REPLY
        wait_for(lambda: upstream.got)
        assert upstream.got == [PUT]
        assert (proxy.sent_bytes, proxy.received_bytes) == (114, 74)


def test_a_reply_to_head_has_no_body_whatever_its_length_says() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
    head = b"HEAD /k HTTP/1.1\r\nHost: h\r\n\r\n"
    with Upstream(reply) as upstream, S3Proxy(upstream.url) as proxy:
        assert raw(proxy, head + head) == reply + reply


def test_an_upstream_that_is_gone_is_a_502() -> None:
    with Upstream() as upstream:
        pass
    with S3Proxy(upstream.url) as proxy:
        assert raw(proxy, PUT).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert proxy.requests[0].status == 502


# Faults


@pytest.mark.parametrize(
    ("fault", "seen", "answer", "status"),
    [
        (Fault.DROP, [], b"", None),
        (Fault.CUT, [PUT[:-4]], b"", None),
        (Fault.LOSE_REPLY, [PUT], b"", 200),
        (Fault.TRUNCATE, [PUT], REPLY[:-5], 200),
        (Fault.DELAY, [PUT], REPLY, 200),
        (Fault.DUPLICATE, [PUT + PUT], REPLY, 200),
    ],
)
def test_what_a_fault_lets_either_side_see(
    fault: Fault, seen: list[bytes], answer: bytes, status: int | None
) -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, rules=[Scripted(fault, "PUT")]) as proxy:
        try:
            got = raw(proxy, PUT)
        except OSError:  # what was left unread makes the system reset a connection
            got = b""
        assert got == answer
        wait_for(lambda: len(upstream.got) == len(seen))
        assert upstream.got == seen
    assert [(it.status, it.fault) for it in proxy.requests] == [(status, fault)]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.TOO_MANY, 429, b"TooManyRequests"),
        (Fault.ERROR, 500, b"InternalError"),
        (Fault.SLOW_DOWN, 503, b"SlowDown"),
    ],
)
def test_refusals_come_in_the_form_of_s3_and_keep_the_connection(
    fault: Fault, status: int, code: bytes
) -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, [Scripted(fault, "PUT")], retry_after_s=7) as proxy:
        connection = http.client.HTTPConnection(*_address(proxy))
        connection.request("PUT", "/k", b"data")
        reply = connection.getresponse()
        assert reply.status == status
        assert b"<Error><Code>" + code + b"</Code>" in reply.read()
        assert reply.headers["Retry-After"] == ("7" if fault is Fault.TOO_MANY else None)
        connection.request("PUT", "/k", b"data")
        assert connection.getresponse().read() == b"0123456789"
        connection.close()
    assert [(it.number, it.status) for it in proxy.requests] == [(1, status), (2, 200)]


def test_a_large_upload_is_cut_while_the_client_still_sends() -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, [Scripted(Fault.CUT, "PUT")]) as proxy:
        connection = http.client.HTTPConnection(*_address(proxy))
        with pytest.raises(ConnectionError):
            connection.request("PUT", "/k", bytes(16 * MIB))
            connection.getresponse()
        wait_for(lambda: upstream.got)
        assert upstream.got[0].endswith(b"\r\n\r\n" + bytes(8 * MIB))
        assert proxy.sent_bytes < 9 * MIB


def test_scripted_faults_hit_the_nth_of_what_they_name() -> None:
    script = Scripted(Fault.ERROR, "PUT", r"/heads/1\?x$", nth=2, times=2)
    wanted = [
        ("PUT", "/b/heads/1"),
        ("GET", "/b/heads/1"),
        ("PUT", "/b/blocks/2"),
        *[("PUT", "/b/heads/1")] * 3,
    ]
    decisions = [
        script.decide(Request(number, method, path, "x", {}), bytes)
        for number, (method, path) in enumerate(wanted, start=1)
    ]
    assert decisions == [None, None, None, Fault.ERROR, Fault.ERROR, None]


def test_seeded_faults_depend_on_seed_and_number_alone() -> None:
    def drawn(faults: Faults, numbers: range) -> list[Fault | None]:
        return [faults.decide(Request(n, "GET", "/", "", {}), bytes) for n in numbers]

    faults = Faults(seed=1, rate=0.2, kinds=(Fault.DROP, Fault.ERROR))
    forwards = drawn(faults, range(1, 1001))
    assert drawn(faults, range(1000, 0, -1)) == forwards[::-1]
    assert drawn(Faults(2, 0.2, (Fault.DROP, Fault.ERROR)), range(1, 1001)) != forwards
    assert Counter(forwards) == {None: 805, Fault.DROP: 101, Fault.ERROR: 94}
    assert drawn(Faults(1, 0.0), range(1, 100)) == [None] * 99
    assert set(drawn(Faults(1, 1.0), range(1, 1000))) == set(Fault)


def test_a_proxy_strikes_where_its_seed_says() -> None:
    kinds = (Fault.LOSE_REPLY, Fault.TRUNCATE, Fault.ERROR, Fault.DUPLICATE)
    with Upstream() as upstream, S3Proxy(upstream.url, [Faults(7, 0.5, kinds)]) as proxy:
        replies = [raw(proxy, PUT) for _ in range(6)]
        assert replies == [REPLY[:-5], REPLY, REPLY, b"", REPLY, REPLY]
    expected = [Fault.TRUNCATE, None, Fault.DUPLICATE, Fault.LOSE_REPLY, None, None]
    assert [it.fault for it in proxy.requests] == expected


def test_a_fault_and_a_refusal_both_count() -> None:
    class Closed:
        def decide(self, request: Request, body: Callable[[], bytes]) -> Refusal:
            assert body() == b"abcdefgh"
            return Refusal(403, "AccessDenied", "a < b")

    with Upstream() as upstream, S3Proxy(upstream.url) as proxy:
        proxy.rules = [Closed()]
        assert raw(proxy, PUT).endswith(
            b"<Error><Code>AccessDenied</Code><Message>a &lt; b</Message></Error>"
        )
        proxy.rules = [Scripted(Fault.LOSE_REPLY, "PUT"), Closed()]
        assert raw(proxy, PUT) == b""
    assert [(it.status, it.fault) for it in proxy.requests] == [(403, None), (403, Fault.LOSE_REPLY)]
    assert upstream.got == []


# Shaping


def test_the_bandwidth_is_shared_by_all_connections_of_a_direction() -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, bandwidth_bps=16e6) as proxy:
        begun = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            put = b"PUT /k HTTP/1.1\r\nHost: h\r\nContent-Length: 262144\r\n\r\n" + bytes(262144)
            assert list(pool.map(raw, [proxy] * 4, [put] * 4)) == [REPLY] * 4
        assert 0.4 < time.monotonic() - begun < 10  # 1 MiB at 16 Mbit/s: 0.52 s
        assert proxy.sent_bytes == 4 * 262196


def test_replies_are_shaped_too() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 524288\r\n\r\n" + bytes(524288)
    with Upstream(reply) as upstream, S3Proxy(upstream.url, bandwidth_bps=16e6) as proxy:
        begun = time.monotonic()
        assert raw(proxy, b"GET /k HTTP/1.1\r\nHost: h\r\n\r\n") == reply
        assert 0.2 < time.monotonic() - begun < 10  # 0.26 s
        assert proxy.received_bytes == 524331


def test_latency_is_added_to_every_request() -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, latency_s=0.05) as proxy:
        begun = time.monotonic()
        assert raw(proxy, PUT * 3) == REPLY * 3
        assert time.monotonic() - begun >= 0.15


def test_a_delay_is_as_long_as_said() -> None:
    with Upstream() as upstream, S3Proxy(upstream.url, [Scripted(Fault.DELAY, "PUT")], delay_s=0.15) as proxy:
        begun = time.monotonic()
        assert raw(proxy, PUT) == REPLY
        assert time.monotonic() - begun >= 0.15


def test_leaving_the_proxy_ends_what_is_under_way() -> None:
    with Upstream() as upstream, ThreadPoolExecutor() as pool:
        with S3Proxy(upstream.url, latency_s=600) as proxy:
            under_way = pool.submit(raw, proxy, PUT)
            wait_for(lambda: proxy.sent_bytes == 92)
        assert under_way.result(timeout=10) == b""
    assert upstream.got == []


# Real servers


def client(server: S3Server, url: str, secret: str = "", checksums: str = "when_required") -> Any:
    """A client that tries everything once; it talks to `url`, in R2's region."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="auto",
        aws_access_key_id=server.credentials.access_key,
        aws_secret_access_key=secret or server.credentials.secret_key,
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
        ),
    )


@pytest.fixture
def bucket(moto: S3Server) -> str:
    """In moto."""
    return moto.make_bucket("proxied")


@pytest.fixture(params=["moto", "rclone"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    found.make_bucket("proxied")
    return found


def test_signatures_hold_and_are_checked_behind_the_proxy(server: S3Server) -> None:
    data = os.urandom(100_000)
    with S3Proxy(server.endpoint, [R2Rules()]) as proxy:
        s3 = client(server, proxy.url)
        s3.put_object(Bucket="proxied", Key="v1/a", Body=data)
        assert s3.get_object(Bucket="proxied", Key="v1/a")["Body"].read() == data
        assert s3.head_object(Bucket="proxied", Key="v1/a")["ContentLength"] == 100_000
        listed = s3.list_objects_v2(Bucket="proxied", Prefix="v1/")["Contents"]
        assert [(it["Key"], it["Size"]) for it in listed] == [("v1/a", 100_000)]
        s3.delete_object(Bucket="proxied", Key="v1/a")
        with pytest.raises(ClientError, match="404"):
            s3.head_object(Bucket="proxied", Key="v1/a")
        stranger = client(server, proxy.url, secret="another")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            stranger.put_object(Bucket="proxied", Key="v1/a", Body=data)
        assert 200_000 < proxy.sent_bytes < 210_000
        assert 100_000 < proxy.received_bytes < 110_000
    assert [it.method for it in proxy.requests] == ["PUT", "GET", "HEAD", "GET", "DELETE", "HEAD", "PUT"]
    assert proxy.requests[0].headers["host"] == proxy.url.removeprefix("http://")


def test_eight_uploads_at_once(server: S3Server) -> None:
    datas = {f"many/{number}": os.urandom(MIB) for number in range(8)}
    with S3Proxy(server.endpoint) as proxy, ThreadPoolExecutor(8) as pool:
        s3 = client(server, proxy.url)
        list(pool.map(lambda name: s3.put_object(Bucket="proxied", Key=name, Body=datas[name]), datas))
        got = pool.map(lambda name: s3.get_object(Bucket="proxied", Key=name)["Body"].read(), datas)
        assert dict(zip(datas, got, strict=True)) == datas
        assert 8 * MIB < proxy.sent_bytes < 8.1 * MIB
        assert 8 * MIB < proxy.received_bytes < 8.1 * MIB
    assert sorted(it.number for it in proxy.requests) == list(range(1, 17))


def test_faults_as_boto3_sees_them(moto: S3Server, bucket: str) -> None:
    def put(name: str, fault: Fault, **more: str) -> None:
        proxy.rules = [Scripted(fault, "PUT")]
        s3.put_object(Bucket="proxied", Key=name, Body=bytes(MIB), **more)

    def exists(name: str) -> bool:
        return "Contents" in s3.list_objects_v2(Bucket="proxied", Prefix=name)

    with S3Proxy(moto.endpoint) as proxy:
        s3 = client(moto, proxy.url)
        for fault in (Fault.DROP, Fault.CUT):
            with pytest.raises(ConnectionClosedError):
                put(f"faults/{fault}", fault)
            assert not exists(f"faults/{fault}")
        with pytest.raises(ConnectionClosedError):
            put("faults/lost", Fault.LOSE_REPLY)
        assert exists("faults/lost")
        for fault, code in {
            Fault.TOO_MANY: "TooManyRequests",
            Fault.ERROR: "InternalError",
            Fault.SLOW_DOWN: "SlowDown",
        }.items():
            with pytest.raises(ClientError) as caught:
                put("faults/refused", fault)
            assert caught.value.response["Error"]["Code"] == code
        assert not exists("faults/refused")
        # The first of two equal requests made the object, so the second, which is heard of, did not.
        with pytest.raises(ClientError, match="PreconditionFailed"):
            put("faults/twice", Fault.DUPLICATE, IfNoneMatch="*")
        assert exists("faults/twice")
        proxy.rules = [Scripted(Fault.TRUNCATE, "GET")]
        with pytest.raises((ResponseStreamingError, IncompleteReadError)):
            s3.get_object(Bucket="proxied", Key="faults/twice")["Body"].read()


# R2


def test_r2_refuses_checksums(moto: S3Server, bucket: str) -> None:
    with S3Proxy(moto.endpoint, [R2Rules()]) as proxy:
        with pytest.raises(ClientError, match=r"NotImplemented.*'x-amz-") as caught:
            client(moto, proxy.url, checksums="when_supported").put_object(
                Bucket="proxied", Key="k", Body=b"x"
            )
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501
        streamed = b"PUT /proxied/k HTTP/1.1\r\nHost: h\r\n%s\r\nContent-Length: 0\r\n\r\n"
        for header in (
            b"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            b"X-Amz-Trailer: x-amz-checksum-crc32",
            b"Content-Encoding: gzip,aws-chunked",
        ):
            assert raw(proxy, streamed % header).startswith(b"HTTP/1.1 501 Not Implemented\r\n")
        query = b"PUT /proxied/k?x-id=PutObject&x-amz-checksum-crc32=AAAAAA%3D%3D HTTP/1.1\r\nHost: h\r\n\r\n"
        assert raw(proxy, query).startswith(b"HTTP/1.1 501 ")
    assert {it.status for it in proxy.requests} == {501}


def test_r2_refuses_what_it_has_not(moto: S3Server, bucket: str) -> None:
    with S3Proxy(moto.endpoint, [R2Rules()]) as proxy:
        s3 = client(moto, proxy.url)
        calls: list[Callable[[], object]] = [
            lambda: s3.put_object(Bucket="proxied", Key="k", Body=b"x", ACL="private"),
            lambda: s3.put_object(Bucket="proxied", Key="k", Body=b"x", Tagging="a=b"),
            lambda: s3.put_object(Bucket="proxied", Key="k", Body=b"x", ServerSideEncryption="AES256"),
            lambda: s3.put_object(Bucket="proxied", Key="k", Body=b"x", ExpectedBucketOwner="1"),
            lambda: s3.get_object_tagging(Bucket="proxied", Key="k"),
            lambda: s3.get_object_acl(Bucket="proxied", Key="k"),
            lambda: s3.get_bucket_versioning(Bucket="proxied"),
            lambda: s3.list_object_versions(Bucket="proxied"),
        ]
        for call in calls:
            with pytest.raises(ClientError, match="NotImplemented"):
                call()
    assert [it.status for it in proxy.requests] == [501] * 8


def test_r2_takes_keys_of_the_customer() -> None:
    field = b"X-Amz-Server-Side-Encryption-Customer-Algorithm: AES256"
    with Upstream() as upstream, S3Proxy(upstream.url, [R2Rules()]) as proxy:
        assert raw(proxy, PUT.replace(b"X-Odd:  two  spaces ", field)) == REPLY


def test_r2_takes_conditional_puts(moto: S3Server, bucket: str) -> None:
    with S3Proxy(moto.endpoint, [R2Rules()]) as proxy:
        s3 = client(moto, proxy.url)
        s3.put_object(Bucket="proxied", Key="conditional", Body=b"1", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            s3.put_object(Bucket="proxied", Key="conditional", Body=b"2", IfNoneMatch="*")
        assert s3.get_object(Bucket="proxied", Key="conditional")["Body"].read() == b"1"


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ([5 * MIB, 5 * MIB, 1], False),
        ([1], False),
        ([6 * MIB, 5 * MIB, 1], True),
        ([5 * MIB, 5 * MIB + 1], True),
    ],
)
def test_r2_wants_parts_of_equal_size(moto: S3Server, bucket: str, sizes: list[int], refused: bool) -> None:
    with S3Proxy(moto.endpoint, [R2Rules()]) as proxy:
        s3 = client(moto, proxy.url)
        upload = {"Bucket": "proxied", "Key": "parts"}
        upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
        s3.upload_part(**upload, PartNumber=1, Body=b"a part that is sent again")
        parts = []
        for number, size in enumerate(sizes, start=1):
            etag = s3.upload_part(**upload, PartNumber=number, Body=bytes(size))["ETag"]
            parts.append({"PartNumber": number, "ETag": etag})
        if refused:
            with pytest.raises(ClientError, match=r"InvalidPart.*All non-trailing parts") as caught:
                s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
            s3.abort_multipart_upload(**upload)
        else:
            s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            assert s3.head_object(Bucket="proxied", Key="parts")["ContentLength"] == sum(sizes)
