"""The textbook as training text: every task in many forms, each executed when it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random

from pocket.textbook import tasks
from pocket.textbook.execution import problem
from pocket.textbook.forms import Document, write, write_several
from pocket.textbook.recall import write_recall
from pocket.textbook.tasks import Task

FORMS = 450
MODULES = 24
"""Files with several tasks, for each task of a chapter."""
RECALL_FILES = 6000
MAX_TASKS = 4


@dataclass(frozen=True, slots=True)
class Book:
    """``texts`` are the documents, ``recall`` long files whose end repeats what their head defines.

    ``failed`` names documents that did not run, which are left out.
    """

    texts: list[str]
    recall: list[str]
    failed: list[str]


def write_book(seed: int, workers: int, forms: int = FORMS, recall: int = RECALL_FILES) -> Book:
    """All chapters but the tasks that are held out. The same seed writes the same book."""
    learned = [task for task in tasks.read_all() if not task.held_out]
    chapters = {task.chapter: [t for t in learned if t.chapter == task.chapter] for task in learned}
    with ProcessPoolExecutor(workers) as pool:
        single = pool.map(partial(write_task, seed=seed, forms=forms), learned, chunksize=4)
        modules = max(1, MODULES * forms // FORMS)
        several = pool.map(partial(write_modules, seed=seed, each=modules), chapters.values())
        parts = [part for found in (single, several) for part in found]
        seeds = [f"{seed} recall {number}" for number in range(recall)]
        long = list(pool.map(partial(write_recall, learned), seeds, chunksize=64))
    return Book(
        [text for part in parts for text in part.texts],
        long,
        [failure for part in parts for failure in part.failed],
    )


def write_task(task: Task, seed: int, forms: int) -> Book:
    """At most ``forms`` different documents of one task."""
    random = Random(f"{seed} {task.name}")
    return _run(task.name, (write(task, random) for _ in range(forms)))


def write_modules(chapter: Sequence[Task], seed: int, each: int) -> Book:
    """Files with two to four tasks of one chapter."""
    random = Random(f"{seed} {chapter[0].chapter}")
    title = f"Helpers for {chapter[0].chapter}."
    count = each * len(chapter)
    picks = (random.sample(chapter, random.randint(2, MAX_TASKS)) for _ in range(count))
    return _run(chapter[0].chapter, (write_several(pick, title, random) for pick in picks))


def _run(name: str, documents: Iterable[Document]) -> Book:
    texts, failed = dict[str, None](), list[str]()
    for document in documents:
        if document.text in texts:
            continue
        wrong = problem(document.program)
        if wrong is None:
            texts[document.text] = None
        else:
            failed.append(f"{name}: {wrong}\n{document.text}")
    return Book(list(texts), [], failed)
