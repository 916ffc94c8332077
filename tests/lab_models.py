"""Small random language models of several architectures, made in milliseconds and without a download."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from lynxq.lab import LanguageModel

VOCABULARY = 97

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

#: Configuration class, attention implementation and what differs, by a name for tests.
KINDS = {
    "llama": (transformers.LlamaConfig, "sdpa", {}),
    "llama-eager": (transformers.LlamaConfig, "eager", {}),
    "every-head-its-own": (transformers.LlamaConfig, "sdpa", {"num_key_value_heads": 4}),
    "attention-bias": (transformers.LlamaConfig, "sdpa", {"attention_bias": True}),
    "qwen2": (transformers.Qwen2Config, "sdpa", {}),
    "sliding-window": (transformers.MistralConfig, "sdpa", {"sliding_window": 24}),
    "gemma2": (
        transformers.Gemma2Config,
        "eager",
        {"head_dim": 16, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": (transformers.GPT2Config, "sdpa", {}),
}


def tiny(kind: str = "llama", **changes: object) -> LanguageModel:
    """A model with seeded weights, large enough that its distributions are not flat."""
    make, implementation, differing = KINDS[kind]
    torch.manual_seed(0)
    config = make(**(_COMMON | differing | changes))
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim > 1:
                weight.mul_(4.0)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
    return LanguageModel(kind, module, tokenizer())


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token for each of 96 letters; what is not known is token 0."""
    vocabulary = {"?": 0} | {chr(0x20 + index): index for index in range(1, VOCABULARY)}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?")  # noqa: S106


def some_tokens(count: int, seed: int = 0) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
