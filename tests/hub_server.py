"""A server on loopback that plays the Hugging Face hub for one repository, and keeps what it was asked."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from safetensors.numpy import save
from web_servers import LoopbackServer, QuietHandler

COMMIT = "c0ffee" * 6 + "c0ff"
PIECE = 1 << 16
TINY_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}


def tiny_files(weights_bytes: int = 0, **config: Any) -> dict[str, bytes]:
    """The files of a model of 16,384 float16 parameters, padded to at least `weights_bytes`."""
    tensors = {"model.embed_tokens.weight": np.zeros((256, 64), np.float16)}
    if weights_bytes:
        tensors["model.norm.weight"] = np.resize(np.arange(997, dtype=np.float16), weights_bytes // 2)
    return {
        "config.json": json.dumps(TINY_CONFIG | config).encode(),
        "model.safetensors": save(tensors),
        "tokenizer.json": b"{}",
        "README.md": b"# not wanted",
        "run.py": b"raise SystemExit('never run')",
    }


def write_model(folder: Path, **config: Any) -> Path:
    """The same model as a folder of one's own."""
    folder.mkdir(parents=True)
    for name, content in tiny_files(**config).items():
        if name.startswith(("config", "model", "tokenizer")):
            (folder / name).write_bytes(content)
    return folder


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    range: str | None


class HubServer(LoopbackServer):
    """Has `repository` with `files`; the weights come at `pause_s` a piece, and stop at `stall_at`."""

    def __init__(self, repository: str, files: Mapping[str, bytes]) -> None:
        self.repository, self.files = repository, dict(files)
        self.pause_s = 0.0
        self.stall_at: int | None = None
        self.break_at: list[int] = []  # each once
        self.lies: list[Any] = []  # further entries of its list of files
        self.commit = COMMIT
        self.location: str | None = None  # where it sends whoever asks for the weights
        self.has_ranges = True
        self.asked: list[Asked] = []
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                outer._answer(self, with_body=True)

            def do_HEAD(self) -> None:
                outer._answer(self, with_body=False)

        super().__init__(Handler)

    def fetched(self, name: str) -> list[Asked]:
        return [each for each in self.asked if each.method == "GET" and each.path.endswith(f"/{name}")]

    def _answer(self, handler: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = urlsplit(handler.path).path
        self.asked.append(Asked(handler.command, path, handler.headers.get("Range")))
        try:
            if path.startswith(f"/api/models/{self.repository}/tree/"):
                self._reply(handler, json.dumps([*map(self._entry, self.files), *self.lies]).encode())
            elif path.startswith(f"/api/models/{self.repository}"):
                about = {"id": self.repository, "sha": self.commit, "siblings": []}
                self._reply(handler, json.dumps(about).encode())
            elif self.location and path.endswith(".safetensors"):
                self._reply(handler, b"", 302, {"Location": self.location})
            elif path.startswith(f"/{self.repository}/resolve/") and path.rpartition("/")[2] in self.files:
                self._file(handler, path.rpartition("/")[2], with_body)
            else:
                headers = {"X-Error-Code": "RepoNotFound" if "/api/" in path else "EntryNotFound"}
                self._reply(handler, b"{}", status=404, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _sha1(content)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": self.etag(name), "size": len(content), "pointerSize": 134}
        return entry

    def etag(self, name: str) -> str:
        content = self.files[name]
        return hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else _sha1(content)

    def _file(self, handler: BaseHTTPRequestHandler, name: str, with_body: bool) -> None:
        content = self.files[name]
        wanted = handler.headers.get("Range") if self.has_ranges else None
        start = int((wanted or "bytes=0-").partition("=")[2].partition("-")[0])
        headers = {"ETag": f'"{self.etag(name)}"', "X-Repo-Commit": COMMIT}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.send_response(206 if wanted else 200)
        for key, value in (headers | {"Content-Length": str(len(content) - start)}).items():
            handler.send_header(key, value)
        handler.end_headers()
        if not with_body:
            return
        is_weights = name.endswith(".safetensors")
        for offset in range(start, len(content), PIECE):
            if is_weights and self.stall_at is not None and offset >= self.stall_at:
                time.sleep(60)
            if is_weights and self.break_at and offset >= self.break_at[0]:
                self.break_at.pop(0)
                handler.close_connection = True
                return
            handler.wfile.write(content[offset : offset + PIECE])
            handler.wfile.flush()
            if is_weights and self.pause_s:
                time.sleep(self.pause_s)

    def _reply(
        self,
        handler: BaseHTTPRequestHandler,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
