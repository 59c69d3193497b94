"""Compression of prompts, on the side of the client: texts to the scorer, scores to a prompt.

Torch-free: the HTTP server's process does this, in threads. What is left out of a prompt the model
never sees. The compressed prompt is a prompt of its own, known to the prefix cache by its own
tokens, so nobody can start from it in place of the full one.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from kinfolk.compress.back_off import BackOff
from kinfolk.compress.options import CompressionOptions
from kinfolk.compress.passages import PASSAGE_TOKENS, QUERY_TOKENS, Numbers, Tokens
from kinfolk.compress.rules import (
    FEWEST_AGED_TOKENS,
    CompressionMode,
    SkipReason,
    choose_messages,
)
from kinfolk.compress.scored_text import (
    ScoredText,
    joined_scores,
    messages_in,
    pieces,
    tokens_inside,
)
from kinfolk.compress.spans import LONGEST_QUESTION, Span, question, token_places
from kinfolk.engine.compressed import Compression
from kinfolk.engine.prompt import Prompt, chat_prompt, text_prompt
from kinfolk.errors import EngineError, RequestError
from kinfolk.sched.prompt_scoring import Scored, ScorerFacts, ScoringRequest
from kinfolk.settings import Settings
from kinfolk.text.character_level import SPACE
from kinfolk.text.messages import normalize_messages
from kinfolk.text.tokenizer import well_formed

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime
    from kinfolk.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MOST_REMEMBERED: Final = 256
"""Compressed messages of conversations that are remembered, so that each is scored once."""


class Scoring(Protocol):
    """Where texts are scored: the queue of an engine, or of one in another process."""

    def submit(self, request: ScoringRequest, on_scored: Callable[[Scored], None]) -> None: ...

    def cancel(self, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatSource:
    """The conversation that a prompt was rendered from."""

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    tools: bool = False


@dataclass(frozen=True, slots=True)
class TextSource:
    """The text that a prompt was made from."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenSource:
    """A prompt that is exactly these ids."""


Source = ChatSource | TextSource | TokenSource


@dataclass(frozen=True, slots=True)
class CompressionJob:
    """A prompt that is being compressed: ``parts`` are to be scored, ``ready`` are messages whose
    compressed text is known."""

    prompt: Prompt
    source: ChatSource | TextSource
    turns: tuple[Mapping[str, Any], ...]
    parts: tuple[ScoredText, ...]
    ready: Mapping[int, str]
    together: bool
    began: float


