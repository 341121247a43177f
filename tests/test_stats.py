from __future__ import annotations

import pytest

from attnlab import stats


def test_wilson_interval_of_known_cases() -> None:
    assert stats.proportion_interval(115, 500) == pytest.approx((0.1953, 0.2689), abs=1e-4)
    low, high = stats.proportion_interval(0, 10)
    assert low == 0
    assert high == pytest.approx(0.2775, abs=1e-4)
