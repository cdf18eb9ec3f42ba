from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from rlkit.models import CheckpointError, load_model, save_model, tiny_llama, train_tokenizer

SPECIAL = ["<pad>", "<unk>", "<end>"]
TEXTS = [" the pizza is late, order 4821", '{" items":{" pizza":14}}', ' refund{" id":"4821"," item":" pizza"}'] * 5


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, SPECIAL, 120)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_llama(len(tokenizer), hidden_size=32, layers=1)


@pytest.fixture
def folder(model: Any, tokenizer: Any, tmp_path: Path) -> Path:
    save_model(model, tokenizer, tmp_path / "model")
    return tmp_path / "model"


# --- folders ------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(model: Any, tokenizer: Any, folder: Path) -> None:
    loaded, same = load_model(folder)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert not loaded.training
    assert loaded.dtype == torch.float32
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert same.get_vocab() == tokenizer.get_vocab()
    for text in [*TEXTS, "something else <end> 99"]:
        assert same.encode(text) == tokenizer.encode(text)
        assert same.decode(same.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert load_model(str(folder))[1].pad_token == "<pad>"


def one_line(error: pytest.ExceptionInfo[CheckpointError], folder: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"{folder}: ")
    return text


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        load_model(tmp_path / "nowhere")
    assert one_line(error, tmp_path / "nowhere").endswith("no such checkpoint folder")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="file: no such checkpoint folder"):
        load_model(tmp_path / "file")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError) as error:
        load_model(folder)
    assert one_line(error, folder).endswith(f"it lacks {name}")


def test_an_empty_folder_lacks_everything(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it lacks config\.json, model\.safetensors, tokenizer\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"these are no weights at all"),
        ("model.safetensors", "half"),
        ("config.json", b"{not json"),
        ("config.json", b"{}"),
        ("config.json", b'{"model_type": "no_such_model"}'),
        ("tokenizer.json", b"{not json"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b""),
    ],
)
def test_a_corrupt_file_is_one_line_that_names_the_folder(folder: Path, name: str, content: bytes | str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if isinstance(content, str) else content)
    with pytest.raises(CheckpointError) as error:
        load_model(folder)
    one_line(error, folder)


def test_weights_of_another_shape_are_not_loaded(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(CheckpointError, match=r"not fit its config: 3 differ, model\.layers\.0\.mlp") as error:
        load_model(folder)
    one_line(error, folder)


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"not fit its config: 9 differ, model\.layers\.1") as error:
        load_model(folder)
    one_line(error, folder)


def test_a_full_disk_is_an_os_error(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(OSError, match=r"."):
            save_model(model, tokenizer, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- the tiny model and its tokenizer -------------------------------------------------------------------------------


def test_the_tiny_llama_is_the_size_it_says() -> None:
    model = tiny_llama(512)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(170_000, rel=0.1)
    assert (model.config.num_attention_heads, model.config.head_dim) == (2, 32)
    assert not model.training


def test_its_seed_fixes_it_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = tiny_llama(64, seed=1), tiny_llama(64, seed=1), tiny_llama(64, seed=2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_overrides_reach_the_config() -> None:
    model = tiny_llama(64, layers=2, tie_word_embeddings=False, initializer_range=0.5, max_position_embeddings=64)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert model.config.max_position_embeddings == 64
    assert 0.4 < model.lm_head.weight.std().item() < 0.6


def test_tokens_are_words_with_their_space_single_digits_and_punctuation_apart(tokenizer: Any) -> None:
    assert tokenizer.tokenize(" the pizza is late, order 4821") == [
        " the", " pizza", " is", " late", ",", " order", " ", "4", "8", "2", "1",
    ]  # fmt: skip
    assert tokenizer.tokenize('{" items":{" pizza":14}}') == ['{"', " items", '":{"', " pizza", '":', "1", "4", "}}"]


def test_special_tokens_come_first_in_the_order_given(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [0, 1, 2]
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("é")) == ["<unk>"]
