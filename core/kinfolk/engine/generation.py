"""Text generation for the command line and the server.

Input: ``Prompt`` and ``GenerationOptions``; output: pieces of text, and one ``Ended`` for each
choice. Events are converted to text on the caller's thread; the engine's thread only passes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kinfolk.descriptors import SamplingDefaults
from kinfolk.engine.answer import Answer, AnswerPart
from kinfolk.engine.options import GenerationOptions, sampling
from kinfolk.errors import ContextLengthExceeded, EngineError, RequestError, shown
from kinfolk.sched.events import Event
from kinfolk.sched.request import FinishReason, Request
from kinfolk.sched.rules import is_whole

if TYPE_CHECKING:
    from kinfolk.engine.prompt import Prompt
    from kinfolk.engine.runtime import Runtime
    from kinfolk.engine.ticket import Ticket

Sink = Callable[[int, Event], None]
"""Receives a choice and its event, on the engine's thread: must neither block nor raise."""


class Generation:
    """One prompt, and one or more answers to it.

    ``start`` submits the requests to the engine; the caller passes each event to ``feed``, on
    one thread of its choice. ``pieces`` does both. ``cancel`` ends the running requests and may be
    called at any time and repeatedly.
    """

    def __init__(self, runtime: Runtime, prompt: Prompt, options: GenerationOptions):
        self.prompt = prompt
        self.options = options
        self._runtime = runtime
        self.requests = _requests(runtime, prompt, options)
        self._tickets: list[Ticket] = []
        self._answers: list[Answer] = []

    @property
    def open(self) -> bool:
        """Whether a choice has not ended."""
        return not all(answer.ended for answer in self._answers)

    @property
    def tokens(self) -> int:
        """Tokens read so far, of all choices."""
        return sum(answer.tokens for answer in self._answers)

    def start(self, sink: Sink) -> None:
        """Submit the requests. If the engine refuses one, none runs and its error is raised."""
        stop = self.options.stop
        # With ignore_eos, tokens that end a generation are still not shown.
        silent = self._runtime.tokenizer.eog | self.options.stop_tokens
        wanted = self.options.logprobs is not None
        self._answers = [
            Answer(choice, self._runtime.tokenizer, self.prompt, stop, silent, wanted)
            for choice in range(len(self.requests))
        ]
        try:
            for choice, request in enumerate(self.requests):
                self._tickets.append(self._runtime.engine.submit(request, _bind(sink, choice)))
        except BaseException:
            self.cancel()
            raise

    def feed(self, choice: int, event: Event) -> list[AnswerPart]:
        """The parts of the answer that an event adds. A stop string in them ends the request."""
        answer = self._answers[choice]
        was_stopped = answer.stopped
        pieces = answer.feed(event)
        if answer.stopped and not was_stopped:
            # STOP rather than CANCELLED: the state is valid and may be kept as a checkpoint.
            self._cancel(choice, FinishReason.STOP)
        return pieces

    def cancel(self) -> None:
        for choice in range(len(self._tickets)):
            if not self._answers[choice].ended:
                self._cancel(choice, FinishReason.CANCELLED)

    def _cancel(self, choice: int, reason: FinishReason) -> None:
        # The error means that the engine has stopped, and its requests with it.
        with suppress(EngineError):
            self._tickets[choice].cancel(reason)

    def __iter__(self) -> Iterator[AnswerPart]:
        return self.pieces()

    def pieces(self) -> Generator[AnswerPart]:
        """Generate, blocking. Closing the generator cancels the remaining requests."""
        inbox: SimpleQueue[tuple[int, Event]] = SimpleQueue()
        self.start(lambda choice, event: inbox.put((choice, event)))
        try:
            while self.open:
                yield from self.feed(*inbox.get())
        finally:
            self.cancel()


def _bind(sink: Sink, choice: int) -> Callable[[Event], None]:
    return lambda event: sink(choice, event)


def _requests(runtime: Runtime, prompt: Prompt, options: GenerationOptions) -> tuple[Request, ...]:
    """A request for each choice; they differ in their ids and seeds."""
    defaults = runtime.card.sampling if runtime.card is not None else SamplingDefaults()
    first = sampling(options, defaults, runtime.info.vocabulary)
    stop = options.stop_tokens
    if not options.ignore_eos:
        stop |= runtime.tokenizer.eog
    if not is_whole(options.choices) or options.choices < 1:
        raise RequestError(
            f"n must be an integer of at least 1, got {shown(options.choices)}", field="n"
        )
    max_new = _max_new(runtime, prompt, options.max_tokens)
    base = secrets.token_hex(8)
    return tuple(
        Request(
            id=f"{base}-{choice}",
            prompt=prompt.tokens,
            max_new=max_new,
            sampling=replace(first, seed=first.seed + choice),
            stop=stop,
            checkpoints=prompt.checkpoints if prompt.keep else (),
            keep=prompt.keep,
            # The first one computes the prompt for all.
            follows=f"{base}-0" if choice else None,
            followers=0 if choice else options.choices - 1,
            draft=options.draft,
            draft_width=options.draft_width,
            draft_mode=options.draft_mode,
            priority=options.priority,
            paged=options.paged,
        )
        for choice in range(options.choices)
    )


def _max_new(runtime: Runtime, prompt: Prompt, wanted: int | None) -> int:
    """The limit of generated tokens: ``wanted``, at most the rest of the context.

    A prompt is never cut: one that leaves no room raises :class:`ContextLengthExceeded`.
    """
    context, tokens = runtime.info.context, len(prompt.tokens)
    if wanted is not None and not (is_whole(wanted) and wanted >= 1):
        raise RequestError(
            f"max_tokens must be an integer of at least 1, got {shown(wanted)}", field="max_tokens"
        )
    room = context - tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"{prompt.field}: {tokens} tokens, but the maximum context length is {context} tokens "
            "and at least one more must fit; shorten it",
            field=prompt.field,
            prompt_tokens=tokens,
            context=context,
        )
    if wanted is None:
        wanted = runtime.card.max_tokens if runtime.card is not None else room
    return min(wanted, room)
