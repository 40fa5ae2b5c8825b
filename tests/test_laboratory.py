"""The KV bench: texts, comparisons, needles, sizes and speeds, and `satchel bench kv` itself."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import QuantizedKVCache
from tiny_models import tiny_llama

from satchel.engine.model import LoadedModel
from satchel.errors import UsageError
from satchel.laboratory import needle, texts
from satchel.laboratory.caches import Candidate, caches_by_name, exact, held_arrays
from satchel.laboratory.filling import keys_and_values
from satchel.laboratory.kv_bench import Plan, Step, run
from satchel.laboratory.plot import check_plot, points, write_plot
from satchel.laboratory.quality import QualityRow, Reference, agreement, compare, greedy, quality
from satchel.laboratory.report import Report, write_json
from satchel.laboratory.speed import speed
from satchel.laboratory.storage import StorageRow, storage
from satchel.terminal.bench import show

IDS = [number * 7 % 96 for number in range(512)]
has_matplotlib = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def tiny(smollm: LoadedModel) -> LoadedModel:
    """A small random model behind the embedded one's tokenizer."""
    return replace(smollm, name="tiny", model=tiny_llama(vocabulary=smollm.args.vocab_size))


# -- texts -------------------------------------------------------------------------------------------


def test_every_text_has_the_tokens_asked_for(smollm: LoadedModel) -> None:
    for name in ("pydoc", "prose", "code", "chinese", "chat"):
        assert len(texts.token_ids(smollm, name, 2048)) == 2048


def test_a_short_text_is_not_repeated(smollm: LoadedModel) -> None:
    found = texts.token_ids(smollm, "prose", 100_000)
    assert 2048 < len(found) < 4096
    assert smollm.tokenizer.decode(found).startswith("The Ferry at Oldmarsh")


def test_the_chat_is_in_the_models_own_template(smollm: LoadedModel) -> None:
    said = smollm.tokenizer.decode(texts.token_ids(smollm, "chat", 100_000))
    assert said.count("<|im_start|>assistant") == 10  # nine answers, and where the next begins
    assert "```python\nimport csv" in said


def test_a_text_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "GPL", Path("/nowhere/GPL-3"))
    assert texts.available_texts() == ["pydoc", "prose", "code", "chinese", "chat"]
    with pytest.raises(UsageError, match="/nowhere/GPL-3 is not there"):
        texts.check_text_names(["pydoc", "gpl"])
    with pytest.raises(UsageError, match="no text is called 'klingon'"):
        texts.check_text_names(["klingon"])


# -- caches ------------------------------------------------------------------------------------------


def test_a_cache_is_made_by_its_name(tiny: LoadedModel) -> None:
    found = caches_by_name(tiny, ["mlx-lm 4", "turbo3", "exact"])
    bits = [(cache.bits, cache.group_size) for cache in found["mlx-lm 4"].make()]
    assert bits == [(4, 64), (4, 64)]
    assert [cache.profile.name for cache in found["turbo3"].make()] == ["turbo3", "turbo3"]
    assert found["turbo3"].state is not None
    assert found["mlx-lm 4"].state is None


@pytest.mark.parametrize(
    ("name", "reason"), [("mlx-lm 5", "mlx-lm has no cache of '5' bits"), ("turbo9", "no KV profile")]
)
def test_an_unknown_cache_is_named(tiny: LoadedModel, name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        caches_by_name(tiny, ["turbo4", name])


def test_held_arrays_are_found_once_wherever_they_are() -> None:
    class Slotted:
        __slots__ = ("inner",)

    shared, deep = mx.zeros(3), mx.zeros(5)
    holder = Slotted()
    holder.inner = {"a": [shared, (deep, "text", None)], "b": shared}
    assert sorted(array.size for array in held_arrays([holder, shared])) == [3, 5]
    assert list(held_arrays([tiny_llama(), lambda: shared])) == []  # a model is no cache


# -- quality -----------------------------------------------------------------------------------------


def test_figures_of_distributions_that_are_known() -> None:
    with np.errstate(divide="ignore"):
        exact_log = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32))
        other_log = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    found = compare(exact_log, [other_log[:1], other_log[1:]], [1])
    kl = 0.7 * math.log(8)  # of the second row; the first is equal
    assert found.kl_mean == pytest.approx(kl / 2, abs=1e-6)
    assert found.kl_p99 == pytest.approx(0.99 * kl, abs=1e-6)
    assert found.top_1 == 0.5
    assert found.perplexity_ratio == 1.0  # the one known target is as likely in both
    likelier = compare(exact_log[1:], [other_log[1:]], [0])
    assert likelier.perplexity_ratio == pytest.approx(8, rel=1e-5)


