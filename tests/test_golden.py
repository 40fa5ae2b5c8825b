"""Files of every version stay readable for ever, and docs/format.md says all that is needed to read them.

`golden/reader.py` follows docs/format.md alone; what it finds in `golden/store-1` is compared with what
Satchel finds there, and with `golden/reference-1.npz`, written when the store was made. Where the format
changes, these files stay, and the ones of the new version come beside them.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import make, reader

from satchel.cache_store.block import decode_object
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import decode_manifest
from satchel.cache_store.sessions import fork_session, open_session
from satchel.cache_store.snapshot import canonical_json, chain_key, identity_digest
from satchel.cache_store.verify import verify
from satchel.config.profiles import CodecSpec, get_profile
from satchel.engine.codecs.registry import codec_for
from satchel.engine.digests import files_sha256
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.session.context import Context, load_context

import mlx.core as mx  # isort: skip  # after the engine, which chooses its BLAS

GOLDEN = Path(__file__).parent / "golden"
FORMAT = (GOLDEN.parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
STORE = reader.Store(GOLDEN / "store-1")
ROPE = (12, 100_000.0)  # of the hybrid: coordinates that turn, and theta
# SHA-256 over the arrays of each object that a current manifest names, by the object's own.
ARRAYS = {
    "21a39ee4421f25bf1a6460f52befa486efd70708e72f1936291ca8a3990720a7":
        "8fc76b07f24715b4b101edf6c451c9c73a31ad0ffe13e78b40dcdfad99f8b516",
    "c46ee7d425797a40387747874e0e2034feed1926071e123d1dce0232e50d6ddf":
        "88bc6695e5835905a8cf2e19222ab888f753ba976f0c84e8b4fb16c87661c1c4",
    "410849d9a3f7a5623686e56f3483a9d4cf63f882f9f06b8c3c0159f9f34e8c8c":
        "1cd4cb0006683603b86cbfaaa5fc1901ccc4022416925aeaa4551b5f773d22c8",
    "9e03ef0853c040726eaccd420f197d7838ff72c7df42cca87ff3c26a0819e991":
        "9c813bdbf976fda866119ce5e5ef0ac658d8aac66ad94adccfdcc11a21650c25",
}  # fmt: skip
PRESENT = [
    ("user", "What is a satchel?"),
    ("assistant", "A bag with a long strap. 书包。"),
    ("user", 'And "quoted",\n\twith \\ and \u0007 and é?'),
    ("assistant", "Certainly. \U0001f392"),
    ("user", "Thanks"),
    ("assistant", ""),
]


def manifest_of(name: str) -> dict[str, Any]:
    return STORE.manifest(STORE.heads()[name]["manifest"])


@cache
def golden_parts() -> list[reader.Part]:
    return STORE.parts(manifest_of("golden 会话"))


@cache
def reference() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "reference-1.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A copy, since a store that is opened gets an index."""
    shutil.copytree(GOLDEN / "store-1", tmp_path / "store")
    return LocalStore(tmp_path / "store")


@cache
def factory(model: str) -> KVFactory:
    """Only the shapes of these models matter: their weights may differ with MLX's version."""
    return KVFactory(getattr(make, model)(), mx.bfloat16)


def restored(store: LocalStore, name: str, model: str, profile: str) -> Context:
    manifest = open_session(store, name).manifest
    state = factory(model).new(get_profile(profile))
    return load_context(store, manifest.identity, state, manifest.blocks, manifest.tail)


@pytest.fixture
def hybrid(store: LocalStore) -> Context:
    return restored(store, "golden 会话", "hybrid", make.PROFILE)


def compressed(state: KVState) -> dict[int, TurboQuantKVCache]:
    return {index: cache for index, cache in enumerate(state.caches) if isinstance(cache, TurboQuantKVCache)}


