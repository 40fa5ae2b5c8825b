"""What is fetched: public pages of text, from the addresses that were looked at, within bounds."""

import datetime
import gzip
import itertools
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
from web_servers import WebServer, article, reply

from satchel.agent.search.addresses import PageError, allowed_addresses, checked_url, is_public
from satchel.agent.search.extract import PageText, decoded, page_text
from satchel.agent.search.fetch import MAX_PAGE_BYTES, Page, PageFetcher

NEVER = threading.Event()
PUBLIC = "93.184.215.14"


@pytest.fixture
def web():
    with WebServer() as server:
        yield server


def local(**how) -> PageFetcher:
    return PageFetcher(**{"timeout_s": 5, "allow_loopback": True} | how)


def resolving(*answers: list[str]):
    """A resolver that gives each of `answers` once, in order; `asked` counts."""
    left = list(answers)

    def resolve(host, port, **_):
        resolve.asked += 1
        return [(0, 0, 0, "", (address, port)) for address in left.pop(0)]

    resolve.asked = 0
    return resolve


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("64:ff9b::808:808", True),  # what an IPv6-only network makes of 8.8.8.8
        ("2002:808:808::1", True),
        ("127.0.0.1", False),
        ("127.255.0.9", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("172.16.9.9", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("168.63.129.16", False),
        ("168.63.129.17", True),
        ("100.100.100.200", False),
        ("64:ff9b::a83f:8110", False),
        ("192.0.0.8", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::7f00:1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::", False),
        ("2002:a00:1::1", False),
        ("2001:0:4136:e378::1", False),
        ("2001:db8::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("not an address", False),
    ],
)
def test_only_what_anybody_may_have_is_public(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("file:///etc/passwd", "no address of a web page"),
        ("ftp://example.org/", "no address of a web page"),
        ("javascript:alert(1)", "no address of a web page"),
        ("http:///path", "no address of a web page"),
        ("//example.org/", "no address of a web page"),
        ("http://user:pass@example.org/", "addresses with a name or password"),
        ("http://example.org\\@127.0.0.1/", "addresses with a name or password"),
        ("http://2130706433/", "no proper name"),
        ("http://0x7f000001/", "no proper name"),
        ("http://0x7f.1/", "no proper name"),
        ("http://127.1/", "no proper name"),
        ("http://017700000001/", "no proper name"),
        ("http://0177.0.0.1/", "no proper address"),
        ("http://１２７.0.0.1/", "no proper address"),
        ("http://[fe80::1%25eth0]/", "no proper name"),
        ("http://exa mple.org/", "no proper name"),
        ("http://example.org/\x00", "no proper address"),
        ("http://example.org/" + "a" * 2000, "no address of a web page"),
    ],
)
def test_urls_that_no_page_has_are_refused_before_anything_is_asked(url, complaint):
    with pytest.raises(PageError, match=complaint):
        checked_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://127。0。0。1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
    ],
)
def test_hosts_that_are_not_public_are_refused(url):
    with pytest.raises(PageError, match="this is not a public address"):
        PageFetcher(timeout_s=5).fetch(url, NEVER)


def test_a_name_with_one_private_address_is_refused_whatever_the_others():
    with pytest.raises(PageError, match=r"evil\.example: this is not a public address"):
        allowed_addresses(checked_url("http://evil.example/"), resolve=resolving([PUBLIC, "10.0.0.7"]))


def test_odd_ports_are_refused():
    resolve = resolving([PUBLIC], [PUBLIC])
    with pytest.raises(PageError, match="pages at port 22 are not fetched"):
        allowed_addresses(checked_url("http://example.org:22/"), resolve=resolve)
    assert allowed_addresses(checked_url("http://example.org:8080/"), resolve=resolve) == [PUBLIC]


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1"])
def test_the_option_for_loopback_allows_nothing_else(address):
    with pytest.raises(PageError, match="not a public address"):
        allowed_addresses(
            checked_url("http://a.example:8080/"), allow_loopback=True, resolve=resolving([address])
        )


def test_loopback_has_no_low_ports_either():
    with pytest.raises(PageError, match="port 25"):
        allowed_addresses(checked_url("http://127.0.0.1:25/"), allow_loopback=True)


