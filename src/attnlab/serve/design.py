"""The routes of the view "design"."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["design"])