def test_the_exact_cache_differs_from_itself_in_nothing(tiny: LoadedModel) -> None:
    reference = Reference.of(tiny, "ids", IDS[:256], chunk=16)
    assert reference.log_probs.shape == (64, tiny.args.vocab_size)
    assert np.exp(reference.log_probs).sum(-1) == pytest.approx(1, abs=1e-4)
    assert quality(tiny, exact(tiny), reference) == QualityRow("exact", "ids", 256, 0.0, 0.0, 1.0, 1.0)


def test_all_reading_is_inside_the_candidates_attention(tiny: LoadedModel) -> None:
    inside: list[bool] = []

    @contextmanager
    def attention():
        inside.append(True)
        try:
            yield
        finally:
            inside.append(False)

    class Watched(QuantizedKVCache):
        def update_and_fetch(self, keys, values):
            assert inside[-1:] == [True]
            return super().update_and_fetch(keys, values)

    peer = Candidate("peer", lambda: [Watched(64, 8) for _ in range(2)], attention)
    reference = Reference.of(tiny, "ids", IDS[:256], chunk=32)
    row = quality(tiny, peer, reference)
    assert inside == [True, False]
    assert 0 < row.kl_mean < 0.1
    agreement(tiny, peer, "ids", IDS[:32], [96_000] * 4)  # stops at the first token
    assert inside == [True, False] * 2


def test_greedy_tokens_agree_up_to_the_first_other(tiny: LoadedModel) -> None:
    expected = list(greedy(tiny, exact(tiny), IDS[:40], 6))
    assert agreement(tiny, exact(tiny), "ids", IDS[:40], expected).agreed == 6
    other = [*expected[:4], expected[4] + 1, expected[5]]
    row = agreement(tiny, exact(tiny), "ids", IDS[:40], other)
    assert (row.agreed, row.of, row.tokens) == (4, 6, 40)


# -- needles -----------------------------------------------------------------------------------------


def test_a_haystack_holds_each_fact_once_in_the_order_of_depths(smollm: LoadedModel) -> None:
    hay = needle.haystack(smollm, 1024)
    assert hay.tokens == 1024
    text = smollm.tokenizer.decode(hay.token_ids)
    places = [text.index(f"Remember: {name} = {number}.") for name, number in needle.FACTS.items()]
    assert places == sorted(places)
    assert text.count("Remember: ") == 12
    start, stop = hay.answers["attic"]
    assert smollm.tokenizer.decode(hay.questions[start:stop]) == " 6240"


def test_what_was_said_is_retrieved_and_what_was_not_is_not(smollm: LoadedModel) -> None:
    hay = needle.haystack(smollm, 512)
    by_exact = needle.retrieve(smollm, exact(smollm), hay, 200)
    row = needle.needle_row("exact", hay, by_exact, by_exact)
    assert row.retrieved == row.exact_retrieved >= 0.9
    assert len(row.depths) == 10
    elsewhere = replace(hay, token_ids=texts.token_ids(smollm, "prose", 64))
    lost = needle.retrieve(smollm, exact(smollm), elsewhere, 200)
    row = needle.needle_row("lost", elsewhere, lost, by_exact)
    assert (row.retrieved, row.depths) == (0.0, "----------")


# -- sizes -------------------------------------------------------------------------------------------


