"""Many calls with ranks out of step: results stay right and memory stays where it was."""

from collections.abc import Callable

import accidents
import pytest
from cases import Case

from deep_ll.testing import RankPool

CASE = Case(experts=8, tokens=(4, 1, 0, 3), max_tokens=4, hidden=128, topk=2, mode="hook")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_ten_thousand_rounds(pools: Callable[[int], RankPool]) -> None:
    for growth in pools(4).run(accidents.endure, CASE, 10_000, 500, timeout_s=140):
        assert growth["resident"] < 4 << 20, growth
        assert growth["descriptors"] == 0, growth
        assert growth["maps"] < 10, growth
