"""Attention solved backwards: queries and matrices from wanted outputs, with bounds, or a proof that there are none."""

from attnlab.design.solve import average, blend, reach, select

__all__ = ["average", "blend", "reach", "select"]
