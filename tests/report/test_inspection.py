"""How a batch is told: the text piece by piece, and little of its padding."""

from __future__ import annotations

from attnlab.report.inspection import MOST_PADDING, MOST_PIECES, piece_table, rest_lines


def batch(real: int, padding: int) -> dict[str, list[dict[str, object]]]:
    pieces = [{"piece": f"p{place}", "id": place, "mask": 1} for place in range(real)]
    return {"pieces": [*pieces, *({"piece": "<pad>", "id": 9, "mask": 0} for _ in range(padding))]}


def test_a_short_text_is_shown_whole_with_little_of_its_padding() -> None:
    assert piece_table(batch(5, 40)).row_count == 5 + MOST_PADDING
    assert list(rest_lines(batch(5, 40))) == [f"and {40 - MOST_PADDING} more of padding"]


def test_of_a_long_text_the_rest_is_counted() -> None:
    assert piece_table(batch(MOST_PIECES + 2, 1)).row_count == MOST_PIECES + 1
    assert list(rest_lines(batch(MOST_PIECES + 2, 1))) == ["and 2 more pieces"]
    assert list(rest_lines(batch(3, 0))) == []