class Compressor:
    """Compresses the prompts of one runtime. May be used by several threads.

    ``scorer_tokenizer`` is that of the scorer's file. If it has the same tokens as the model's, ids
    are passed on; else the text is encoded anew.
    """

    def __init__(
        self,
        options: CompressionOptions,
        facts: ScorerFacts,
        scoring: Scoring,
        tokenizer: Tokenizer,
        scorer_tokenizer: Tokenizer,
    ) -> None:
        self.options = options
        self.facts = facts
        self._scoring = scoring
        self._tokenizer = tokenizer
        same = tokenizer.has_tokens_of(scorer_tokenizer)
        self._scorer_tokenizer = tokenizer if same else scorer_tokenizer
        self._back_off = BackOff()
        self._aged: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        """Compressed ``prompts``, their ``original_tokens`` and ``compressed_tokens``, and those
        that were read in full: ``failures``, and ``skipped_`` with the reason."""
        with self._lock:
            return dict(self._counts)

    # -- before scoring -----------------------------------------------------------------------

    def begin(
        self, runtime: Runtime, prompt: Prompt, source: Source, mode: CompressionMode | None
    ) -> CompressionJob | Prompt:
        """What is to be scored of a prompt, or the prompt itself, which says why it is read in
        full. ``mode`` is that of the request, ``None`` = that of the options."""
        began = time.perf_counter()
        mode = self.options.mode if mode is None else mode
        try:
            job = self._prepare(runtime, prompt, source, mode, began)
        except Exception as error:
            return self._in_full(prompt, began, self._failure(error))
        return self._in_full(prompt, began, job) if isinstance(job, str) else job

    def _prepare(
        self,
        runtime: Runtime,
        prompt: Prompt,
        source: Source,
        mode: CompressionMode,
        began: float,
    ) -> CompressionJob | SkipReason:
        turns: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": "x"},)
        if isinstance(source, ChatSource):
            turns = tuple(
                map(_well_formed, normalize_messages(source.messages, runtime.chat_format))
            )
        choice = choose_messages(
            turns,
            tools=isinstance(source, ChatSource) and source.tools,
            mode=mode,
            tokens=len(prompt.tokens),
            threshold=self.options.threshold,
        )
        if isinstance(choice, str):
            return choice
        if isinstance(source, TokenSource):
            return "ids"
        if self._back_off.waiting:
            return "waiting"
        ready: dict[int, str] = {}
        if isinstance(source, TextSource):
            parts = self._whole(prompt, source.text, [(0, Span(0, len(source.text)))])
        else:
            text = self._text_of(prompt.tokens)
            if choice.together:
                parts = self._whole(prompt, text, messages_in(text, turns, choice.messages))
            else:
                # Of others the template leaves a part out, such as the thoughts of an answer.
                whole = [n for n in choice.messages if str(turns[n]["content"]).strip() in text]
                parts, ready = self._messages_alone(turns, whole)
        if not parts and not ready:
            return "nothing"
        return CompressionJob(prompt, source, turns, tuple(parts), ready, choice.together, began)

    def _whole(
        self, prompt: Prompt, text: str, messages: Sequence[tuple[int, Span]]
    ) -> list[ScoredText]:
        """The prompt as one part; none if nothing of it may be left out. A short question is kept
        whole: the last message, or its last paragraph."""
        if not messages:
            return []
        ids = prompt.tokens if self._scorer_tokenizer is self._tokenizer else None
        tokens, places = self._encoded(text, ids)
        kept: tuple[Span, ...] = ()
        query: Tokens | None = None
        for span in (messages[-1][1], question(text, messages[-1][1])):
            inside = tokens_inside(places, span)
            if len(inside) < LONGEST_QUESTION:
                kept, query = (span,), tokens[inside][-QUERY_TOKENS:]
                break
        ratio = self.options.curve.ratio(len(prompt.tokens))
        part = ScoredText(text, tokens, places, tuple(messages), kept, query, ratio)
        return [part] if len(part.optional) > PASSAGE_TOKENS else []

    def _messages_alone(
        self, turns: Sequence[Mapping[str, Any]], chosen: Sequence[int]
    ) -> tuple[list[ScoredText], dict[int, str]]:
        """A part for each message that is long and was not compressed before, and the texts of
        those that were."""
        parts: list[ScoredText] = []
        ready: dict[int, str] = {}
        for number in chosen:
            text = str(turns[number]["content"]).strip()
            with self._lock:
                known = self._aged.get(_key(text))
                if known is not None:
                    self._aged.move_to_end(_key(text))
            if known is not None:
                ready[number] = known
                continue
            tokens, places = self._encoded(text, None)
            if len(tokens) >= FEWEST_AGED_TOKENS:
                ratio = self.options.curve.ratio(len(tokens))
                messages = ((number, Span(0, len(text))),)
                # It has no question, whose words could be looked for.
                parts.append(
                    ScoredText(text, tokens, places, messages, query=tokens[:0], ratio=ratio)
                )
        return parts, ready

    def _encoded(
        self, text: str, ids: Sequence[int] | None
    ) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Ids of the scorer for a text, and where they begin in it."""
        tokenizer = self._scorer_tokenizer
        ids = tokenizer.encode(text) if ids is None else ids
        lengths, before = [], None
        for token in ids:
            lengths.append(len(tokenizer.bytes_after(before, token)))
            before = token
        nbytes = len(text.encode("utf-8"))
        blanks = text.replace(SPACE, " ")
        if sum(lengths) < nbytes and blanks != text:
            # Tokens over characters spell both as a blank.
            text, nbytes = blanks, len(blanks.encode("utf-8"))
        if lengths and ids[0] == tokenizer.bos and sum(lengths) == nbytes + lengths[0]:
            lengths[0] = 0  # the tokenizer has added it
        return np.array(ids, np.int64), token_places(text, lengths)

    def _text_of(self, tokens: Sequence[int]) -> str:
        """What the tokens of a rendered conversation spell."""
        bos = self._tokenizer.bos
        added = self._tokenizer.adds_bos and list(tokens[:1]) == [bos]
        return self._tokenizer.decode(tokens[1:] if added else tokens)

    # -- scoring ------------------------------------------------------------------------------

    def score(self, job: CompressionJob) -> Future[list[Numbers]]:
        """The scores of the tokens of each part. Raises no error: the future has it. Cancelling the
        future gives the texts up."""
        texts = [pieces(part.tokens, self.facts.context) for part in job.parts]
        flat = [text for of_part in texts for text in of_part]
        answer: Future[list[Numbers]] = Future()
        found: dict[str, Numbers] = {}
        names = [f"{secrets.token_hex(8)}-{number}" for number in range(len(flat))]
        lock = threading.Lock()

        def give_up() -> None:
            for name in names:
                self._scoring.cancel(name)

        def take(event: Scored) -> None:
            with lock:
                if answer.done():
                    return
                with suppress(InvalidStateError):  # it was cancelled meanwhile
                    if event.scores is None:
                        answer.set_exception(EngineError(event.error or "it was not scored"))
                        return
                    found[event.request_id] = event.scores
                    if len(found) == len(flat):
                        scores = iter([found[name] for name in names])
                        answer.set_result([joined_scores(of_part, scores) for of_part in texts])

        def ended(future: Future[list[Numbers]]) -> None:
            if future.cancelled() or future.exception() is not None:
                try:
                    give_up()
                except EngineError:
                    log.debug("the engine has stopped")

        answer.add_done_callback(ended)
        if not flat:
            answer.set_result([])
        for name, (tokens, _) in zip(names, flat, strict=True):
            if answer.done():
                break
            try:
                self._scoring.submit(ScoringRequest(name, tokens), take)
            except Exception as error:
                with lock:
                    if not answer.done():
                        answer.set_exception(error)
                break
        return answer

    # -- after scoring ------------------------------------------------------------------------

    def finish(self, runtime: Runtime, job: CompressionJob, scores: Sequence[Numbers]) -> Prompt:
        """The compressed prompt; the full one if it would not be shorter, or if this fails."""
        with self._lock:
            self._back_off.succeeded()
        try:
            prompt = self._compressed(runtime, job, scores)
        except Exception as error:
            return self._in_full(job.prompt, job.began, self._failure(error))
        if len(prompt.tokens) >= len(job.prompt.tokens):
            return self._in_full(job.prompt, job.began, "nothing")
        seconds = time.perf_counter() - job.began
        original = len(job.prompt.tokens)
        with self._lock:
            self._counts["prompts"] += 1
            self._counts["original_tokens"] += original
            self._counts["compressed_tokens"] += len(prompt.tokens)
        # A first question is cut by itself: no later prompt begins like what is left of it.
        keep = prompt.keep and not job.together
        done = Compression(original, len(prompt.tokens), job.began, seconds)
        return replace(prompt, keep=keep, compression=done)

    def failed(self, job: CompressionJob, error: BaseException) -> Prompt:
        """The full prompt, after an error of scoring, which is logged and counted. The next prompts
        wait, unless it was this text that could not be scored."""
        if not isinstance(error, RequestError):
            with self._lock:
                self._back_off.failed()
        return self._in_full(job.prompt, job.began, self._failure(error))

    def compressed(
        self, runtime: Runtime, prompt: Prompt, source: Source, mode: CompressionMode | None = None
    ) -> Prompt:
        """All of it, blocking."""
        job = self.begin(runtime, prompt, source, mode)
        if isinstance(job, Prompt):
            return job
        scores = self.score(job)
        try:
            return self.finish(runtime, job, scores.result())
        except Exception as error:
            return self.failed(job, error)
        finally:
            scores.cancel()

    def _compressed(
        self, runtime: Runtime, job: CompressionJob, scores: Sequence[Numbers]
    ) -> Prompt:
        texts = dict(job.ready)
        for part, of_part in zip(job.parts, scores, strict=True):
            found = part.cut(of_part)
            texts |= found
            if not job.together:
                with self._lock:
                    for number, text in found.items():
                        whole = str(job.turns[number]["content"]).strip()
                        self._aged[_key(whole)] = text
                    while len(self._aged) > MOST_REMEMBERED:
                        self._aged.popitem(last=False)
        if isinstance(job.source, TextSource):
            return text_prompt(runtime, texts[0], job.prompt.field)
        turns = [
            {**turn, "content": texts[number]} if number in texts else turn
            for number, turn in enumerate(job.turns)
        ]
        return chat_prompt(runtime, turns, job.source.variables)

    def _in_full(self, prompt: Prompt, began: float, why: SkipReason) -> Prompt:
        with self._lock:
            self._counts[f"skipped_{why}"] += 1
        length, seconds = len(prompt.tokens), time.perf_counter() - began
        return replace(prompt, compression=Compression(length, length, began, seconds, why))

    def _failure(self, error: BaseException) -> SkipReason:
        """Count and log an error."""
        with self._lock:
            self._counts["failures"] += 1
        what = str(error) or type(error).__name__
        expected = isinstance(error, RequestError | EngineError)
        level = logging.WARNING if expected else logging.ERROR
        log.log(level, "a prompt is read in full, as its compression failed: %s", what)
        return "failed"


def compressor_of(runtime: Runtime, settings: Settings) -> Compressor | None:
    """The compressor of a runtime in this process; ``None`` without a model that scores prompts."""
    options, scorer = CompressionOptions.of(settings), runtime.scorer
    scoring = runtime.engine.scoring
    if options is None or scorer is None or scoring is None:
        return None
    return Compressor(options, scorer.facts, scoring, runtime.tokenizer, scorer.tokenizer)


def _well_formed(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message as the model reads it, without half characters."""
    content = turn.get("content")
    return {**turn, "content": well_formed(content)} if isinstance(content, str) else turn


def _key(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
