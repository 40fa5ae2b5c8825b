"""Real models, loaded once a run, and a home of their own for all that a test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from satchel.engine.model import LoadedModel, load_model

TEST_MODELS = "SATCHEL_TEST_MODELS"


@pytest.fixture(autouse=True)
def satchel_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's sessions or settings. The cache of converted models is shared on purpose."""
    home = tmp_path / "home"
    monkeypatch.setenv("SATCHEL_HOME", str(home))
    monkeypatch.delenv("SATCHEL_CONFIG", raising=False)
    return home


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    return load_model("embedded")


@pytest.fixture(scope="session")
def test_models_dir() -> Path:
    folder = os.environ.get(TEST_MODELS)
    if not folder:
        pytest.skip(f"{TEST_MODELS} names no folder with the larger test models")
    return Path(folder)


@pytest.fixture(scope="session")
def qwen(test_models_dir: Path) -> LoadedModel:
    return _load_file(test_models_dir / "qwen25-0.5b.gguf")


@pytest.fixture(scope="session")
def gemma(test_models_dir: Path) -> LoadedModel:
    return _load_file(test_models_dir / "gemma3-270m.gguf")


def _load_file(path: Path) -> LoadedModel:
    if not path.is_file():
        pytest.skip(f"{path.name} is not in {TEST_MODELS}")
    return load_model(str(path))
