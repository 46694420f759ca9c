"""A small table, and what its runs came to, made up."""

import pytest

from benchmarks.papers import catalogue

CONTENT = {
    "title": "Few shots",
    "caption": "Best accuracy.",
    "paper": "002",
    "setting": {"bundle": "digits-wrn-10-1", "devices": 4, "task": {"rounds": 2}},
    "scales": {
        "smoke": {"columns": ["even"], "seeds": 1},
        "cpu": {"seeds": 2, "differences": ["Fewer rounds."], "setting": {"devices": 6}},
    },
    "columns": [
        {"id": "even", "title": "Dirichlet(0.5)", "data": "digits", "setting": {"data": {"alpha": 0.5}}},
        {"id": "uneven", "title": "Dirichlet(0.1)", "data": "digits", "setting": {"data": {"alpha": 0.1}}},
        {
            "id": "efficiency",
            "title": "Dirichlet(0.1)",
            "data": "digits",
            "measure": "learning_efficiency",
            "setting": {"data": {"alpha": 0.1}},
        },
    ],
    "rows": [
        {"system": "drop", "label": "FedAvg", "paper": {"even": "80.00±1.00", "uneven": "60.0"}},
        {"system": "few-shot", "paper": {"even": "82.00±1.00", "uneven": "66.0"}},
        {"system": "drop", "id": "long", "only": ["even"], "at": {"cpu": {"task": {"rounds": 9}}}},
    ],
    "claims": [{"text": "few-shot over FedAvg", "better": "few-shot", "than": "drop"}],
}


@pytest.fixture
def table():
    return catalogue.table(CONTENT, "paper:002-t9.9")


@pytest.fixture
def changed():
    """The same with anything changed."""
    return lambda **changes: catalogue.table({**CONTENT, **changes}, "paper:002-t9.9")
