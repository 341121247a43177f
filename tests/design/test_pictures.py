import numpy as np
import pytest

from attnlab.design import blend, noise, select
from attnlab.design.pictures import design_picture, noise_picture

EYE = np.eye(3)


@pytest.mark.parametrize(
    "keys",
    [EYE, [[-1.0], [0.0], [1.0]], [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], [[1.0, 1.0]] * 3],
    ids=["3d", "1d", "line", "point"],
)
def test_every_shape_of_keys_can_be_drawn(keys):
    keys = np.array(keys)
    figure = design_picture(select(keys, EYE, 0, tolerance=0.2), keys, EYE)
    assert len(figure.axes[1].collections) >= 3
    figure.draw_without_rendering()


def test_the_title_holds_the_verdict():
    result = blend([[-1], [0], [1]], EYE, [0, 2])
    title = design_picture(result, np.array([[-1.0], [0.0], [1.0]]), EYE).get_suptitle()
    assert "impossible" in title
    assert "every query misses" in title


def test_one_panel_a_design_with_the_law_over_it():
    figure = noise_picture(noise(samples=5000))
    assert len(figure.axes) == 3
    assert all(len(ax.patches) == 2 for ax in figure.axes)


def test_a_query_for_every_value_shows_every_output():

    figure = design_picture(select(np.eye(3), np.eye(3)), np.eye(3), np.eye(3))
    drawn = {c.get_label(): len(c.get_offsets()) for c in figure.axes[1].collections}
    assert drawn["wanted"] == drawn["output"] == 3


def test_both_axes_have_the_same_unit_length_and_ticks():
    keys = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0]])
    figure = design_picture(select(keys, EYE, 0, tolerance=0.2), keys, EYE)
    figure.draw_without_rendering()
    for ax in figure.axes:
        across, up = (ends[1] - ends[0] for ends in (ax.get_xlim(), ax.get_ylim()))
        assert up == pytest.approx(across)
        assert np.diff(ax.get_yticks())[0] == pytest.approx(np.diff(ax.get_xticks())[0])
        assert ax.bbox.width == pytest.approx(ax.bbox.height, rel=1e-3)
