"""A model and its tokenizer from a folder, in Hugging Face form; and the course's tiny Llama from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlkit.files import atomic_write

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Words keep the space before them; digits stand alone; punctuation never glues to a word.
_PIECES = r" ?[A-Za-z_]+|[0-9]|[^A-Za-z0-9 ]+| "


class CheckpointError(ValueError):
    """A folder that holds no usable model; the message says what is missing."""


def load_model(folder: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """(model in fp32 and eval mode, tokenizer) from a local Hugging Face folder; nothing is fetched.

    Raises `CheckpointError` naming the folder where it is absent, incomplete or does not hold every weight of the
    model its config describes (transformers would draw the missing ones at random). The tokenizer is part of the
    checkpoint: one rebuilt from other text would permute the ids silently.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: not a checkpoint, it lacks {', '.join(missing)}")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what it would warn of is an error here
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{folder}: cannot be loaded: {' '.join(str(error).split())}") from error
    finally:
        logging.set_verbosity(verbosity)
    unfit = [*sorted(loaded["missing_keys"]), *sorted(name for name, *_ in loaded["mismatched_keys"])]
    if unfit:
        raise CheckpointError(f"{folder}: its weights do not fit its config: {len(unfit)} differ, {unfit[0]} first")
    return model.eval(), tokenizer


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    """Write a Hugging Face folder that `load_model` (and anything else that reads them) takes. Raises `OSError`."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(folder)
    # first and through us: on a full disk the tokenizers library raises a bare Exception
    atomic_write(folder / "tokenizer.json", tokenizer.backend_tokenizer.to_str(pretty=True))
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(f"{folder}: {' '.join(str(error).split())}") from error
    tokenizer.save_pretrained(folder)


def tiny_llama(
    vocab_size: int, seed: int = 0, hidden_size: int = 64, layers: int = 3, **overrides: Any
) -> PreTrainedModel:
    """A fresh Llama of about 0.17 M parameters (at a vocabulary of 512): heads of 32, tied embeddings, fp32.

    `overrides` are fields of `LlamaConfig`.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 5 // 2,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden_size // 32,
        "num_key_value_heads": hidden_size // 32,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**shape | overrides)).to(torch.float32).eval()


def train_tokenizer(texts: Iterable[str], special_tokens: list[str], vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """A BPE whose pieces a small model can learn from; `special_tokens[0]` pads, `<unk>` must be among them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special_tokens, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=special_tokens[0], unk_token="<unk>", clean_up_tokenization_spaces=False
    )
