"""The rope table turns a mean as the model's own rotary embedding turns keys."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from satchel.engine.rope_table import GROW, RopeTable

HEAD_DIM = 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * (HEAD_DIM // 2),
    "long_factor": [1.0 + i / 8 for i in range(HEAD_DIM // 2)],
}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}


def scaled(config: dict[str, object] | None, traditional: bool = False) -> Callable[..., mx.array]:
    return initialize_rope(HEAD_DIM, 10_000.0, traditional, config, max_position_embeddings=2048)


ROPES = {
    "plain": nn.RoPE(HEAD_DIM),
    "traditional": nn.RoPE(HEAD_DIM, traditional=True),
    "partial": nn.RoPE(32),
    "partial traditional": nn.RoPE(16, traditional=True),
    "base 1e6": nn.RoPE(HEAD_DIM, base=1_000_000.0),
    "base 100": nn.RoPE(HEAD_DIM, base=100.0),
    "linear": scaled({"rope_type": "linear", "factor": 4.0}),
    "llama3": scaled(LLAMA3),
    "llama3 traditional": scaled(LLAMA3, traditional=True),
    "yarn": scaled(YARN),
    "longrope": scaled(LONGROPE),
    "proportional": scaled(PROPORTIONAL),
}
each_rope = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())


def gaussian(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def table_of(rope: object) -> RopeTable:
    table = RopeTable.of(rope)
    assert table is not None
    return table


@each_rope
def test_turn_does_what_the_embedding_does(rope: Callable[..., mx.array]):
    mean = gaussian(2, 3, 1, HEAD_DIM)
    turned = table_of(rope).turn(mean, 4, 1500)
    assert turned.shape == (2, 3, 1496, HEAD_DIM)
    for position in (4, 5, 127, 1023, 1024, 1499):
        np.testing.assert_allclose(
            turned[:, :, position - 4], rope(mean, offset=position)[:, :, 0], atol=2e-5
        )


@each_rope
def test_unturn_undoes_turn(rope: Callable[..., mx.array]):
    keys = gaussian(1, 2, 300, HEAD_DIM)
    np.testing.assert_allclose(table_of(rope).unturn(rope(keys, offset=900), 900), keys, atol=5e-5)


@each_rope
def test_dot_is_the_query_times_the_turned_mean(rope: Callable[..., mx.array]):
    table, mean, queries = table_of(rope), gaussian(2, 3, 1, HEAD_DIM), gaussian(2, 3, 6, HEAD_DIM, seed=1)
    dots = table.dot(queries, mean, 4, 200)
    np.testing.assert_allclose(dots, queries @ table.turn(mean, 4, 200).swapaxes(-1, -2), atol=1e-4)


@each_rope
def test_rows_are_the_same_however_the_table_grew(rope: Callable[..., mx.array]):
    at_once, grown = table_of(rope), table_of(rope)
    rows = at_once.between(0, 3 * GROW)
    for stop in (1, 196, GROW, GROW + 1, 2 * GROW + 7, 3 * GROW):
        assert mx.array_equal(grown.between(0, stop), rows[:stop])
    assert at_once.nbytes == grown.nbytes == 3 * GROW * at_once.dims * 4


def test_an_empty_table_holds_nothing():
    assert table_of(nn.RoPE(HEAD_DIM)).nbytes == 0


@pytest.mark.parametrize("rope", [None, nn.Identity(), nn.RoPE(0), nn.RoPE(7), nn.ALiBi(), "rope"])
def test_what_is_no_rotary_embedding_has_no_table(rope: object):
    assert RopeTable.of(rope) is None


class Mislabelled(nn.Module):
    """Turns pairs of neighbours and says that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.dims, self.traditional = HEAD_DIM, False
        self._inner = nn.RoPE(HEAD_DIM, traditional=True)

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        return self._inner(x, offset=offset)


def test_what_a_rope_does_counts_and_not_what_it_says():
    assert table_of(Mislabelled()).traditional


@pytest.mark.parametrize(
    "rope",
    [lambda x, offset: x * (1 + offset * mx.arange(HEAD_DIM)), lambda x: x, lambda x, offset: x[..., :4]],
)
def test_what_does_not_turn_pairs_has_no_table(rope: Callable[..., mx.array]):
    class Other:
        dims = HEAD_DIM

        def __call__(self, *args: mx.array, **kwargs: int) -> mx.array:
            return rope(*args, **kwargs)

    assert RopeTable.of(Other()) is None
