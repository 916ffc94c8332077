"""Tiny random models of transformers, their caches, and the bits in them."""

import inspect

import torch
import transformers

from lynxq.integrations.hf import from_cache, tensor_name

VOCABULARY, LAYERS = 97, 3
KINDS = ("key", "value")


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def qwen(dtype=torch.float32):
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config).to(dtype).eval()


MODELS = {"llama": llama, "qwen2": qwen}
ARGUMENT = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else (
    "past_key_values"
)  # fmt: skip


def run(model, ids, cache):
    """Logits of all positions."""
    with torch.no_grad():
        return model(ids, **{ARGUMENT: cache}).logits


def prompt(tokens, batch=1, seed=0):
    return torch.randint(0, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def prefill(model, ids):
    """A cache after the prompt, and its tensors, encoded."""
    cache = transformers.DynamicCache()
    run(model, ids, cache)
    return cache, from_cache(cache)


def arrive(cache, tensors, tier):
    for name, encoded in tensors.items():
        cache.write(name, encoded.anchor_only() if tier == "anchor" else encoded)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def states(cache):
    return {
        tensor_name(index, kind): getattr(layer, f"{kind}s")
        for index, layer in enumerate(cache.layers)
        for kind in KINDS
    }


def check_prefix(cache, tensors, decode, rows=None):
    for name, tensor in states(cache).items():
        wanted = decode(tensors[name], dtype=tensor.dtype)
        wanted = wanted if rows is None else wanted[rows]
        assert bits(tensor[:, :, : wanted.shape[2]]) == bits(wanted), name
