"""Other projects' caches on the bench: left out where not installed, and never in the way of other caches."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace

import peers
import pytest
from mlx_lm.models import base, llama
from mlx_lm.models.cache import KVCache, make_prompt_cache
from peers.peer import Peer, patched_attention
from tiny_models import tiny_llama

from satchel.engine.attention import dispatch_attention, mlx_lm_attention, route_attention
from satchel.engine.model import LoadedModel

PACKAGES = ["turboquant-mlx-full", "mlx-turboquant", "mlx-vlm", "veloxquant-mlx"]


def test_peers_that_are_not_installed_are_left_out_with_a_line_each(
    monkeypatch: pytest.MonkeyPatch, smollm: LoadedModel
) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(peers, "version", version)
    lines: list[str] = []
    assert peers.installed_peers(smollm, lines.append) == {}
    assert lines == [f"{p}: not installed, left out (`make bench-peers` installs it)" for p in PACKAGES]


def test_peers_that_cannot_be_imported_are_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, smollm: LoadedModel
) -> None:
    monkeypatch.setattr(peers, "version", lambda package: "1.0")
    for name in ("turboquant_mlx", "mlx_turboquant", "mlx_vlm", "veloxquant_mlx"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # of no version that the adapters know
    lines: list[str] = []
    assert peers.installed_peers(smollm, lines.append) == {}
    assert [line.split(":")[0] for line in lines] == PACKAGES
    assert all("cannot be imported, left out (ModuleNotFoundError: " in line for line in lines)


def test_a_peer_that_fails_on_the_model_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch, smollm: LoadedModel
) -> None:
    model = replace(smollm, model=tiny_llama())
    read: list[int] = []

    class Watched(KVCache):
        def update_and_fetch(self, keys, values):
            read.append(keys.shape[2])
            return super().update_and_fetch(keys, values)

    class Second(KVCache):
        def update_and_fetch(self, keys, values):
            if self.offset:
                raise AssertionError("one token\nand no more")
            return super().update_and_fetch(keys, values)

    def make() -> list[object]:
        raise KeyError("head_dim 64")

    found = [
        Peer("makes none", make),
        Peer("fails at the second token", lambda: [Second() for _ in make_prompt_cache(model.model)]),
        Peer("works", lambda: [Watched() for _ in make_prompt_cache(model.model)]),
    ]
    monkeypatch.setattr(peers, "version", lambda package: "1.0")
    monkeypatch.setattr(peers, "ADAPTERS", [SimpleNamespace(PACKAGE="p", peers=lambda model: found)])
    lines: list[str] = []
    assert peers.installed_peers(model, lines.append) == {"works": found[2]}
    assert lines == [
        "makes none: fails on this model, left out (KeyError: 'head_dim 64')",
        "fails at the second token: fails on this model, left out (AssertionError: one token and no more)",
    ]
    assert read == [1, 1, 1, 1]  # two tokens in each of two layers


def test_attention_is_a_peers_within_its_block_alone() -> None:
    route_attention(tiny_llama())
    assert llama.scaled_dot_product_attention is dispatch_attention
    found: list[object] = []

    def install() -> None:
        found.append(llama.scaled_dot_product_attention)
        llama.scaled_dot_product_attention = base.scaled_dot_product_attention = peers_attention

    def peers_attention() -> None:
        raise AssertionError

    with pytest.raises(KeyError), patched_attention(install):
        assert llama.scaled_dot_product_attention is peers_attention
        raise KeyError
    assert found == [mlx_lm_attention]
    assert llama.scaled_dot_product_attention is dispatch_attention
    assert base.scaled_dot_product_attention is mlx_lm_attention
