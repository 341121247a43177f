"""The routes of the view "mechanisms"."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["mechanisms"])