def test_a_page_comes_with_its_type_and_its_charset(web):
    url = web.page("/page", article("A page", "Some text."))
    page = local().fetch(url + "#part", NEVER)
    assert (page.url, page.content_type, page.charset) == (url, "text/html", "utf-8")
    assert b"Some text." in page.body
    asked = web.asked[0].headers
    assert asked["host"] == f"127.0.0.1:{web.port}"
    assert asked["accept-encoding"] == "gzip"


def test_a_server_of_this_machine_is_not_asked_without_the_option(web):
    url = web.page("/page", "secret")
    with pytest.raises(PageError, match=r"127\.0\.0\.1: this is not a public address"):
        PageFetcher(timeout_s=5).fetch(url, NEVER)
    assert web.asked == []


def test_redirects_are_followed_to_where_the_page_is(web):
    web.page("/there/page", "here")
    web.redirect("/there/old", "page", status=308)
    url = web.redirect("/start", "/there/old")
    assert local().fetch(url, NEVER).url == web.url("/there/page")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("http://169.254.169.254/latest/", "this is not a public address"),
        ("http://10.0.0.1/", "this is not a public address"),
        ("http://[::ffff:7f00:1]/", "this is not a public address"),
        ("http://2130706433/", "this is no proper name"),
        ("file:///etc/passwd", "no address of a web page"),
        ("http://a:b@example.org/", "a name or password"),
    ],
)
def test_a_redirect_is_checked_like_a_first_url(web, target, complaint):
    with pytest.raises(PageError, match=complaint):
        local().fetch(web.redirect("/start", target), NEVER)


def test_redirects_in_a_circle_end(web):
    url = web.redirect("/a", "/a")
    with pytest.raises(PageError, match="redirects too often"):
        local().fetch(url, NEVER)
    assert len(web.asked) == 6


