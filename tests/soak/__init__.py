"""Trials that break things on purpose: `python -m tests.soak` runs all of them,
`tests/test_soak.py` a few of each."""

from tests.soak import damage, fuzz, kills, numerics, processes, resume, rows

TESTS = [
    *kills.TESTS,
    *resume.TESTS,
    *damage.TESTS,
    *numerics.TESTS,
    *fuzz.TESTS,
    *processes.TESTS,
    *rows.TESTS,
]
