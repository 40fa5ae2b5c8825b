"""Tokenizers rebuilt from GGUF metadata give the published tokenizers' ids.

The literal ids were computed with llama.cpp from the same files; Qwen's published tokenizer also composes
accents (NFC), which llama.cpp leaves out, so those texts are composed here.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satchel.engine.gguf_tokenizer import build_tokenizer, stop_token_ids, tokenizer_config
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, SatchelError, UsageError

SMOLLM_IDS = {
    "Hello world": [19556, 905],
    "  leading spaces": [216, 2899, 5600],
    "three   inner   spaces": [16347, 256, 6210, 256, 5600],
    "In 2024, 12345 items": [788, 216, 34, 32, 34, 36, 28, 216, 33, 34, 35, 36, 37, 3723],
    "<|endoftext|><|im_start|>user\nhi<|im_end|>\n": [0, 1, 4093, 198, 6004, 2, 198],
    "<repo_name>z": [3, 106],
    "def f(x):\n    return x**2\n\n\n\tpass": [
        *(1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 16506, 197, 5467)
    ],
    "It's we'll I'M DON'T can't": [1589, 506, 392, 3060, 339, 23, 61, 422, 2154, 23, 68, 416, 982],
    "\t\t tab": [1656, 10147],
    "a\u0301 b\u00e9": [81, 151, 219, 278, 2756],
    "\u3000全角": [12109, 218, 17086, 118, 37249, 236],
    "日本語のテキスト": [
        23274,
        115,
        40993,
        179,
        120,
        248,
        26453,
        11100,
        224,
        10391,
        251,
        10391,
        134,
        11100,
        226,
    ],
    "🎒 satchel 🚀🇨🇳": [10813, 232, 236, 2643, 25722, 15107, 244, 218, 10813, 225, 118, 10813, 225, 128],
    "\x00\x01\x7f": [190, 191, 217],
    "𐍈𒀀": [187, 234, 231, 226, 187, 236, 218, 218],
    "line1\r\nline2\r\n\r\n": [1311, 33, 201, 198, 1311, 34, 18682],
}
QWEN_IDS = {
    "Hello world": [9707, 1879],
    "  leading spaces": [220, 6388, 12621],
    "In 2024, 12345 items": [641, 220, 17, 15, 17, 19, 11, 220, 16, 17, 18, 19, 20, 3589],
    "<|endoftext|><|im_start|>user\nhi<|im_end|>\n": [151643, 151644, 872, 198, 6023, 151645, 198],
    "<|fim_prefix|>x": [151659, 87],
    "你好，世界！今天天气很好。": [108386, 3837, 99489, 6313, 100644, 104307, 101243, 1773],
    "🎒 satchel 🚀🇨🇳": [148708, 274, 754, 301, 11162, 248, 222, 145793, 145754],
    "It's we'll I'M DON'T can't": [2132, 594, 582, 3278, 358, 27603, 44273, 17323, 646, 944],
    "line1\r\nline2\r\n\r\n": [1056, 16, 319, 1056, 17, 871],
    "    \n    \n  x": [9401, 220, 856],
    "𐍈𒀀": [126190, 230, 151268, 222],
}
GEMMA_IDS = {
    "Hello world": [9259, 1902],
    "  leading spaces": [138, 26016, 9952],
    "          ten": [146, 1571],
    "In 2024": [902, 236743, 236778, 236771, 236778, 236812],
    "<start_of_turn>user\nhi<end_of_turn>\n": [105, 2364, 107, 2202, 106, 107],
    "<bos>a<eos>": [2, 236746, 1],
    "<table> <b>x</b></table>": [168, 236743, 200, 236781, 209, 176],
    "def f(x):\n    return x**2\n\n\n\tpass": [
        *(2063, 517, 236769, 236781, 1473, 107, 140, 2060, 1123, 1018, 236778, 109, 255968, 4373)
    ],
    "你好，世界！今天天气很好。": [144626, 236900, 12811, 237354, 22601, 122362, 55824, 236924],
    "🎒 satchel 🚀🇨🇳": [252821, 2838, 40059, 236743, 242015, 245744, 244431],
    "𐍈𒀀": [478, 382, 379, 374, 247364],  # the first is spelt in bytes
    "\u3000全角": [465, 366, 366, 237450, 238289],
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
# SmolLM2's published vocabulary has no token for these six characters, nor for the bytes F1 and F2, which
# lead the characters of the unassigned planes 4 to 11 and the private ones beside them.
UNSPELLABLE = "\x04\x06\x13\x14\x16\x1d"
smollm_texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=UNSPELLABLE, max_codepoint=0x3FFFF),
    max_size=60,
)
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ids_of(loaded: LoadedModel, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("text", SMOLLM_IDS)
def test_smollm_ids(smollm: LoadedModel, text: str) -> None:
    assert ids_of(smollm, text) == SMOLLM_IDS[text]


@pytest.mark.parametrize("text", QWEN_IDS)
def test_qwen_ids(qwen: LoadedModel, text: str) -> None:
    assert ids_of(qwen, text) == QWEN_IDS[text]


@pytest.mark.parametrize("text", GEMMA_IDS)
def test_gemma_ids(gemma: LoadedModel, text: str) -> None:
    assert ids_of(gemma, text) == GEMMA_IDS[text]


@many
@given(text=smollm_texts)
def test_smollm_gives_every_text_back(smollm: LoadedModel, text: str) -> None:
    assert smollm.tokenizer.decode(ids_of(smollm, text)) == text


def test_smollm_drops_only_the_bytes_its_vocabulary_lacks(smollm: LoadedModel) -> None:
    assert ids_of(smollm, f"a{UNSPELLABLE}b") == [81, 82]


@many
@given(text=texts)
def test_qwen_gives_every_text_back_composed(qwen: LoadedModel, text: str) -> None:
    assert qwen.tokenizer.decode(ids_of(qwen, text)) == unicodedata.normalize("NFC", text)


def test_streaming_gives_the_same_text_as_decoding(smollm: LoadedModel) -> None:
    text = "Packs 3 bags 🎒 for 北京, then\n\n  leaves."
    detokenizer = smollm.tokenizer.detokenizer
    for token in ids_of(smollm, text):
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == text


def test_gemma_starts_with_its_beginning_of_text_and_smollm_does_not(
    smollm: LoadedModel, gemma: LoadedModel
) -> None:
    assert smollm.tokenizer.encode("Hello world") == [19556, 905]
    assert gemma.tokenizer.encode("Hello world") == [2, 9259, 1902]


def test_chat_template_and_end_of_turn_come_with_the_model(smollm: LoadedModel) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = smollm.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert smollm.tokenizer.decode(prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm.tokenizer.eos_token_id == 2
    assert smollm.tokenizer.eos_token_ids == {0, 2}


def spm_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary small enough to follow by hand: `lo` has a better score than `el`."""
    tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "h", "e", "l", "o", "lo", "el", "<tag>"]
    types = [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4]
    scores = [0.0] * 5 + [-9.0] * 5 + [-1.0, -2.0, 0.0]
    metadata = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    metadata |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


