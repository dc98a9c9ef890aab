"""Losses of tiny runs are those that were recorded: to the last digit on a recorded platform, else
to 1e-4."""

import json

import pytest

from tests.golden import FILE, ROWS, losses, platform_name

RECORDED = json.loads(FILE.read_text())


@pytest.mark.parametrize("domain", ROWS)
def test_losses_are_those_that_were_recorded(domain):
    found = losses(domain)
    if platform_name() in RECORDED:
        assert found == RECORDED[platform_name()][domain]
    else:
        for recorded in RECORDED.values():
            assert found == pytest.approx(recorded[domain], rel=1e-4)
