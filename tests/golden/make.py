"""Makes `store-1`, a store of three small sessions, and `reference-1.npz`, what its codes stand for.

    .venv/bin/python tests/golden/make.py FOLDER

writes both below FOLDER, which must not exist, and prints the constants of `tests/test_golden.py`. The files
beside this script were made so once, and have to be read for ever: never make them again in place of the old
ones. Where the format changes in a way that raises a version (docs/format.md), write `store-2` beside them.

Running this again need not give the same bytes: session ids are random, and other versions of MLX or zstd
round and compress otherwise.

The sessions, all on small random models:

- `golden 会话`: a hybrid with recurrent layers (0 and 2, in 8 bits) and full attention (1 and 3; 48
  coordinates, so codes are padded). Keys have 4 bits in layer 1 and 3 in layer 3, values 3; what is exact is
  bfloat16. Two blocks with checkpoints, a tail with one of the last message's end. Four generations: the
  second was left behind (`/restore`), and its tail is gone.
- `windows`: sliding windows in two layers and full attention in the third, all exact, in a tail alone. It
  came from elsewhere (`foreign`), and was archived once.
- `words`: a transcript and no state.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np

from satchel.cache_store.block import decode_object
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import Saved, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory, KVState
from satchel.session.context import Context

import mlx.core as mx  # isort: skip  # after the engine, which chooses its BLAS
from mlx_lm.models import gemma3_text, qwen3_5  # isort: skip

VOCABULARY = 97
PROFILE = "turbo3,window=64,recurrent=8,raised=0"
SAMPLE = 16  # of the reference, every so manieth token


class BiasedNorm(nn.Module):
    """A norm that adds a constant: after the rotary embedding it turns, as a bias of the key projection."""

    def __init__(self, norm: nn.Module, dims: int) -> None:
        super().__init__()
        self.norm = norm
        self.bias = mx.full((dims,), 4.0)

    def __call__(self, x: mx.array) -> mx.array:
        return self.norm(x) + self.bias


def hybrid() -> nn.Module:
    """Recurrent layers 0 and 2, full attention in 1 and 3, whose first 12 of 48 coordinates turn."""
    mx.random.seed(3)
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 48,
        "vocab_size": VOCABULARY,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "full_attention_interval": 2,
    }
    model = qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text))
    attention = model.layers[1].self_attn
    attention.k_norm = BiasedNorm(attention.k_norm, 48)
    mx.eval(model.parameters())
    return model.eval()


def windows() -> nn.Module:
    """Sliding windows of 16 tokens in layers 0 and 1, full attention in layer 2."""
    mx.random.seed(4)
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=32,
        num_hidden_layers=3,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=VOCABULARY,
        query_pre_attn_scalar=16,
        sliding_window=16,
        sliding_window_pattern=3,
    )
    model = gemma3_text.Model(args)
    mx.eval(model.parameters())
    return model.eval()


def identity(name: str, state: KVState) -> dict[str, Any]:
    """As of a loaded model, whose digests are made up."""
    digests = {
        field: hashlib.sha256(f"golden {name} {field}".encode()).hexdigest()
        for field in ("weights", "architecture", "tokenizer", "template")
    }
    return {"format": 2, "model": digests, "activations": "mlx.core.float32", "kv": state.identity()}


def said(*texts: str) -> list[Message]:
    return [Message(role=("user", "assistant")[at % 2], content=text) for at, text in enumerate(texts)]


def read(context: Context, model: nn.Module, token_ids: list[int]) -> None:
    """In chunks that end where checkpoints are due."""
    for start in range(0, len(token_ids), 4):
        chunk = token_ids[start : start + 4]
        mx.eval(model(mx.array([chunk]), cache=context.state.caches), [c.state for c in context.state.caches])
        context.token_ids += chunk
        if len(context.token_ids) % 256 == 0:
            context.keep_checkpoint()


def save(store: LocalStore, context: Context, messages: list[Message], base: Saved | None) -> Saved:
    named = identity("hybrid", context.state)
    start = context.stored[-1].stop if context.stored else 0
    saved = save_snapshot(
        store,
        context.snapshot(named, start),
        messages,
        name="golden 会话",
        model_name="small hybrid",
        profile_name=PROFILE,
        base=base,
        kept=context.stored,
    )
    context.stored = saved.manifest.blocks
    return saved


def make_hybrid(store: LocalStore) -> dict[str, np.ndarray]:
    """The first session; what its body stands for, and what its layers hold."""
    model = hybrid()
    ids = np.random.default_rng(6).integers(0, VOCABULARY, 900).tolist()
    context = Context(KVFactory(model, mx.bfloat16).new(get_profile(PROFILE)))
    opening = ("What is a satchel?", "A bag with a long strap. 书包。")
    read(context, model, ids[:332])
    context.keep_checkpoint()
    saved = save(store, context, said(*opening), None)
    read(context, model, ids[332:380])
    saved = save(store, context, said(*opening, "In red?", "In red, too."), saved)
    assert context.go_back(332)
    read(context, model, ids[500:760])
    context.keep_checkpoint()
    read(context, model, ids[760:768])
    present = (*opening, 'And "quoted",\n\twith \\ and \u0007 and é?', "Certainly. \U0001f392")
    saved = save(store, context, said(*present), saved)
    save(store, context, said(*present, "Thanks", ""), saved)
    reference: dict[str, np.ndarray] = {}
    for layer in (1, 3):
        cache = context.state.caches[layer]
        for side, body in (("k", cache.key_body), ("v", cache.value_body)):
            dense = body.dense(cache.sink_tokens, mx.float32)
            reference[f"{layer}.{side}"] = np.array(dense)[0, :, ::SAMPLE]
    for layer in (0, 2):
        for place, array in enumerate(context.state.caches[layer].cache):
            reference[f"{layer}.{place}"] = np.array(array.astype(mx.float32))
    return reference


def make_windows(store: LocalStore) -> dict[str, np.ndarray]:
    model = windows()
    context = Context(KVFactory(model, mx.bfloat16).new(get_profile("exact")))
    read(context, model, list(range(24)))
    saved = save_snapshot(
        store,
        context.snapshot(identity("windows", context.state), 0),
        said("Look out of the window.", "I see 24 tokens."),
        name="windows",
        model_name="small windows",
        profile_name="exact",
        archived_from="turbo4",
        foreign=True,
    )
    assert saved.manifest.tail
    return {
        "windows.0.k": np.array(context.state.caches[0].keys[:, :, -16:]),  # what later tokens attend to
        "windows.2.v": np.array(context.state.caches[2].values[:, :, :24]),
    }


def make_words(store: LocalStore) -> None:
    empty = np.zeros(0, dtype=np.uint32)
    snapshot = Snapshot({"none": True}, (), Block(0, 0, empty, {}))
    words = said("Only words", "are here.")
    saved = save_snapshot(store, snapshot, words, name="words", model_name="none", profile_name="turbo4")
    with store.locked():
        store.commit(
            saved.manifest.words_alone().model_copy(update={"generation": 2, "parent": saved.head.manifest}),
            saved.head.manifest,
        )
        store.delete_manifest(saved.head.manifest)
        store.delete_block(saved.manifest.tail.sha256)  # type: ignore[union-attr]


def describe(store: LocalStore) -> None:
    """Print the constants of the test: a digest of the arrays of each block and tail."""
    for head in store.heads().heads:
        manifest = store.get_manifest(head.manifest)
        print(head.name, head.session_id, head.manifest, [*manifest.abandoned], manifest.parent)
        for ref in (*manifest.blocks, *([manifest.tail] if manifest.tail else [])):
            kind = "tail" if ref == manifest.tail else "block"
            meta, arrays = decode_object(store.get_block(ref.sha256, ref.stored_bytes), kind)
            digest = hashlib.sha256()
            for name, array in arrays.items():
                digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
            print(f'    "{ref.sha256}": "{digest.hexdigest()}",')
            print("   ", {name: (array.dtype.name, array.shape) for name, array in arrays.items()})
            print("   ", meta)


def main(folder: Path) -> None:
    folder.mkdir()
    with tempfile.TemporaryDirectory() as work:
        store = LocalStore(Path(work))
        reference = make_hybrid(store) | make_windows(store)
        make_words(store)
        describe(store)
        for name in ("heads", "manifests", "blocks"):
            shutil.copytree(store.place / name, folder / "store-1" / "v1" / name)
    np.savez(folder / "reference-1.npz", **reference)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
