"""What models are on this machine, and what is deleted of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import COMMIT, tiny_files, write_model
from test_gguf import write_model as write_gguf

from satchel.engine import library
from satchel.engine.digests import file_sha256
from satchel.engine.library import LocalModel, find, is_here, local_models, remove, what_stays
from satchel.engine.model_folder import conversion_of, conversions
from satchel.errors import NotFoundError, RefusedError


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches with nothing in them, the hub's and ours."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "find_embedded_gguf", lambda: None)
    return cache


def put_in_hub_cache(cache: Path, name: str, leave_out: str = "", **config: object) -> Path:
    """As the hub's library puts a model there."""
    root = cache / f"models--{name.replace('/', '--')}"
    folder = root / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (root / "blobs").mkdir()
    for number, (file, content) in enumerate(tiny_files(**config).items()):
        if file != leave_out:
            (root / "blobs" / str(number)).write_bytes(content)
            (folder / file).symlink_to(root / "blobs" / str(number))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return folder


def only(models: list[LocalModel]) -> LocalModel:
    (model,) = models
    return model


def test_nothing_is_here() -> None:
    assert local_models() == []
    assert not is_here("embedded")
    assert not is_here("mlx-community/Qwen3-0.6B-4bit")


def test_a_folder_that_is_named_somewhere(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    for model in (
        only(local_models({"me": str(folder)})),
        only(local_models({}, [str(folder)])),
        find(str(folder)),
    ):
        assert (model.name, model.kind, model.architecture) == (str(folder), "folder", "llama")
        assert (model.quantisation, model.parameters, model.fault) == ("float16", 16384, "")
        assert model.stored_bytes == sum(file.stat().st_size for file in folder.iterdir())
    assert is_here(str(folder))


def test_the_same_model_under_two_names_is_listed_once(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (tmp_path / "link").symlink_to(folder)
    assert len(local_models({"a": str(folder), "b": str(tmp_path / "link")}, [str(folder)])) == 1


def test_a_gguf_file_and_the_folder_made_of_it(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file)
    model = only(local_models({}, [str(file)]))
    assert (model.kind, model.conversion, model.stored_bytes) == ("gguf", None, file.stat().st_size)
    made = write_model(conversion_of(file_sha256(file)))
    model = only(local_models({}, [str(file)]))
    assert model.conversion == made
    assert model.stored_bytes == sum(each.stat().st_size for each in (file, *made.iterdir()))
    file.unlink()
    assert only(local_models()).kind == "converted"


def test_what_is_no_model_has_a_fault(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    assert find(str(text)).fault == "notes.txt is not a GGUF file"
    assert not is_here(str(text))
    assert "has no config.json" in find(str(tmp_path)).fault


def test_a_model_in_the_hubs_cache(hub_cache: Path) -> None:
    folder = put_in_hub_cache(hub_cache, "mlx-community/Qwen3-0.6B-4bit")
    model = find("qwen3-0.6b")
    assert (model.name, model.kind, model.path) == ("mlx-community/Qwen3-0.6B-4bit", "hub", folder)
    assert only(local_models()).name == "mlx-community/Qwen3-0.6B-4bit"
    assert is_here("qwen3-0.6b")


def test_a_model_that_came_in_part_is_not_here_yet(hub_cache: Path) -> None:
    put_in_hub_cache(hub_cache, "me/small", leave_out="model.safetensors")
    assert only(local_models()).fault == "it came in part only: `satchel model pull me/small` goes on"
    assert not is_here("me/small")
    with pytest.raises(NotFoundError, match="is not on this machine"):
        find("me/small")
    assert find("me/small", in_part=True).name == "me/small"


def test_other_peoples_models_in_the_hubs_cache_are_not_listed(hub_cache: Path) -> None:
    put_in_hub_cache(hub_cache, "openai/whisper-small", model_type="whisper")
    assert local_models() == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("qwen3.5-9b", "`satchel model pull qwen3.5-9b` fetches it"),
        ("qwen3.5-9", "did you mean qwen3.5-9b?"),
        ("owner/repository", "`satchel model pull owner/repository` fetches it"),
        ("embedded", "`satchel model pull embedded` fetches it"),
        ("zzzz", "`satchel model list --known` shows what can be fetched by a short name"),
        ("a" * 300, "`satchel model list --known` shows what can be fetched by a short name"),
    ],
)
def test_what_is_not_here_has_a_hint(name: str, hint: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find(name)
    assert caught.value.hint == hint


def test_removing_from_the_hubs_cache_takes_it_all(hub_cache: Path) -> None:
    put_in_hub_cache(hub_cache, "me/small")
    model = find("me/small")
    assert what_stays(model) == ""
    assert remove(model) == model.stored_bytes
    assert not (hub_cache / "models--me--small").exists()


def test_your_own_folder_is_never_removed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "my own")
    with pytest.raises(RefusedError) as caught:
        remove(find(str(folder)))
    assert caught.value.hint == f"`rm -r '{folder}'` deletes it"
    assert (folder / "model.safetensors").is_file()


def test_of_a_gguf_file_only_what_was_made_of_it_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file)
    made = write_model(conversion_of(file_sha256(file)))
    made_bytes = sum(each.stat().st_size for each in made.iterdir())
    assert remove(find(str(file))) == made_bytes
    assert file.is_file()
    assert not made.exists()
    with pytest.raises(RefusedError):
        remove(find(str(file)))


def test_what_else_is_among_our_conversions_is_not_ours(tmp_path: Path) -> None:
    folder = write_model(conversions() / "my own")
    with pytest.raises(RefusedError):
        remove(find(str(folder)))
    assert (folder / "model.safetensors").is_file()


def test_a_link_among_our_conversions_is_removed_and_not_what_it_points_at(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    link = conversion_of("f" * 64)
    link.parent.mkdir(parents=True)
    link.symlink_to(folder)
    remove(find(str(link)))
    assert not link.is_symlink()
    assert (folder / "model.safetensors").is_file()
