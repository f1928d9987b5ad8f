"""The PTX memory model forbids what deep_ll must never see, and allows what would come of a piece
that is left out.
"""

from itertools import chain

import pytest
from litmus.classics import CLASSICS
from litmus.execution import is_allowed
from litmus.table import DOCUMENT, TOPICS, markdown, parts

QUESTIONS = [
    pytest.param(question, id=f"{topic}: {question.text}")
    for topic, question in chain.from_iterable(
        ((topic, question) for question in questions) for topic, questions in TOPICS.items()
    )
]


@pytest.mark.parametrize("test", CLASSICS, ids=lambda test: test.name)
def test_checker_knows_the_classics(test):
    assert is_allowed(test.threads, test.outcome) == test.allowed


@pytest.mark.parametrize("question", QUESTIONS)
def test_answer(question):
    assert is_allowed(question.threads, question.outcome) == question.allowed, question.why


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_not_void(question):
    """What leads up to the failure does happen."""
    before, _, _ = question.outcome.rpartition(" ")
    assert not before or is_allowed(question.threads, before)


def test_document_shows_the_answers():
    _, table, _ = parts(DOCUMENT.read_text(encoding="utf-8"))
    assert table == markdown(), "write it: python tests/gpu_free/litmus/table.py --write"
