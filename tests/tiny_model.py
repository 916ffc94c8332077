"""A tiny random model in a folder, with a tokenizer of one token a word."""

import tokenizers
import torch
import transformers

VOCABULARY = 128


def save(path):
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))  # noqa: S106 - a word
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(path)  # noqa: S106
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=None, max_position_embeddings=2048,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path
