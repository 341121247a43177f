"""The routes of the view "runs"."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["runs"])