def test_bits_held_and_stored(tiny: LoadedModel) -> None:
    source = keys_and_values(tiny, IDS)
    assert source.elements == 512 * 2 * 2 * 2 * 64  # tokens, layers, heads, keys and values, head size
    named = caches_by_name(tiny, ["mlx-lm 4", "mlx-lm 8", "turbo4", "exact"])
    rows = {name: storage(candidate, source) for name, candidate in named.items()}
    assert rows["exact"].bits_held == 16
    assert rows["mlx-lm 4"].bits_held == 4.5
    assert rows["mlx-lm 8"].bits_stored == pytest.approx(8.5, rel=0.03)  # with the file's header
    # 192 tokens are exact; codes with scales take about 4.5 bits. A token has 512 coordinates, over which the
    # table of cos and sin is spread, 1,024 x 64 numbers of 32 bits. Means and signs are less than 1 %.
    bits = 4.5 * 320 + 16 * 192 + 32 * 1024 * 64 / 512
    assert rows["turbo4"].bits_held == pytest.approx(bits / 512, rel=0.02)
    assert rows["turbo4"].stored_bytes < rows["turbo4"].held_bytes
    assert rows["turbo4"].bits_stored == 8 * rows["turbo4"].stored_bytes / source.elements


def test_a_cache_that_nobody_stores_has_no_stored_bits(tiny: LoadedModel) -> None:
    class Subclass(QuantizedKVCache):
        """mlx-lm looks up a saved cache's class by name among its own."""

    class Other:
        def update_and_fetch(self, keys, values):
            self.x = mx.concatenate([keys, values], axis=2)

    source = keys_and_values(tiny, IDS[:256])
    row = storage(Candidate("other", lambda: [Other(), Other()]), source)
    assert row.bits_stored is None
    assert row.bits_held == 16
    assert storage(Candidate("sub", lambda: [Subclass(64, 8), Subclass(64, 8)]), source).bits_stored is None


# -- speed -------------------------------------------------------------------------------------------


def test_speed_has_a_row_for_each_cache(tiny: LoadedModel) -> None:
    named = caches_by_name(tiny, ["exact", "mlx-lm 4", "turbo4"])
    rows = speed(tiny, list(named.values()), IDS[:300], keys_and_values(tiny, IDS[:300]), 700)
    assert [row.cache for row in rows] == ["exact", "mlx-lm 4", "turbo4"]
    assert {(row.tokens, row.prefill_tokens) for row in rows} == {(700, 300)}
    by_exact, mlx_lm, turbo4 = rows
    assert (by_exact.decode_x_exact, by_exact.prefill_x_exact, by_exact.encode_melements_s) == (1, 1, None)
    assert mlx_lm.decode_x_mlx_lm_4 == 1
    for row in (mlx_lm, turbo4):
        assert min(row.encode_melements_s, row.decode_melements_s, row.encode_share) > 0


# -- the whole ---------------------------------------------------------------------------------------