def bits_of(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


# What the document says


def test_the_reader_uses_nothing_of_satchel() -> None:
    tree = ast.parse((GOLDEN / "reader.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "numpy", "zstandard"}


def test_canonical_json() -> None:
    value = [
        'a\x7f\u2028\x1f/\\"é🎒\b\f\n\r\t',
        {"b": 1, "a": [1.0, 1e5, 1e-4, 1e-5, 1e16, 1e15, -0.0, 0.1, 10**20, True, None], "\U0001f392": {}},
        {"\uffff": [], "Z": ""},
    ]
    expected = (
        '["a\x7f\u2028\\u001f/\\\\\\"é🎒\\b\\f\\n\\r\\t",'
        '{"a":[1.0,100000.0,0.0001,1e-05,1e+16,1000000000000000.0,-0.0,0.1,100000000000000000000,true,null],'
        '"b":1,"🎒":{}},{"Z":"","\uffff":[]}]'
    )
    assert reader.canonical(value) == canonical_json(value) == expected.encode()


def test_the_documents_examples_of_digests() -> None:
    identity = {"format": 2, "codec": "turbo/2"}
    digest = "c0074877ea61e8d36ca098c16d7bf818a899f21accdd172ca1b9d2e5124eef5e"
    first = "e75212d7467003b354c6d483dd5988ce7b2947fb34cff0a19d83ab2e401b8d1b"
    second = "377119844a9454bfb1359ff56cedc86a890cd0e62fef360a4e014dddfb59312c"
    assert identity_digest(identity) == reader.identity_digest(identity) == digest
    for key in (reader.chain_key, chain_key):
        assert key("", digest, np.array([1, 17, 49151])) == first
        assert key(first, digest, np.array([2])) == second
    fixed = {"g0.k.mean": np.array([[[[1, 2]]]], np.float32), "g0.k.turns": np.zeros(1, np.uint8)}
    basis = "42563cb07daf2f458c860f879614fc833ef0725635da442922062e65fdc540e3"
    signs = "e5079ffff1458b2acf5ce76c83870b96af63e9e5b03826984b37d4f648e20f91"
    assert reader.basis(fixed) == basis
    assert reader.signs_digest(64) == signs
    assert np.packbits(reader.rotation_signs(64) < 0).tobytes().hex() == "13a5e8b33e872c2e"
    assert all(text in FORMAT for text in (digest, first, second, basis, signs, "13a5e8b33e872c2e"))


def test_the_documents_example_of_codes() -> None:
    codes = np.array([[0x76543210, 0xFEDCBA98, 0, 0]], np.uint32)
    grid = np.array([[0x3019]], np.uint16).view(np.float16)
    x = reader.turbo_decode(codes, grid, 4, 32)[0]
    begins = [-3.837437, -0.181093, -0.362185, 0, -0.724370]
    np.testing.assert_allclose([*x[:5], x[16]], [*begins, -2.716388], atol=1e-6)
    assert all(text in FORMAT for text in ("−3.837437, −0.181093, −0.362185, 0, −0.724370", "−2.716388"))


def test_the_digest_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("two")
    (tmp_path / "a").write_text("one")
    listed = [[name, hashlib.sha256(text).hexdigest()] for name, text in (("a", b"one"), ("b", b"two"))]
    expected = reader.sha256(reader.canonical(listed))
    assert files_sha256([tmp_path / "b", tmp_path / "a"]) == expected


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [32, 40, 64, 72, 80, 96, 128, 256])
def test_codes_of_every_size_are_as_described(head_dim: int, bits: int) -> None:
    """Padding, groups, blocks of the rotation."""
    codec = codec_for(CodecSpec("turbo", bits), head_dim, mx.float16)
    x = np.random.default_rng(3).normal(size=(5, head_dim)).astype(np.float32)
    rows = codec.encode(mx.array(x))
    size, padded = reader.group_of(head_dim, bits)
    assert rows["codes"].shape == (5, padded * bits // 32)
    assert rows["grid"].shape == (5, padded // size)
    found = reader.turbo_decode(np.array(rows["codes"]), np.array(rows["grid"]), bits, head_dim)
    np.testing.assert_allclose(found, np.array(codec.decode(rows)), atol=1e-5)
    digest = hashlib.sha256()
    for name, value in codec.constants().items():
        digest.update(f"{name} {len(value)}\n".encode() + value)
    assert reader.signs_digest(padded) == digest.hexdigest()


@pytest.mark.parametrize("name", ["turbo3,raised=0.2,boundary=1", "k2v3,boundary=2", "k8v4,raised=1", "k4v4"])
def test_bits_of_each_layer(name: str) -> None:
    profile = get_profile(name)
    for number in range(5):
        layer = profile.for_layer(number, 5)
        found = reader.codec_bits(profile.as_dict(), number, 5)
        assert found == (layer.keys.bits, layer.values.bits)


# The first objects


@pytest.mark.parametrize("name", ["block-1", "block-2"])
def test_the_first_blocks(name: str) -> None:
    data = (GOLDEN / f"{name}.zst").read_bytes()
    meta, arrays = reader.decode_object(data, "block")
    found, ours = decode_object(data, "block")
    assert (found, list(ours)) == (meta, list(arrays))
    for key, array in arrays.items():
        np.testing.assert_array_equal(ours[key], array, strict=True)


@pytest.mark.parametrize("name", ["manifest-1", "manifest-2"])
def test_the_first_manifests(name: str) -> None:
    data = (GOLDEN / f"{name}.zst").read_bytes()
    manifest = reader.decode_manifest(data)
    assert (manifest["name"], manifest["token_count"]) == ("café 笔记", 600)
    assert decode_manifest(data).stored() | {"format_version": 1} == manifest


# The store of version 1


def test_heads_and_manifests() -> None:
    heads = STORE.heads()
    assert sorted(heads) == ["golden 会话", "windows", "words"]
    head, manifest = heads["golden 会话"], manifest_of("golden 会话")
    assert [(message["role"], message["content"]) for message in manifest["messages"]] == PRESENT
    assert (head["generation"], head["turns"], head["token_count"]) == (4, 3, 600)
    assert head["title"] == "What is a satchel?"
    assert [(ref["start"], ref["stop"]) for ref in manifest["blocks"]] == [(0, 256), (256, 512)]
    assert all(ref["checkpoint"] for ref in manifest["blocks"])
    assert (manifest["tail"]["start"], manifest["tail"]["stop"]) == (512, 600)
    refs = [*manifest["blocks"], manifest["tail"]]
    stored = (GOLDEN / "store-1/v1/manifests" / head["manifest"]).stat().st_size
    assert head["stored_bytes"] == stored + sum(ref["stored_bytes"] for ref in refs)
    (abandoned,) = (STORE.manifest(each) for each in manifest["abandoned"])
    assert abandoned["messages"][-1] == {"role": "assistant", "content": "In red, too."}
    assert [abandoned["generation"], STORE.manifest(manifest["parent"])["generation"]] == [2, 3]
    assert [part.stop for part in STORE.parts(abandoned, with_tail=False)] == [256]
    windows, words = manifest_of("windows"), manifest_of("words")
    assert (windows["foreign"], windows["archived_from"], windows["blocks"]) == (True, "turbo4", [])
    assert (words["blocks"], words["tail"], words["token_count"]) == ([], None, 0)


def test_arrays_are_what_they_were() -> None:
    manifests = [manifest_of(name) for name in ("golden 会话", "windows")]
    refs = [(ref, "block") for manifest in manifests for ref in manifest["blocks"]]
    refs += [(manifest["tail"], "tail") for manifest in manifests]
    assert {ref["sha256"] for ref, _ in refs} == ARRAYS.keys()
    for ref, kind in refs:
        data = STORE.stored(ref)
        for meta, arrays in (reader.decode_object(data, kind), decode_object(data, kind)):  # type: ignore[arg-type]
            digest = hashlib.sha256()
            for name, array in arrays.items():
                digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
            assert digest.hexdigest() == ARRAYS[ref["sha256"]]
            assert meta == reader.decode_object(data, kind)[0]


def test_all_parts_have_one_basis() -> None:
    block, _, tail = golden_parts()
    assert block.meta["basis"] == reader.basis(block.arrays) == reader.basis(tail.arrays) != ""
    (windows,) = STORE.parts(manifest_of("windows"))
    assert windows.meta["basis"] == reader.basis(windows.arrays) == ""


def test_constants_of_the_codec() -> None:
    constants = manifest_of("golden 会话")["identity"]["kv"]["codec constants"]
    assert constants == {"turbo4@48": reader.signs_digest(64), "turbo3@48": reader.signs_digest(64)}


def test_what_the_codes_stand_for() -> None:
    profile = manifest_of("golden 会话")["identity"]["kv"]["profile"]
    turns = [golden_parts()[0].arrays[f"g{group}.k.turns"].tolist() for group in (0, 1)]
    assert turns == [[1], [0]]  # both kinds of mean
    for layer in (1, 3):
        for side in ("k", "v"):
            x = reader.body(golden_parts(), profile, layer, side, ROPE)
            assert x.shape == (1, 512, 48)
            expected = reference()[f"{layer}.{side}"]
            np.testing.assert_allclose(x[:, :: make.SAMPLE], expected, atol=1e-3)


def test_states_of_recurrent_layers() -> None:
    tail = golden_parts()[-1]
    for layer in (0, 2):
        arrays, *rest = reader.tree(tail, tail.meta["layers"][str(layer)])
        assert rest == [None, None]
        for place, array in enumerate(arrays):
            np.testing.assert_array_equal(array, reference()[f"{layer}.{place}"])
    assert tail.meta["checkpoint"]["offset"] == 592


def test_satchel_opens_it(store: LocalStore) -> None:
    saved = open_session(store, "golden 会话")
    assert saved.notice is None
    assert [(message.role, message.content) for message in saved.manifest.messages] == PRESENT
    snapshot = load_snapshot(store, saved.manifest)
    assert snapshot is not None
    expected = np.concatenate([part.tokens for part in golden_parts()])
    np.testing.assert_array_equal(snapshot.token_ids, expected)
    assert [message.content for message in open_session(store, "words").manifest.messages] == [
        "Only words",
        "are here.",
    ]
    found = verify(store, read_data=True)
    assert (found.sessions, found.manifests, found.objects, found.faults) == (3, 6, 4, ())
    assert fork_session(store, saved, "fork").manifest.blocks == saved.manifest.blocks


def test_the_identity_is_still_ours() -> None:
    """If not, the state is foreign: a version in the identity was raised, and this test has to say so."""
    for name, model, profile in (("golden 会话", "hybrid", make.PROFILE), ("windows", "windows", "exact")):
        state = factory(model).new(get_profile(profile))
        assert manifest_of(name)["identity"] == make.identity(model, state)


def test_the_engine_restores_compressed_layers_bit_for_bit(hybrid: Context) -> None:
    parts, tail = golden_parts(), golden_parts()[-1]
    assert hybrid.token_ids == np.concatenate([part.tokens for part in parts]).tolist()
    for layer, held in compressed(hybrid.state).items():
        number, row = reader.layers_of(parts)[layer]
        assert (held.offset, held.sink_tokens, held.body_stop) == (600, 4, 516)
        for side, body in (("k", held.key_body), ("v", held.value_body)):
            arrays = {name: bits_of(array)[0] for name, array in body.arrays().items()}
            for name in ("codes", "grid"):
                found = reader.rows(parts, f"g{number}.{side}.{name}", row)
                np.testing.assert_array_equal(arrays.pop(name), found, strict=True)
            for name, array in arrays.items():
                np.testing.assert_array_equal(
                    array, tail.arrays[f"g{number}.{side}.{name}"][row], strict=True
                )
            assert body.mean_turns == tail.arrays[f"g{number}.{side}.turns"][row]
        for side, exact in (("k", held.keys), ("v", held.values)):
            assert exact is not None
            assert exact.dtype == mx.bfloat16
            sink = parts[0].arrays[f"g{number}.{side}.sink"][row]
            joined = np.concatenate([sink, tail.arrays[f"g{number}.{side}.window"][row]], axis=1)
            np.testing.assert_array_equal(bits_of(exact)[0], joined)


def test_the_engine_gives_codes_the_same_meaning(hybrid: Context) -> None:
    profile = manifest_of("golden 会话")["identity"]["kv"]["profile"]
    for layer, held in compressed(hybrid.state).items():
        for side, body in (("k", held.key_body), ("v", held.value_body)):
            ours = np.array(body.dense(held.sink_tokens, mx.float32))[0]
            theirs = reader.body(golden_parts(), profile, layer, side, ROPE)
            np.testing.assert_allclose(ours, theirs, atol=1e-3)
            np.testing.assert_allclose(ours[:, :: make.SAMPLE], reference()[f"{layer}.{side}"], atol=1e-3)


def test_the_engine_restores_recurrent_layers_and_checkpoints(hybrid: Context) -> None:
    tail = golden_parts()[-1]
    (checkpoint,) = hybrid.checkpoints
    assert checkpoint.offset == 592
    for layer in (0, 2):
        for place, array in enumerate(hybrid.state.caches[layer].cache):
            np.testing.assert_array_equal(np.array(array), reference()[f"{layer}.{place}"])
    assert hybrid.go_back(592)
    for layer in (0, 2):
        arrays, *_ = reader.tree(tail, tail.meta["checkpoint"]["layers"][str(layer)])
        for place, array in enumerate(hybrid.state.caches[layer].cache):
            np.testing.assert_array_equal(np.array(array), arrays[place])


def test_the_engine_goes_on_from_a_blocks_checkpoint(store: LocalStore) -> None:
    manifest = open_session(store, "golden 会话").manifest
    state = factory("hybrid").new(get_profile(make.PROFILE))
    context = load_context(store, manifest.identity, state, manifest.blocks[:1], None)
    assert len(context.token_ids) == 256
    block = golden_parts()[0]
    for layer in (0, 2):
        arrays, *_ = reader.tree(block, block.meta["layers"][str(layer)])
        for place, array in enumerate(state.caches[layer].cache):
            np.testing.assert_array_equal(np.array(array), arrays[place])
    assert {cache.body_stop for cache in compressed(state).values()} == {256}


def test_the_engine_restores_sliding_windows(store: LocalStore) -> None:
    context = restored(store, "windows", "windows", "exact")
    first, _, third = context.state.caches
    assert context.token_ids == list(range(24))
    assert (first.offset, third.offset) == (24, 24)
    np.testing.assert_array_equal(np.array(first.keys), reference()["windows.0.k"])
    np.testing.assert_array_equal(np.array(third.values[:, :, :24]), reference()["windows.2.v"])
    (part,) = STORE.parts(manifest_of("windows"))
    np.testing.assert_array_equal(part.arrays["g0.v.x"][0], reference()["windows.2.v"][0])


# Written by the document alone


def test_satchel_reads_what_another_program_writes(tmp_path: Path) -> None:
    other = reader.Store(tmp_path)
    identity = {"program": "another", "scale": 1.5}
    digest, parent, session = reader.identity_digest(identity), "", "5e" * 16
    refs, given = [], []
    for start, stop in ((0, 256), (256, 300)):
        tokens = np.arange(start, stop, dtype=np.uint32)
        arrays = {
            "tokens": tokens,
            "x": np.linspace(-1, 1, 3 * len(tokens), dtype=np.float16).reshape(-1, 3),
            "words": np.arange(9, dtype=np.uint32),
            "none": np.zeros((0, 2), np.int32),
        }
        parent = reader.chain_key(parent, digest, tokens)
        kind, meta = "block", {"chain_key": parent, "engine": {"note": "é"}}
        if stop == 300:
            kind, meta = "tail", meta | {"session_id": session}
        data = reader.encode_object(kind, meta, arrays)
        ref = {"sha256": other.put(data, "blocks"), "stored_bytes": len(data), "start": start, "stop": stop}
        refs.append(ref | ({"chain_key": parent} if kind == "block" else {}))
        given.append(arrays)
    shared = {"session_id": session, "name": "From elsewhere", "generation": 1}
    described = {"model_name": "theirs", "profile_name": "theirs", "token_count": 300}
    manifest = shared | described | {
        "format_version": 1, "parent": None, "created_at": "2026-11-28T12:30:00+02:00", "identity": identity,
        "messages": [{"role": "user", "content": "Hello"}], "blocks": refs[:1], "tail": refs[1],
    }  # fmt: skip
    stored = reader.compress(reader.canonical(manifest))
    head = shared | described | {
        "manifest": other.put(stored, "manifests"), "updated_at": manifest["created_at"], "turns": 1,
        "stored_bytes": len(stored) + sum(ref["stored_bytes"] for ref in refs), "title": "Hello",
    }  # fmt: skip
    other.put_head(head)

    store = LocalStore(tmp_path)
    saved = open_session(store, "From elsewhere")
    assert saved.manifest == decode_manifest(stored)
    snapshot = load_snapshot(store, saved.manifest)
    assert snapshot is not None
    for part, arrays in zip((*snapshot.blocks, snapshot.tail), given, strict=True):
        np.testing.assert_array_equal(part.token_ids, arrays.pop("tokens"))
        assert part.whole().meta == {"note": "é"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(part.whole().arrays[name], array, strict=True)
    assert verify(store, read_data=True).faults == ()
    assert store.rename(session, "ours").generation == 2
