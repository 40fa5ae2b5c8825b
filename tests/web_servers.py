"""Servers on loopback: pages, and search as SearXNG does it. They keep what they were asked."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Answer = Callable[[BaseHTTPRequestHandler], None]

CAPTCHA_PAGE = (
    "<html><body><h1>One more step</h1><p>Our systems have detected unusual traffic from your network. "
    "Please solve the captcha to go on.</p></body></html>"
)


@dataclass(frozen=True)
class Asked:
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


class LoopbackServer:
    """Answers on a free port of loopback within its `with` block."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass


class WebServer(LoopbackServer):
    """A server whose paths are set while it runs; others are 404."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[str, Answer] = {}
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append(Asked(parts.path, parse_qs(parts.query), headers))
                answer = outer._answers.get(
                    parts.path, lambda handler: reply(handler, b"nothing", status=404)
                )
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        super().__init__(Handler)

    @property
    def server(self) -> ThreadingHTTPServer:
        return self._server

    def on(self, path: str, answer: Answer) -> str:
        """Has `answer` answer at `path`; its URL."""
        self._answers[path] = answer
        return self.url(path)

    def page(self, path: str, body: str | bytes, **how: Any) -> str:
        data = body.encode() if isinstance(body, str) else body
        return self.on(path, lambda handler: reply(handler, data, **how))

    def redirect(self, path: str, target: str, status: int = 302) -> str:
        return self.page(path, b"", status=status, headers={"location": target})

    def gzip_bomb(self, path: str, unpacked_bytes: int) -> str:
        packed = gzip.compress(bytes(unpacked_bytes), compresslevel=9)
        return self.page(path, packed, headers={"content-encoding": "gzip"})

    def slow(self, path: str, pause_s: float) -> str:
        """A page that says its first words at once and the rest one by one."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("content-type", "text/html")
            handler.send_header("connection", "close")
            handler.end_headers()
            for _ in range(1000):
                handler.wfile.write(b"<p>word</p>")
                handler.wfile.flush()
                time.sleep(pause_s)

        return self.on(path, answer)


def reply(
    handler: BaseHTTPRequestHandler,
    body: bytes,
    *,
    status: int = 200,
    content_type: str = "text/html; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> None:
    handler.send_response(status)
    handler.send_header("content-type", content_type)
    handler.send_header("content-length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


@dataclass
class SearXNGServer(WebServer):
    """Answers /search as a SearXNG does: JSON if it is on, with `results`, or whatever `answer` says."""

    results: Sequence[Mapping[str, Any]] = ()
    unresponsive: Sequence[Sequence[str]] = ()
    has_json: bool = True
    answer: Answer | None = field(default=None)

    def __post_init__(self) -> None:
        super().__init__()
        self.on("/search", self._search)

    def __enter__(self) -> SearXNGServer:
        super().__enter__()
        return self

    @property
    def queries(self) -> list[str]:
        return [asked.query["q"][0] for asked in self.asked if "q" in asked.query]

    def _search(self, handler: BaseHTTPRequestHandler) -> None:
        if self.answer:
            self.answer(handler)
        elif not self.has_json:
            reply(handler, b"<h1>403 Forbidden</h1>", status=403)
        else:
            answer = {
                "query": self.queries[-1],
                "number_of_results": 0,
                "results": list(self.results),
                "answers": [],
                "unresponsive_engines": list(self.unresponsive),
            }
            reply(handler, json.dumps(answer).encode(), content_type="application/json")


def article(title: str, *paragraphs: str) -> str:
    """A page as sites have them, with a menu and a footer around the text."""
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    menu = "".join(f'<li><a href="/{n}">Section {n}</a></li>' for n in range(12))
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>{title}</title></head><body>"
        f"<nav><ul>{menu}</ul></nav><article><h1>{title}</h1>{text}</article>"
        f"<footer><p>Cookie settings</p></footer></body></html>"
    )