def test_every_part_runs_and_counts_its_steps(tiny: LoadedModel) -> None:
    plan = Plan(["prose"], tokens=512, chunk=64)
    events = list(run(tiny, caches_by_name(tiny, ["turbo2"]), plan))
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.number for step in steps] == list(range(1, 10))
    assert {step.total for step in steps} == {9}
    report = Report("tiny", "cpu", 512, 64, [event for event in events if not isinstance(event, Step)])
    parts = report.as_dict()
    assert [len(parts[name]) for name in ("quality", "needle", "greedy", "speed", "storage")] == [
        1,
        1,
        1,
        3,
        1,
    ]
    assert parts["quality"][0]["tokens"] == 512
    out = io.StringIO()
    show(report, out)
    shown = out.getvalue()
    assert "Facts retrieved, by depth: tiny on cpu" in shown
    assert shown.count("turbo2") == 5
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"parts": ["speeed"]}, "nothing called 'speeed' is measured"),
        ({"tokens": 300}, "300 tokens are too few; it takes 512 at least"),
        ({"tokens": 255, "parts": ["quality"]}, "255 tokens are too few; it takes 256 at least"),
        ({"chunk": 0}, "chunks of 0 tokens cannot be"),
    ],
)
def test_a_plan_that_cannot_be(plan: dict, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        Plan(["pydoc"], **plan)
    assert caught.value.one_line().startswith(reason)


def rows() -> list:
    found: list = [
        QualityRow("turbo4", text, 512, kl, kl, 1.0, 1.0) for text, kl in (("a", 0.01), ("b", 0.03))
    ]
    found.append(QualityRow("exact", "a", 512, 0.0, 0.0, 1.0, 1.0))
    found.append(QualityRow("broken", "a", 512, math.nan, math.nan, 0.0, math.inf))
    sizes = {"turbo4": 5.0, "exact": 16.0, "broken": 4.0}
    return found + [StorageRow(name, 512, bits, None, 1, None) for name, bits in sizes.items()]


def test_figures_that_are_no_numbers_are_null_in_json(tmp_path: Path) -> None:
    write_json([Report("m", "cpu", 512, 1, rows())], tmp_path / "out.json")
    (model,) = json.loads((tmp_path / "out.json").read_text())["models"]
    assert model["quality"][0]["kl_mean"] == 0.01
    assert model["quality"][3]["perplexity_ratio"] is None
    assert model["storage"][0]["bits_held"] == 5.0
    assert "speed" not in model


def test_points_of_the_plot() -> None:
    (turbo4,) = points(Report("m", "cpu", 512, 1, rows()))  # zero and no number have no logarithm
    assert (turbo4.cache, turbo4.bits, turbo4.low, turbo4.high) == ("turbo4", 5.0, 0.01, 0.03)
    assert turbo4.kl == pytest.approx(0.02)


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_the_plot_is_a_png(tmp_path: Path) -> None:
    report = Report("m", "cpu", 512, 1, rows())
    write_plot([report, report], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="nothing to plot"):
        write_plot([Report("m", "cpu", 512, 1, rows()[:2])], tmp_path / "plot.png")


def test_a_plot_that_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'plot\.pdf' is no PNG file"):
        check_plot(Path("plot.pdf"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        check_plot(Path("plot.png"))
    assert caught.value.one_line() == "the plot needs matplotlib; pip install 'satchel[bench]'"


# -- the command -------------------------------------------------------------------------------------


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "satchel", "bench", "kv", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ, check=False)


def test_the_command_measures_the_embedded_model(smollm: LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = bench(
        *("--tokens", "256", "--chunk", "16", "--caches", "turbo4", "--texts", "pydoc"),
        *("--only", "quality", "--json", str(out)),
    )
    assert ran.returncode == 0, ran.stderr
    assert "Quality against the exact cache: embedded on " in ran.stdout
    assert ran.stderr.splitlines() == ["1/2 quality: exact on pydoc", "2/2 quality: turbo4 on pydoc"]
    (model,) = json.loads(out.read_text())["models"]
    (row,) = model["quality"]
    assert (row["cache"], row["text"], row["tokens"]) == ("turbo4", "pydoc", 256)
    assert 0 < row["kl_mean"] < 0.003
    assert row["top_1"] >= 0.95
    assert list(model) == ["model", "device", "tokens", "chunk", "quality"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--caches", "turbo4,turbo9"], "no KV profile is called 'turbo9'"),
        (["--caches", "mlx-lm 5"], "mlx-lm has no cache of '5' bits; `mlx-lm N` takes 2, 3, 4, 6, 8"),
        (["--texts", "poem"], "no text is called 'poem'; there are pydoc, "),
        (["--only", "speeed"], "nothing called 'speeed' is measured; there are quality, "),
        (["--tokens", "100"], "100 tokens are too few; it takes 512 at least"),
        (["--plot", "plot.pdf"], "the plot 'plot.pdf' is no PNG file; name it something.png"),
        (["--json", "/nowhere/x.json"], "there is no directory '/nowhere'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(args: list[str], line: str) -> None:
    ran = bench(*args)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"satchel: {line}")
    assert ran.stderr.count("\n") == 1
