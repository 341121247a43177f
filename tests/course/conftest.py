from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from attnlab.course import marking


@pytest.fixture(autouse=True)
def _mark_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark in this process, which is faster, but for tests of the processes."""

    def call_each(
        function: Callable[..., Iterator[Any]], calls: Sequence[Sequence[Any]], *_: object
    ) -> Iterator[tuple[int, list[Any], None]]:
        for number, arguments in enumerate(calls):
            yield number, list(function(*arguments)), None

    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr(marking, "call_each", call_each)
