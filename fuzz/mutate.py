"""Inputs made from other inputs. Knows of an input only that it may be JSON, a zero byte, and other bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

# Numbers at the borders of the types on the way: 32, 53, 63 and 64 bits, float16, float64, and beyond.
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 65504, 65535, 65536, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, (1 << 40) - 1, 1 << 40, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64,
    0.5, -0.0, 1.0, 1e38, 1e308,
)  # fmt: skip
RAW = ("1e400", "-1e400", "NaN", "-Infinity", "9" * 400, "1" + "0" * 4400, "1e-400", '"\\ud800"')
WORDS = (
    "", " ", ".", "..", "../x", "/etc/passwd", "x" * 65, "x" * 5000, "\0", "\n", "\x1b[2J", "é", "e\u0301",
    "\u200d", "\ufe0f", "\u202e", "😀", "0" * 64, "f" * 32, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00+23:59", "uint8", "uint16", "uint32", "int32", "float16",
    "float32", "object", "bfloat16", "block", "tail", "system", "None", "tokens",
)  # fmt: skip
_RAW_MARK = "raw number "


def mutate(data: bytes, max_size: int, seed: int, mutate_bytes: Callable[[bytes, int], bytes]) -> bytes:
    """Another input like `data`, of at most `max_size` bytes; the same for the same `seed`."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    head, separator, rest = data.partition(b"\0")
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError):
        return mutate_bytes(data, max_size)
    draw = chance.random()
    if rest and draw < 0.35:
        return (head + separator + mutate_bytes(rest, max(1, max_size - len(head) - 1)))[:max_size]
    if draw < 0.5:
        return mutate_bytes(data, max_size)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        tree = _mutate_tree(tree, chance)
    changed = json.dumps(tree, ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    changed = re.sub(f'"{_RAW_MARK}(\\d)"', lambda match: RAW[int(match[1])], changed)
    return (changed.encode("utf-8", "surrogatepass") + separator + rest)[:max_size]


def havoc(chance: random.Random) -> Callable[[bytes, int], bytes]:
    """A `mutate_bytes` that flips, cuts, repeats and inserts at random."""

    def mutate_bytes(data: bytes, max_size: int) -> bytes:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 4, 8))):
            at = chance.randrange(len(changed) + 1)
            stop = min(len(changed), at + chance.choice((1, 1, 2, 4, 8, 64)))
            match chance.randrange(6):
                case 0:
                    changed[at:stop] = chance.randbytes(stop - at)
                case 1 if at < len(changed):
                    changed[at] ^= 1 << chance.randrange(8)
                case 2:
                    del changed[at:stop]
                case 3:
                    changed[at:at] = changed[at:stop]
                case 4:
                    changed[at:stop] = chance.choice((b"\0", b"\xff")) * (stop - at)
                case _:
                    changed[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8)))
        return bytes(changed[:max_size])

    return mutate_bytes


def _mutate_tree(tree: Any, chance: random.Random) -> Any:
    """`tree` with one node of it changed."""
    holders = [(holder, key) for holder in _holders(tree) for key in _keys(holder)]
    if not holders or chance.random() < 0.01:
        return _value(tree, chance)
    holder, key = chance.choice(holders)
    match chance.randrange(8):
        case 0:
            del holder[key]
        case 1:
            other, other_key = chance.choice(holders)
            holder[key] = _copy(other[other_key])
        case 2 if isinstance(holder, list):
            holder.insert(key, _copy(holder[key]))
        case 2:
            holder[chance.choice((*WORDS, f"{key}x"))] = _copy(holder[key])
        case 3:
            holder[key] = chance.choice(([holder[key]], {str(key): holder[key]}, [], {}))
        case _:
            holder[key] = _value(holder[key], chance)
    return tree


def _value(old: Any, chance: random.Random) -> Any:
    """Something in place of `old`: of the same type more often than not."""
    if isinstance(old, bool) or old is None or chance.random() < 0.15:
        raw = f"{_RAW_MARK}{chance.randrange(len(RAW))}"
        return chance.choice((None, True, False, raw, *NUMBERS, *WORDS))
    if isinstance(old, int | float) and abs(old) < 1e300:
        return chance.choice((old + 1, old - 1, old * 2, -old, float(old), *chance.choices(NUMBERS, k=4)))
    if isinstance(old, str):
        at = chance.randrange(len(old) + 1)
        word, char = chance.choice(WORDS), chr(chance.randrange(0xD7FF))
        return chance.choice(
            (word, old[:at], old[at:], old + old, old[:at] + word + old[at:], old[:at] + char + old[at + 1 :])
        )
    return chance.choice((0, "", None, [], {}))


def _holders(tree: Any) -> list[Any]:
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            found.append(node)
            waiting += node.values() if isinstance(node, dict) else node
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _copy(node: Any) -> Any:
    return json.loads(json.dumps(node))