@pytest.fixture
def routes(monkeypatch, web):
    """Public addresses lead to `web`; what was connected to."""
    connected = []
    connect = socket.create_connection

    def create_connection(address, *args, **kwargs):
        connected.append(address)
        return connect(("127.0.0.1", web.port), *args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return connected


def test_a_name_is_resolved_once_and_that_address_is_connected_to(web, routes):
    web.page("/page", "public")
    resolve = resolving([PUBLIC], ["127.0.0.1"])
    fetcher = PageFetcher(timeout_s=5, resolve=resolve)
    assert fetcher.fetch("http://rebinding.example/page", NEVER).body == b"public"
    assert (resolve.asked, routes) == (1, [(PUBLIC, 80)])
    assert web.asked[0].headers["host"] == "rebinding.example"


def test_a_name_that_has_become_private_by_its_redirect_is_refused(web, routes):
    web.redirect("/page", "/other")
    fetcher = PageFetcher(timeout_s=5, resolve=resolving([PUBLIC], ["127.0.0.1"]))
    with pytest.raises(PageError, match=r"rebinding\.example: this is not a public address"):
        fetcher.fetch("http://rebinding.example/page", NEVER)
    assert len(web.asked) == 1


def test_proxies_of_the_environment_are_not_asked(web, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert local().fetch(web.page("/page", "direct"), NEVER).body == b"direct"


def _certificate(tmp_path, host):
    """A self-signed certificate of `host` and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / f"{host}.pem"
    encoding, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(encoding, format_, serialization.NoEncryption())
    )
    return path


def test_https_checks_the_certificate_for_the_name_not_the_address(web, routes, tmp_path):
    path = _certificate(tmp_path, "right.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    names = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
    web.page("/page", "over TLS")

    fetcher = PageFetcher(timeout_s=5, resolve=resolving([PUBLIC], [PUBLIC]))
    fetcher.__dict__["_ssl_context"] = ssl.create_default_context(cafile=str(path))
    assert fetcher.fetch("https://right.example/page", NEVER).body == b"over TLS"
    with pytest.raises(PageError, match=r"wrong\.example: its certificate is not valid"):
        fetcher.fetch("https://wrong.example/page", NEVER)
    assert names == ["right.example", "wrong.example"]
    assert routes == [(PUBLIC, 443), (PUBLIC, 443)]


def test_what_packs_into_little_and_unpacks_to_much_is_not_unpacked(web):
    url = web.gzip_bomb("/bomb", 50_000_000)
    with pytest.raises(PageError, match="is larger than 3 MB"):
        local().fetch(url, NEVER)


def test_packed_pages_are_unpacked(web):
    url = web.page("/page", gzip.compress(b"text " * 1000), headers={"content-encoding": "gzip"})
    assert local().fetch(url, NEVER).body == b"text " * 1000


def packed_page(web, data: bytes) -> str:
    return web.page("/page", data, headers={"content-encoding": "gzip"})


def test_a_packed_page_may_have_several_parts(web):
    data = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0\0"
    assert local().fetch(packed_page(web, data), NEVER).body == b"one two"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (gzip.compress(b"text " * 1000)[:-1], "is cut short"),
        (gzip.compress(b"text " * 1000)[:20], "is cut short"),
        (gzip.compress(b"one") + gzip.compress(b"two")[:-1], "is cut short"),
        (gzip.compress(b"") * 101, "is packed in too many parts"),
        (gzip.compress(bytes(2_000_000)) * 2, "is larger than 3 MB"),
    ],
    ids=["its end is missing", "most is missing", "a part's end is missing", "101 parts", "4 MB"],
)
def test_a_packed_page_that_is_not_whole_or_endless_is_none(web, data, complaint):
    with pytest.raises(PageError, match=complaint):
        local().fetch(packed_page(web, data), NEVER)


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"body": b"x" * (MAX_PAGE_BYTES + 1)}, "is larger than 3 MB"),
        ({"body": b"%PDF-1.7", "content_type": "application/pdf"}, "is no page of text"),
        ({"body": b"\x00" * 99, "content_type": "application/octet-stream"}, "is no page of text"),
        ({"body": b"x", "headers": {"content-encoding": "br"}}, "is packed in a way that is not known"),
        ({"body": b"not gzip", "headers": {"content-encoding": "gzip"}}, "is packed wrongly"),
        ({"body": b"nothing", "status": 404}, "answered 404"),
        ({"body": b"later", "status": 503}, "answered 503"),
        ({"body": b"", "status": 302, "headers": {"location": "http://[::1"}}, "broke off"),
    ],
)
def test_pages_that_cannot_be_used_say_why(web, how, complaint):
    with pytest.raises(PageError, match=rf"^127\.0\.0\.1(/page)?: {complaint}"):
        local().fetch(web.page("/page", **how), NEVER)


def test_a_page_that_drips_ends_with_its_time(web):
    started = time.monotonic()
    with pytest.raises(PageError, match="did not answer in time"):
        local(timeout_s=0.5).fetch(web.slow("/slow", 0.02), NEVER)
    assert time.monotonic() - started < 5


def test_a_page_that_nobody_waits_for_is_not_read_on(web):
    gone = threading.Event()
    threading.Timer(0.2, gone.set).start()
    with pytest.raises(PageError, match="did not answer in time"):
        local(timeout_s=30).fetch(web.slow("/slow", 0.02), gone)


def dripping(first: bytes, *rest: bytes, pause_s: float):
    """Answers with `first`, then `rest` in a circle, until nobody listens or the test is long over."""

    def answer(handler):
        handler.close_connection = True
        handler.wfile.write(first)
        for piece in itertools.islice(itertools.cycle(rest), int(20 / pause_s) if pause_s else 10**7):
            handler.wfile.write(piece)
            time.sleep(pause_s)

    return answer


HEADS = [
    dripping(b"HTTP/1.1 200 OK\r\n", b"x-drip: 1\r\n", pause_s=0.2),
    dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y", pause_s=0.05),
    dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.05),
    dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, pause_s=0),
]


@pytest.mark.parametrize("answer", HEADS)
def test_an_answer_that_does_not_get_to_its_page_ends_with_its_time(web, answer):
    threads = set(threading.enumerate())
    started = time.monotonic()
    with pytest.raises(PageError, match=r"127\.0\.0\.1: did not answer in time"):
        local(timeout_s=0.5).fetch(web.on("/drip", answer), NEVER)
    assert time.monotonic() - started < 10
    left = set(threading.enumerate()) - threads
    assert not [thread for thread in left if "process_request" not in thread.name]  # the server's own


@pytest.mark.parametrize("answer", HEADS)
def test_an_answer_that_nobody_waits_for_is_not_waited_for(web, answer):
    gone = threading.Event()
    threading.Timer(0.3, gone.set).start()
    started = time.monotonic()
    with pytest.raises(PageError, match="did not answer in time"):
        local(timeout_s=60).fetch(web.on("/drip", answer), gone)
    assert time.monotonic() - started < 10


def test_what_is_not_http_breaks_off(web):
    def answer(handler):
        handler.wfile.write(b"SSH-2.0-OpenSSH\r\n")
        handler.close_connection = True

    with pytest.raises(PageError, match=r"127\.0\.0\.1: broke off"):
        local().fetch(web.on("/ssh", answer), NEVER)


def test_hosts_that_are_not_there_say_so():
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(PageError, match=r"nowhere\.example: no such host is known"):
        PageFetcher(timeout_s=5, resolve=unknown).fetch("http://nowhere.example/", NEVER)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(PageError, match=r"127\.0\.0\.1: cannot be reached"):
        local().fetch(f"http://127.0.0.1:{port}/", NEVER)


def test_cookies_are_not_kept(web):
    def answer(handler):
        reply(handler, b"", status=302, headers={"location": "/next", "set-cookie": "a=b; Path=/"})

    web.page("/next", "there")
    local().fetch(web.on("/start", answer), NEVER)
    assert "cookie" not in web.asked[1].headers


# Text of pages


def html(body: str | bytes, charset: str = "") -> Page:
    data = body.encode() if isinstance(body, str) else body
    return Page("http://a.example/", "text/html", charset, data)


def test_the_text_of_a_page_is_without_its_menus():
    paragraphs = [f"Paragraph {n} tells of lighthouses and of those who kept them." for n in range(5)]
    read = page_text(html(article("Lighthouses &amp; keepers", *paragraphs)), NEVER)
    assert read.title == "Lighthouses & keepers"
    assert "Paragraph 3 tells of lighthouses" in read.text
    assert "Section 4" not in read.text
    assert "Cookie" not in read.text


def test_plain_text_is_taken_as_it_is_without_control_characters():
    page = Page("http://a.example/", "text/plain", "", b"one\x1b[31m two\x07\n<b>three</b>")
    assert page_text(page, NEVER) == PageText("", "one two\n<b>three</b>")


def test_html_that_keeps_the_extractor_busy_is_given_up():
    """Thousands of links in one paragraph take minutes."""
    page = html("<p>" + '<a href="/x">abc def</a> x ' * 20_000 + "</p>")
    started = time.monotonic()
    assert page_text(page, NEVER, time_s=1.0) is None
    assert time.monotonic() - started < 5


def test_deep_html_does_no_harm():
    read = page_text(html("<div>" * 50_000 + "<p>deep</p>"), NEVER, time_s=1.0)
    assert read is None or len(read.text) < 100


def test_nothing_is_imported_from_the_directory_the_user_is_in(tmp_path):
    (tmp_path / "trafilatura.py").write_text("raise SystemExit(7)")
    command = [sys.executable, "-P", "-m", "satchel.agent.search.extraction"]
    done = subprocess.run(command, input=b"<p>x</p>", capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("naïve 中文".encode(), "", "naïve 中文"),
        ("naïve".encode("cp1252"), "", "naïve"),
        ("中文网页".encode("gbk"), "gb2312", "中文网页"),
        (b"<meta charset=gb2312>" + "镕".encode("gbk"), "", "<meta charset=gb2312>镕"),
        ("привет".encode("koi8-r"), "KOI8-R", "привет"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("“x”".encode("cp1252"), "iso-8859-1", "“x”"),
        ("x中".encode("utf-16"), "", "x中"),
        (b"abc-", "punycode", "abc-"),
        (b"x", "no such charset", "x"),
    ],
)
def test_pages_are_decoded_as_they_say_or_else_as_they_seem(body, charset, text):
    assert decoded(body, charset) == text
