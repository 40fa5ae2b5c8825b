"""Rebuilds a `tokenizers.Tokenizer` from a GGUF file's metadata. Knows nothing of tensors or of MLX.

Two kinds exist: byte-level BPE with its merges (`tokenizer.ggml.model = gpt2`) and SentencePiece with scores
(`llama`). Both become BPE models whose ids are those of llama.cpp for the same text.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from satchel.errors import DamagedError, UsageError

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
PRE_TOKENIZERS = {
    "default": "gpt-2",
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "qwen2": "qwen2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}
# Control tokens that end an answer also where a file does not say so; llama.cpp goes by their names too.
END_OF_TURN = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the metadata describe, with control and user-defined tokens as single ids.

    Raises:
        UsageError: a tokenizer kind or pre-tokenizer that is not known; the hint lists the known ones.
        DamagedError: the vocabulary is missing or contradicts itself.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens, types = _vocabulary(metadata)
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, types)
    else:
        raise UsageError(
            f"the GGUF file's tokenizer is {kind!r}", "supported are gpt2 and llama (SentencePiece)"
        )
    _add_tokens(tokenizer, tokens, types)
    if _adds_bos(metadata):
        bos = _token(metadata, "bos")
        tokenizer.post_processor = processors.Sequence(
            [
                *([tokenizer.post_processor] if tokenizer.post_processor else []),
                processors.TemplateProcessing(
                    single=f"{bos}:0 $A:0",
                    pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
                    special_tokens=[(bos, metadata["tokenizer.ggml.bos_token_id"])],
                ),
            ]
        )
    return tokenizer


def stop_token_ids(metadata: dict[str, Any]) -> list[int]:
    """The ids that end an answer, ascending: the end of text, the end of turn, and those known by name."""
    tokens, types = _vocabulary(metadata)
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    known = [i for i, token in enumerate(tokens) if types[i] == CONTROL and token in END_OF_TURN]
    return sorted({i for i in named if _is_int(i)} | set(known))


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`: the special tokens by role and the chat template."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if f"tokenizer.ggml.{key}_token_id" in metadata:
            config[f"{role}_token"] = _token(metadata, key)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        config["chat_template"] = template
    return config


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int


def _vocabulary(metadata: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Tokens and their types by id."""
    tokens = _strings(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or [type(each) for each in types] != [int] * len(tokens):
        raise DamagedError("the GGUF file's vocabulary has not one type for each token")
    return tokens, types


def _strings(metadata: dict[str, Any], name: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DamagedError(f"the GGUF file's tokenizer.ggml.{name} is missing or no list of texts")
    return values


def _token(metadata: dict[str, Any], role: str) -> str:
    tokens, _ = _vocabulary(metadata)
    index = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if not _is_int(index) or not 0 <= index < len(tokens):
        raise DamagedError(f"the GGUF file's {role} token is {index!r}, not an id of its vocabulary")
    return str(tokens[index])


def _adds_bos(metadata: dict[str, Any]) -> bool:
    """Whether text starts with the beginning-of-text token; llama.cpp's defaults where the file is silent."""
    default = metadata["tokenizer.ggml.model"] == "llama" or _pre_tokenizer_name(metadata) == "llama-bpe"
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _pre_tokenizer_name(metadata: dict[str, Any]) -> str:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UsageError(
            f"the GGUF file's pre-tokenizer is {str(name)[:40]!r}",
            f"supported are {', '.join(PRE_TOKENIZERS)}",
        )
    return PRE_TOKENIZERS[name]


def _byte_level_bpe(metadata: dict[str, Any], tokens: list[str]) -> Tokenizer:
    name = _pre_tokenizer_name(metadata)
    pairs = []
    for merge in _strings(metadata, "merges"):
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    tokenizer = Tokenizer(_bpe(tokens, pairs, ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = {
        "gpt-2": _byte_level(),
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()]),
        "qwen2": _split_then_bytes(QWEN2_SPLIT),
        "llama-bpe": _split_then_bytes(LLAMA3_SPLIT),
    }[name]
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_level(use_regex: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, _byte_level(use_regex=False)])


def _sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or [type(each) for each in scores] != [float] * len(tokens):
        raise DamagedError("the GGUF file's tokenizer has not one score for each token")
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    if unknown is None and "tokenizer.ggml.unknown_token_id" in metadata:
        unknown = _token(metadata, "unknown")
    merges = _merges_from_scores(tokens, types, scores)
    tokenizer = Tokenizer(_bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    replace: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    undo: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        replace.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(replace)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges_from_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token from two others, best token first: SentencePiece's order as BPE ranks."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] not in (UNKNOWN, CONTROL, BYTE)}
    ranked = sorted(ids, key=lambda token: -scores[ids[token]])
    return [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> BPE:
    try:
        return BPE({token: i for i, token in enumerate(tokens)}, merges, **options)
    except Exception as err:  # tokenizers raises bare Exception for merges outside the vocabulary
        raise DamagedError(f"the GGUF file's vocabulary and merges do not match ({err})") from err


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Make control and user-defined tokens single ids, matched in the raw text before anything else."""
    for kind in (CONTROL, UNKNOWN, USER_DEFINED):
        special = kind != USER_DEFINED
        named = [token for token, token_kind in zip(tokens, types, strict=True) if token_kind == kind]
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in named])
