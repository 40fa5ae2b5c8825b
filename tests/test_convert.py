"""Models in MLX's form and with fewer bits: what is written, what is refused, and that it is all or none."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from in_process import Run

from satchel.engine import converting
from satchel.engine.converting import (
    DTYPES,
    MODES,
    RECIPES,
    Quantisation,
    convert,
    quantize,
    usual_folder,
)
from satchel.engine.model import load_model
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError

import mlx.core as mx  # isort: skip (after the engine, which loads a fast BLAS ahead of it)
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.convert import MODEL_CONVERSION_DTYPES, QUANT_RECIPES
from mlx_lm.models import llama

FOUR_BITS = Quantisation.choose()
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
# Of 8 layers: 128 x 128 for q, o, gate, up and down; 64 x 128 for k and v; two norms. An embedding, a norm.
PARAMETERS = 8 * (5 * 128 * 128 + 2 * 64 * 128 + 2 * 128) + 96 * 128 + 128


def write_model(folder: Path, scale: float = 0.1, **changes: Any) -> Path:
    """A random model with bfloat16 weights, as it comes from Hugging Face."""
    config = CONFIG | changes
    mx.random.seed(5)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = {
        name: (mx.random.normal(array.shape) * scale).astype(mx.bfloat16)
        for name, array in tree_flatten(model.parameters())
    }
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("as you like")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "made" / "target"


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def nothing_is_left(target: Path) -> bool:
    return not target.parent.exists() or not list(target.parent.iterdir())


def test_the_matrices_are_packed_as_mlx_packs_them(source: Path, target: Path) -> None:
    made = quantize(str(source), target, FOUR_BITS)
    packed = mx.load(str(target / "model.safetensors"))
    original = mx.load(str(source / "model.safetensors"))
    name = "model.layers.3.mlp.down_proj"
    codes, scales, biases = mx.quantize(original[f"{name}.weight"], 64, 4)
    assert mx.array_equal(packed[f"{name}.weight"], codes)
    assert mx.array_equal(packed[f"{name}.scales"], scales)
    assert mx.array_equal(packed[f"{name}.biases"], biases)
    assert packed["model.norm.weight"].dtype == mx.bfloat16
    assert config_of(target)["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert made.parameters == PARAMETERS
    assert made.quantisation == "4 bits, groups of 64"
    assert 4.5 < made.bits_per_weight < 5  # the header of so small a file counts
    assert made.source_bytes == (source / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("mode", "bits", "group_size", "dtypes"),
    [
        ("affine", 2, 128, {mx.uint32, mx.bfloat16}),
        ("affine", 3, 32, {mx.uint32, mx.bfloat16}),
        ("affine", 5, 64, {mx.uint32, mx.bfloat16}),
        ("affine", 6, 64, {mx.uint32, mx.bfloat16}),
        ("affine", 8, 64, {mx.uint32, mx.bfloat16}),
        ("mxfp4", 4, 32, {mx.uint32, mx.uint8, mx.bfloat16}),
        ("nvfp4", 4, 16, {mx.uint32, mx.uint8, mx.bfloat16}),
        ("mxfp8", 8, 32, {mx.uint32, mx.uint8, mx.bfloat16}),
    ],
)
def test_plain_mlx_lm_loads_every_mode(
    source: Path, target: Path, mode: str, bits: int, group_size: int, dtypes: set[mx.Dtype]
) -> None:
    quantize(str(source), target, Quantisation.choose(bits, group_size, mode))
    model, config = mlx_lm.utils.load_model(target)
    assert config["quantization"] == {"group_size": group_size, "bits": bits, "mode": mode}
    assert {array.dtype for _, array in tree_flatten(model.parameters())} == dtypes
    assert mx.isfinite(model(mx.array([[1, 2, 3]]))).all()


def test_a_recipe_takes_more_bits_where_they_matter(source: Path, target: Path) -> None:
    made = quantize(str(source), target, Quantisation.choose(recipe="mixed_3_6"))
    entries = config_of(target)["quantization"]
    assert entries["bits"] == 3
    assert entries["model.layers.0.mlp.down_proj"]["bits"] == 6
    assert entries["model.layers.1.mlp.down_proj"]["bits"] == 3
    assert entries["model.layers.0.self_attn.q_proj"]["bits"] == 3
    mlx_lm.utils.load_model(target)
    assert made.quantisation == "3 bits mixed, groups of 64"


def test_what_is_packed_already_is_unpacked_first(source: Path, target: Path) -> None:
    said: list[str] = []
    eight = target.with_name("eight")
    quantize(str(source), eight, Quantisation.choose(8), report=said.append)
    assert said == []
    quantize(str(eight), target, FOUR_BITS, report=said.append)
    assert said == ["eight is packed already (8 bits, groups of 64): what that lost stays lost"]
    name = "model.layers.0.mlp.up_proj"
    packed = mx.load(str(eight / "model.safetensors"))
    whole = mx.dequantize(packed[f"{name}.weight"], packed[f"{name}.scales"], packed[f"{name}.biases"], 64, 8)
    codes, _, _ = mx.quantize(whole, 64, 4)
    assert mx.array_equal(mx.load(str(target / "model.safetensors"))[f"{name}.weight"], codes)
    assert config_of(target)["quantization"]["bits"] == 4


def test_a_folder_of_hugging_face_becomes_one_of_mlx(source: Path, target: Path) -> None:
    made = convert(str(source), target)
    assert sorted(path.name for path in target.iterdir()) == [
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    weights, metadata = mx.load(str(target / "model.safetensors"), return_metadata=True)  # type: ignore[misc]
    assert metadata == {"format": "mlx"}
    assert mx.array_equal(
        weights["model.norm.weight"], mx.load(str(source / "model.safetensors"))["model.norm.weight"]
    )
    assert (made.parameters, made.quantisation) == (PARAMETERS, "bfloat16")
    with pytest.raises(UsageError, match="is in MLX's form already"):
        convert(str(target), target.with_name("again"))


def test_the_dtype_can_be_chosen(source: Path, target: Path) -> None:
    assert convert(str(source), target, "float16").quantisation == "float16"
    assert config_of(target)["torch_dtype"] == "float16"


def test_the_configuration_says_the_dtype_where_the_weights_are_wider(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "source", torch_dtype="float16")
    assert convert(str(source), target).quantisation == "float16"


def test_numbers_too_large_for_the_dtype_are_refused(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "source", scale=1e6)
    with pytest.raises(DamagedError, match="not finite in float16") as caught:
        convert(str(source), target, "float16")
    assert "--dtype bfloat16" in caught.value.hint
    assert nothing_is_left(target)


def test_large_models_are_written_in_several_files(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "SHARD_GIB", 0)  # a file for each tensor
    told: list[tuple[int, int]] = []
    convert(str(source), target, progress=lambda done, total: told.append((done, total)))
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 2 * PARAMETERS}
    assert len(set(index["weight_map"].values())) == len(index["weight_map"]) == 8 * 9 + 2
    assert (told[-1], len(told)) == ((2 * PARAMETERS, 2 * PARAMETERS), 74)
    mlx_lm.utils.load_model(target)


def test_stopped_in_the_middle_it_leaves_nothing(source: Path, target: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(str(source), target, FOUR_BITS, progress=stop)
    assert nothing_is_left(target)


def test_a_disk_without_room_is_found_ahead(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(SatchelError, match=r"would take 1\.6 MB, and the disk has 1\.0 MB free"):
        convert(str(source), target)
    with pytest.raises(SatchelError, match=r"would take 98\.3 MB, and the disk has 1\.0 MB free"):
        convert("embedded", target)
    assert nothing_is_left(target)


def test_a_full_disk_leaves_nothing(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("[write] No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", fail)
    with pytest.raises(SatchelError, match=r"cannot write .*No space left on device"):
        convert(str(source), target)
    assert nothing_is_left(target)


def test_nothing_is_overwritten(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for work in (lambda: convert(str(source), target), lambda: quantize(str(source), target, FOUR_BITS)):
        with pytest.raises(UsageError, match="is there already"):
            work()
    assert list(target.iterdir()) == []


def test_groups_that_do_not_divide_the_rows_are_refused(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "source", hidden_size=96, head_dim=32)
    with pytest.raises(
        UsageError, match=r"groups of 64 do not divide the rows of .*, which have 96 values"
    ) as caught:
        quantize(str(source), target, FOUR_BITS)
    assert caught.value.hint == "groups of 32 do"
    assert nothing_is_left(target)


def test_a_few_matrices_may_stay_as_they_are(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "source", intermediate_size=24)  # down_proj has rows of 24
    said: list[str] = []
    quantize(str(source), target, FOUR_BITS, report=said.append)
    assert said == ["8 matrices stay unpacked: groups of 64 do not divide their rows"]
    mlx_lm.utils.load_model(target)


def test_what_is_no_model_is_refused(tmp_path: Path, source: Path, target: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGU")
    (tmp_path / "empty").mkdir()
    for name, kind, text in (
        (tmp_path / "a.gguf", DamagedError, "a.gguf is not a GGUF file"),
        (tmp_path / "empty", NotFoundError, "no config.json"),
        (tmp_path / "nowhere", NotFoundError, "there is no model"),
    ):
        with pytest.raises(kind, match=text):
            convert(str(name), target)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(DamagedError):
        quantize(str(source), target, FOUR_BITS)
    weights.unlink()
    with pytest.raises(NotFoundError, match="no model"):
        convert(str(source), target)
    (source / "config.json").write_text('{"model_type": "abacus"}')
    with pytest.raises(UsageError, match="mlx-lm has no model type 'abacus'"):
        convert(str(source), target)
    assert nothing_is_left(target)


def test_without_a_tokenizer_nothing_usable_could_come_of_it(source: Path, target: Path) -> None:
    for file in source.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(NotFoundError, match="source has no tokenizer files"):
        convert(str(source), target, "float16")
    with pytest.raises(NotFoundError, match="source has no tokenizer files"):
        quantize(str(source), target, FOUR_BITS)
    assert nothing_is_left(target)


def test_a_gguf_file_that_is_written_as_it_is_shows_how_far_it_is(target: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert("embedded", target, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (96_576_768, 96_576_768)


def test_the_choices_are_those_of_mlx_lm() -> None:
    assert list(RECIPES) == QUANT_RECIPES
    assert sorted(DTYPES) == sorted(MODEL_CONVERSION_DTYPES)
    row = mx.ones((1, 128))
    for name, mode in MODES.items():
        for bits in mode.bits:
            for group_size in mode.group_sizes:
                mx.eval(mx.quantize(row, group_size, bits, name))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"bits": 7}, "affine has no 7 bits; it has 2, 3, 4, 5, 6 and 8"),
        ({"group_size": 16}, "affine has no groups of 16; it has 32, 64 and 128"),
        ({"mode": "nvfp4", "group_size": 32}, "nvfp4 has no groups of 32; it has 16"),
        ({"mode": "fp4"}, "there is no mode 'fp4'; modes are affine, mxfp4, nvfp4, mxfp8"),
        ({"recipe": "mixed_2_6", "bits": 2}, "a recipe has its own bits, in mode affine; leave out"),
        ({"recipe": "best"}, "there is no recipe 'best'; recipes are mixed_2_6, mixed_3_4, mixed_3_6"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Quantisation.choose(**arguments)
    assert caught.value.one_line().startswith(complaint)


def test_a_new_folder_is_named_after_the_model() -> None:
    assert usual_folder("~/models/Llama.Q4_K_M.gguf", "mlx") == Path("Llama.Q4_K_M-mlx")
    assert usual_folder("Qwen/Qwen3-4B/", FOUR_BITS.suffix) == Path("Qwen3-4B-4bit")
    assert Quantisation.choose(mode="nvfp4").suffix == "nvfp4"
    assert Quantisation.choose(recipe="mixed_4_6").suffix == "mixed_4_6"


def test_the_embedded_model_at_four_bits_answers(satchel: Run, tmp_path: Path) -> None:
    folder = tmp_path / "smollm2 4bit"
    done = satchel("model", "quantize", "embedded", folder, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["path"] == str(folder)
    assert record["quantisation"] == "4 bits, groups of 64"
    assert record["parameters"] == 134_515_008
    assert record["bits_per_weight"] == 4.507
    assert record["source_bytes"] == 98_362_432
    assert "98.4 MB became 75.8 MB: 4 bits, groups of 64, 4.51 bits a weight" in done.stderr
    assert f"`satchel chat --model '{folder}'` uses it" in done.stderr
    assert "[INFO]" not in done.stdout + done.stderr

    loaded = load_model(str(folder))
    question = [{"role": "user", "content": "What is the capital of France? One word."}]
    prompt = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True)
    answer: list[int] = []
    for _ in range(7):
        answer.append(int(loaded.model(mx.array([prompt + answer]))[0, -1].argmax().item()))
    assert loaded.tokenizer.decode(answer) == "The capital of France is Paris."
    plain, tokenizer = mlx_lm.utils.load(str(folder), lazy=True)
    assert tokenizer.encode("Paris is") == [38634, 314]
    assert plain.model.layers[0].mlp.up_proj.bits == 4


def test_a_gguf_file_becomes_a_folder(satchel: Run, tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    done = satchel("model", "convert", "embedded", folder)
    assert (done.returncode, done.stdout) == (0, f"{folder}\n")
    assert config_of(folder)["quantization"]["group_size"] == 32
    again = satchel("model", "convert", "embedded", folder)
    assert (again.returncode, again.stdout) == (2, "")
    assert "is there already" in again.stderr
