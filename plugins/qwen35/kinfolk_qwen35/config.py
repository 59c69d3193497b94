"""Configuration of dense models of this family."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.hybrid.config import HybridConfig, read_hybrid


class Qwen35Config(HybridConfig):
    """A hybrid decoder with a dense feed-forward network of ``feed_forward`` channels."""

    feed_forward: int = Field(gt=0)

    mtp_block: ClassVar[str] = "kinfolk_qwen35.mtp:BLOCK"


def read_config(meta: Metadata) -> Qwen35Config:
    return Qwen35Config(
        **read_hybrid(meta),
        feed_forward=meta.integer(meta.arch_key("feed_forward_length"), minimum=1),
    )
