"""Chats of several turns on small models, with templates of the forms that the families have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.engine.answer import Ended
from kinfolk.engine.engine import Engine
from kinfolk.engine.generation import Generation
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.options import GenerationOptions
from kinfolk.engine.prompt import Prompt, chat_prompt
from kinfolk.engine.runtime import Runtime
from kinfolk.gguf.metadata import Metadata
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_qwen35.plugin import Qwen35
from kinfolk_qwen35.text import CHAT

SLICE = 64
ANSWER = "xx"
SYSTEM = "You are a helpful assistant. Answer in one short sentence, or ask what is meant by it."
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "get", "arguments": '{"city": "Rome"}'}}

TURNS = (Path(__file__).parents[1] / "text" / "data" / "turns.jinja").read_text()
"""Earlier answers lose their reasoning; an answer without has an empty thought until then."""

TAGS = (
    "{{- '<bos>' -}}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{{ '<assistant>\\n' }}"
    "{%- if m.reasoning -%}{{ '<think>' + m.reasoning + '</think>' }}"
    "{%- else -%}{{ '</think>' }}{%- endif -%}{{ m.content }}"
    "{%- for call in m.tool_calls or [] -%}{{ '<tool_call>' + call.function.name }}"
    "{{- call.function.arguments | tojson + '</tool_call>' }}{%- endfor -%}{{ '</assistant>\\n' }}"
    "{%- else -%}{{ '<' + m.role + '>\\n' + m.content + '\\n</' + m.role + '>\\n' }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<assistant>\\n' + ('<think>' if enable_thinking else '</think>') }}"
    "{%- endif -%}"
)
"""Nothing is rewritten if reasoning is sent back."""

CHANNELS = (
    "{{- '<bos>' -}}"
    "{%- for m in messages -%}"
    "{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{%- if m.tool_calls -%}"
    "{%- if m.reasoning_content -%}{{ '<|channel>' + m.reasoning_content + '<channel|>' }}"
    "{%- endif -%}"
    "{%- for call in m.tool_calls -%}{{ '<|tool_call>' + call.function.name }}"
    "{{- call.function.arguments | tojson + '<tool_call|>' }}{%- endfor -%}"
    "{%- endif -%}{{ m.content + '<turn|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<|turn>model\\n' + ('<|channel>' if enable_thinking else '<|channel><channel|>') }}"
    "{%- endif -%}"
)
"""A turn's header is followed by a thought that the next prompt leaves out."""

TEMPLATES = {
    "qwen35": TURNS,
    "qwen35moe": TURNS,
    "gemma4": CHANNELS,
    "gemma4moe": CHANNELS,
    "laguna": TAGS,
    "dense": TURNS,
}
SPECIALS = (
    *("<bos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    *("<|tool_call>", "<tool_call|>", "<assistant>", "</assistant>"),
)


def tokenizer() -> Tokenizer:
    """The 256 bytes, and the special tokens of all templates."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    keys = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": [*letters, *SPECIALS],
        "token_type": [1] * 256 + [3] * len(SPECIALS),
        "merges": [],
        "eos_token_id": 258,
    }
    meta = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return Tokenizer.from_metadata(Metadata.from_dict(meta, Path("m.gguf")), [Qwen35()], chat=CHAT)


class Chats:
    """Conversations with one model, whose answers are always ``ANSWER``: requests bias its token.

    ``cold`` is the same model without checkpoints, which answers are compared with.
    """

    def __init__(
        self, family: str, loaded: LoadedModel, cold: LoadedModel | None = None, **limits: Any
    ) -> None:
        self.words = tokenizer()
        self.template = ChatTemplate(TEMPLATES[family], self.words, CHAT)
        self.runtime = self._runtime(family, loaded, limits)
        self.cold = None if cold is None else self._runtime(family, cold, limits)

    def _runtime(self, name: str, loaded: LoadedModel, limits: Mapping[str, Any]) -> Runtime:
        scheduled = SchedulerLimits(
            slots=loaded.limits.slots,
            context=loaded.limits.context,
            slice=SLICE,
            step_tokens=2 * SLICE,
            **limits,
        )
        engine = Engine(loaded, scheduled)
        return Runtime(name, engine, self.words, self.template, CHAT, None)

    def close(self) -> None:
        for runtime in (self.runtime, self.cold):
            if runtime is not None:
                runtime.engine.close()
                runtime.engine.check_integrity()

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool, tools: bool = False
    ) -> Prompt:
        variables = {"enable_thinking": thinking}
        return chat_prompt(self.runtime, messages, variables, [TOOL] if tools else ())

    def ask(self, prompt: Prompt, choices: int = 1, tokens: int = len(ANSWER)) -> list[Ended]:
        """The ends of answers, each ``ANSWER`` from its first tokens on."""
        options = GenerationOptions(
            max_tokens=tokens,
            temperature=0,
            logit_bias={ord("x"): 100.0},
            choices=choices,
        )
        parts = list(Generation(self.runtime, prompt, options))
        return [part for part in parts if isinstance(part, Ended)]

    def unbiased(self, prompt: Prompt) -> tuple[list[Any], list[Any], int]:
        """Log-probabilities of three tokens after a prompt here and computed cold, and how much of
        it was reused here. Nothing is kept."""
        assert self.cold is not None
        options = GenerationOptions(max_tokens=3, temperature=0, logprobs=4, ignore_eos=True)
        bare = replace(prompt, keep=False, think=None)
        found, expected = (
            Generation(runtime, bare, options).requests[0] for runtime in (self.runtime, self.cold)
        )
        *events, end = self.runtime.engine.submit(found)
        *cold, _ = self.cold.engine.submit(expected)
        one, other = ([each for e in es for each in e.logprobs] for es in (events, cold))
        return one, other, end.usage.reused


def talk(turns: int, *, about: str, system: str = SYSTEM) -> Iterator[list[dict[str, Any]]]:
    """The messages of each turn of a chat."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{about} {turn}?"})
        yield list(messages)
        messages.append({"role": "assistant", "content": ANSWER})


def tool_loop(calls: int, *, thinking: bool) -> Iterator[list[dict[str, Any]]]:
    """The messages of a question, of results of the tool that the model called, and of another
    question. Reasoning is sent back."""
    thought = {"reasoning_content": ANSWER, "reasoning": ANSWER} if thinking else {}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "How warm is it in Rome?"},
    ]
    for call in range(calls):
        yield list(messages)
        messages.append({"role": "assistant", "content": "", "tool_calls": [CALL], **thought})
        messages.append({"role": "tool", "content": f"2{call} degrees"})
    yield list(messages)
    messages.append({"role": "assistant", "content": ANSWER, **thought})
    messages.append({"role": "user", "content": "And in Milan?"})
    yield list(messages)
