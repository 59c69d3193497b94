"""Write the trained model as a Hugging Face directory, which ``kinfolk convert`` reads.

Matrices are bf16 and vectors fp32; a shard has at most ``SHARD_BYTES``, which is easy to transfer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pocket import tokenizer as words
from pocket.config import ModelConfig
from pocket.model import PocketModel
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

SHARD_BYTES = 15 * 2**20
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def export(
    out: Path,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    sampling: Mapping[str, Any] | None = None,
) -> None:
    """Write the directory. ``state`` has transformers' names and no head: embeddings are tied."""
    out.mkdir(parents=True, exist_ok=True)
    ids = {name: tokenizer.token_to_id(name) for name in words.CONTROLS}
    end, turn = ids[words.END_OF_TEXT], ids[words.END_OF_TURN]
    special = {"pad_token_id": end, "eos_token_id": end, "bos_token_id": None}
    _write(out / "config.json", {**config.to_hf(), **special})
    generation = {"eos_token_id": [end, turn], "pad_token_id": end, **(sampling or {})}
    _write(out / "generation_config.json", generation)
    tokenizer.save(str(out / "tokenizer.json"))
    _write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "add_bos_token": False,
            "bos_token": None,
            "eos_token": words.END_OF_TEXT,
            "pad_token": words.END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    (out / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8"), "utf-8")
    _write_weights(out, state)


def _write_weights(out: Path, state: Mapping[str, Tensor]) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in state.items():
        kind = torch.bfloat16 if tensor.ndim == 2 else torch.float32
        stored = tensor.detach().to("cpu", kind).contiguous()
        if stored.nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = stored
        room -= stored.nbytes
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, out / file, metadata={"format": "pt"})
    places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    size = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    _write(out / "model.safetensors.index.json", index)


def read(folder: Path, device: str = "cpu") -> PocketModel:
    """The training model with the weights of an exported directory, in fp32."""
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = stored["rope_parameters"]
    fields = {name: stored[name] for name in ModelConfig.__dataclass_fields__ if name in stored}
    fields |= {name: rope[name] for name in ("rope_theta", "partial_rotary_factor")}
    config = ModelConfig(**fields, mrope_section=tuple(rope["mrope_section"]))
    model = PocketModel(config)
    state: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return model.to(device).eval()


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
