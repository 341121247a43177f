"""The routes of the view "start"."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["start"])
