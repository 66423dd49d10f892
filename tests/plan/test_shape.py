"""Parameters of models, against the counts that their makers publish and their checkpoints hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.collectors.trainer.options import PRESETS as TRAINED
from diag.collectors.trainer.options import flops_per_token, parameter_count
from diag.errors import DiagError
from diag.planning.shape import PRESETS, Shape, parameters_of, read_config, size_of

# Of the checkpoints on Hugging Face: the sum of the sizes of all tensors, a tied one once.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}
# (published parameters, what config.json says)
CONFIGS = {
    "llama-3.2-1b": (1_235_814_400, {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128_256,
        "tie_word_embeddings": True,
    }),
    "qwen3-8b": (8_190_735_360, {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12_288, "vocab_size": 151_936,
        "tie_word_embeddings": False,
    }),
    "gemma-7b": (8_537_680_896, {
        "model_type": "gemma", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24_576, "vocab_size": 256_000,
    }),
    "gpt-neox-20b": (20_554_567_680, {
        "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24_576, "vocab_size": 50_432, "tie_word_embeddings": False,
    }),
    "phi-3-mini": (3_821_079_552, {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32_064, "tie_word_embeddings": False,
    }),
    "gpt2": (124_439_808, {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024,
    }),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_presets_have_the_published_parameters(name: str, parameters: int) -> None:
    assert PRESETS[name].parameters == parameters
    assert size_of(name.upper()).parameters == parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_s_configs(tmp_path: Path, name: str) -> None:
    parameters, config = CONFIGS[name]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert size_of(str(folder)).parameters == size_of(str(folder / "config.json")).parameters == parameters
    assert read_config(folder / "config.json").name == name


@pytest.mark.parametrize("name", TRAINED)
def test_the_bundled_trainer_s_own_models(name: str) -> None:
    """The same counts and operations that the trainer records of itself."""
    own = TRAINED[name]
    shape = Shape(
        name, own.layers, own.dim, own.heads, own.kv_heads, own.dim // own.heads, own.ffn_dim, own.vocab, tied=own.tied
    )
    assert shape.parameters == parameter_count(own)
    assert shape.flops_per_token(own.seq_len) == flops_per_token(own, own.seq_len)


def test_of_experts_only_those_used_are_multiplied() -> None:
    """Mixtral: 46.7 billion parameters, of which a token meets 12.9 (its makers' figures)."""
    shape = PRESETS["mixtral-8x7b"]
    assert shape.multiplied / 1e9 == pytest.approx(12.9, abs=0.2)


@pytest.mark.parametrize(
    ("name", "whole", "used"), [("deepseek-v3", 671, 37), ("qwen3-235b-a22b", 235, 22), ("qwen3-30b-a3b", 30.5, 3.3)]
)
def test_models_with_experts_have_the_size_that_their_names_say(name: str, whole: float, used: float) -> None:
    """The makers' figures, in billions; theirs of what a token uses count the embedding as well."""
    shape = PRESETS[name]
    assert shape.parameters / 1e9 == pytest.approx(whole, rel=0.01)
    assert (shape.multiplied + shape.table) / 1e9 == pytest.approx(used, rel=0.04)


def test_the_two_of_llama_4_lack_the_same_picture_encoder() -> None:
    """Their checkpoints have 108,641,793,536 and 401,583,781,376 parameters, with the part that reads pictures."""
    rest = 108_641_793_536 - PRESETS["llama-4-scout"].parameters
    assert rest == 401_583_781_376 - PRESETS["llama-4-maverick"].parameters
    assert 0.8e9 < rest < 0.9e9


_QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151_936, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
_DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18_432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129_280,
    "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA4 = {
    "model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
        "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202_048,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "config"),
    [("qwen3-30b-a3b", _QWEN), ("deepseek-v3", _DEEPSEEK), ("llama-4-maverick", _LLAMA4)],
)
def test_a_config_of_a_model_with_experts_is_its_preset(tmp_path: Path, preset: str, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_config(tmp_path / "config.json")
    known = PRESETS[preset]
    assert (read.parameters, read.multiplied, read.blocks) == (known.parameters, known.multiplied, known.blocks)
    assert read.flops_per_token(4096) == known.flops_per_token(4096)


def test_a_config_without_what_its_experts_need_is_refused(tmp_path: Path) -> None:
    for missing in ("moe_intermediate_size", "kv_lora_rank", "q_lora_rank"):
        config = {key: value for key, value in _DEEPSEEK.items() if key != missing}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(DiagError, match=missing):
            read_config(tmp_path / "config.json")


def test_the_blocks_of_pipeline_stages_are_those_of_the_model() -> None:
    shape = PRESETS["deepseek-v3"]
    parts = [shape.part(0, 16), shape.part(16, 15), shape.part(31, 15), shape.part(46, 15)]
    assert tuple(count for part in parts for count in part.blocks) == shape.blocks
    assert len(set(shape.blocks)) == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [("7B", 7 * 10**9), ("350m", 350 * 10**6), ("1.5e9", 1_500_000_000), ("0.5b", 500_000_000), ("7_000", 7000)],
)
def test_numbers_of_parameters(text: str, number: int) -> None:
    assert parameters_of(text) == number == size_of(text).parameters


@pytest.mark.parametrize("text", ["", "B", "7X", "-7B", "0B", "llama", "7B7"])
def test_what_is_no_number_of_parameters(text: str) -> None:
    assert parameters_of(text) is None


def test_a_model_that_is_none() -> None:
    with pytest.raises(DiagError, match="no such model: lama-2") as error:
        size_of("lama-2")
    assert "llama-2-7b" in error.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "model_type is missing"),
        (b'{"model_type": "mamba"}', "'mamba'"),
        (b'{"model_type": "llama", "hidden_size": 64}', "num_hidden_layers is missing"),
        (b'{"model_type": "llama", "hidden_size": "64", "num_hidden_layers": 2}', "hidden_size is '64'"),
        (b'{"model_type": "llama", "hidden_size": true}', "hidden_size is True"),
        (b'{"model_type": "llama", "num_hidden_layers": -3}', "num_hidden_layers is -3"),
        (b" " * (2 << 20), "too large"),
    ],
)
def test_files_that_describe_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(DiagError, match=message) as error:
        size_of(str(path))
    assert error.value.path == str(path)
