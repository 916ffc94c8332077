"""A real language model to try schemes on: capture its cache, replace a prefix, and see what it says then.

Needs the extra ``lab``. In short::

    from lynxq import lab

    model = lab.load()  # SmolLM2-135M; or a folder of any Hugging Face model, or a .gguf file
    passage = lab.prepare(model, text, prefix=1024, continuation=512)
    for line in lab.quality(lab.reference(passage), ["pair", "int8", "kivi4-w0"]):
        print(line.method, line.tier, line.bits_per_element, line.kl_mean, line.top1)
"""

from lynxq.lab.acceptance_rate import Acceptance, acceptance, default_starts
from lynxq.lab.attention import AttentionCall, recorded
from lynxq.lab.caches import cache_of, empty_cache, padding_mask, tensors_of
from lynxq.lab.captures import Capture, capture
from lynxq.lab.decoding import draft, logits_of
from lynxq.lab.models import LanguageModel, load
from lynxq.lab.output_quality import Quality, quality
from lynxq.lab.passages import Passage, prepare
from lynxq.lab.reconstruction import Coding, PerTensor, Reconstruction, reconstructions
from lynxq.lab.results import Record, to_csv, to_json, write_csv, write_json
from lynxq.lab.scores import Reference, Scores, reference, score

__all__ = [
    "Acceptance",
    "AttentionCall",
    "Capture",
    "Coding",
    "LanguageModel",
    "Passage",
    "PerTensor",
    "Quality",
    "Reconstruction",
    "Record",
    "Reference",
    "Scores",
    "acceptance",
    "cache_of",
    "capture",
    "default_starts",
    "draft",
    "empty_cache",
    "load",
    "logits_of",
    "padding_mask",
    "prepare",
    "quality",
    "reconstructions",
    "recorded",
    "reference",
    "score",
    "tensors_of",
    "to_csv",
    "to_json",
    "write_csv",
    "write_json",
]
