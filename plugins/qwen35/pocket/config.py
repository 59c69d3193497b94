"""Configuration of the pocket model and of its training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a model of the qwen35 architecture; fields have transformers' names.

    The columns of every matrix are a multiple of 256, so that each can be quantised to K-quants.
    """

    vocab_size: int = 8192
    hidden_size: int = 512
    intermediate_size: int = 1536
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    partial_rotary_factor: float = 0.25
    rope_theta: float = 100_000.0
    mrope_section: tuple[int, int, int] = (6, 5, 5)
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` of ``Qwen3_5ForCausalLM``, without the token ids."""
        kinds = {True: "full_attention", False: "linear_attention"}
        own = asdict(self)
        for moved in ("partial_rotary_factor", "rope_theta", "mrope_section"):
            own.pop(moved)
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "layer_types": [kinds[self.is_attention(i)] for i in range(self.num_hidden_layers)],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.partial_rotary_factor,
                "mrope_section": list(self.mrope_section),
                "mrope_interleaved": True,
            },
            **own,
        }


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run: rows have ``length`` tokens; ``until`` is its end (fraction of steps)."""

    until: float
    length: int


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a training run.

    With ``steps`` = 0 the trainer measures the time of a step and runs for about ``seconds``.
    """

    seed: int = 0
    steps: int = 0
    seconds: float = 600.0
    batch_tokens: int = 131_072
    stages: tuple[Stage, ...] = (Stage(0.85, 2048), Stage(1.0, 4096))
    muon_lr: float = 3e-3
    adam_lr: float = 3e-3
    muon_decay: float = 0.4
    adam_decay: float = 0.1
    warmup_steps: int = 150
    decay_from: float = 0.5
    snap_from: float = 0.80
    eval_every: int = 1000
    save_every: int = 2000
    log_every: int = 20
    compile: bool = True
    model: ModelConfig = field(default_factory=ModelConfig)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