def test_sentencepiece_merges_the_best_score_first() -> None:
    tokenizer = build_tokenizer(spm_metadata(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("hello").tokens == ["h", "el", "lo"]
    assert tokenizer.encode("elo").tokens == ["e", "lo"]


def test_sentencepiece_defaults_are_a_space_before_and_a_beginning_of_text() -> None:
    tokenizer = build_tokenizer(spm_metadata())
    assert tokenizer.encode("elo").tokens == ["<s>", "▁", "e", "lo"]
    assert tokenizer.decode(tokenizer.encode("elo").ids) == "elo"


def test_sentencepiece_spells_what_it_lacks_in_bytes_and_keeps_tags_whole() -> None:
    tokenizer = build_tokenizer(spm_metadata(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("é<tag>e").ids == [3, 4, 12, 7]
    assert tokenizer.decode([3, 4, 12, 7]) == "é<tag>e"


def test_stop_tokens_are_the_files_own_and_the_control_tokens_known_by_name() -> None:
    metadata = {
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "b"],
        "tokenizer.ggml.token_type": [1, 3, 3, 1, 3],  # the fourth is plain text that only looks like one
        "tokenizer.ggml.eos_token_id": 4,
    }
    assert stop_token_ids(metadata) == [1, 2, 4]


def test_roles_are_named_in_the_configuration() -> None:
    assert tokenizer_config(spm_metadata()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model": "bert"}, UsageError, "gpt2 and llama"),
        ({"model": "gpt2", "pre": "tekken", "merges": []}, UsageError, "smollm, qwen2"),
        ({"model": "gpt2", "merges": ["h e", "q z"]}, DamagedError, "do not match"),
        ({"model": "gpt2"}, DamagedError, "merges is missing"),
        ({"tokens": [1, 2]}, DamagedError, "no list of texts"),
        ({"token_type": [1]}, DamagedError, "one type for each token"),
        ({"scores": [1.0]}, DamagedError, "one score for each token"),
        ({"bos_token_id": 99}, DamagedError, "bos token is 99"),
    ],
)
def test_wrong_metadata_are_one_clear_line(
    changes: dict[str, Any], kind: type[SatchelError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        build_tokenizer(spm_metadata(**changes))
    assert words in caught.value.one_line()
