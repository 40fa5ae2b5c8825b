"""Short names stand for models; a user's own go before those of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from satchel.engine.hub import is_hub_name
from satchel.engine.model_folder import model_folder
from satchel.engine.model_names import full_name, name_of, named_models, near_names, resolve
from satchel.errors import NotFoundError


def test_a_short_name_stands_for_a_repository() -> None:
    assert resolve("qwen3.5-9b") == "mlx-community/Qwen3.5-9B-4bit"
    assert resolve("Qwen3.5-9B") == "mlx-community/Qwen3.5-9B-4bit"


@pytest.mark.parametrize("name", ["embedded", "owner/Repository-4bit", "./folder", "~/models/x.gguf", ""])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert resolve(name) == name


def test_a_users_name_goes_before_ours_and_may_stand_for_one_of_them() -> None:
    own = {"Main": "qwen3-0.6b", "qwen3.5-9b": "~/models/mine"}
    assert resolve("main", own) == "mlx-community/Qwen3-0.6B-4bit"
    assert resolve("qwen3.5-9b", own) == "~/models/mine"
    assert name_of("~/models/mine", own) == "qwen3.5-9b"
    assert name_of("mlx-community/Qwen3-8B-4bit", own) == "qwen3-8b"
    assert name_of("owner/other", own) is None


def test_near_misses_are_named() -> None:
    assert near_names("qwen3.5-9")[0] == "qwen3.5-9b"
    assert near_names("lama-3.2-3b")[0] == "llama-3.2-3b"
    assert near_names("embeded") == ["embedded"]
    assert near_names("mein", {"mine": "x/y"}) == ["mine"]
    assert near_names("zzzz") == []


def test_the_settings_table_is_used(satchel_home: Path) -> None:
    satchel_home.mkdir()
    (satchel_home / "config.toml").write_text('[models]\ntalk = "owner/repository"\n')
    assert full_name("talk") == "owner/repository"
    assert full_name("embedded") == "embedded"


def test_a_folder_goes_before_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert full_name("qwen3-8b") == "mlx-community/Qwen3-8B-4bit"
    (tmp_path / "qwen3-8b").mkdir()
    assert full_name("qwen3-8b") == "qwen3-8b"


def test_loading_a_misspelt_name_says_which_is_near() -> None:
    with pytest.raises(NotFoundError) as caught:
        model_folder("qwen3.5-9", print)
    assert caught.value.one_line() == "there is no model 'qwen3.5-9'; did you mean qwen3.5-9b?"


def test_the_table_is_sound() -> None:
    models = named_models()
    assert len({model.repository for model in models.values()}) == len(models)
    sizes = [model.download_bytes for model in models.values()]
    assert sizes == sorted(sizes)
    for name, model in models.items():
        assert re.fullmatch(r"[a-z0-9.-]+", name)
        assert is_hub_name(model.repository)
        assert len(model.about) < 80
        # Four bits and a group's scale and bias, with some layers and an image part in more.
        assert 4.2 < model.download_bytes * 8 / model.parameters < 7
