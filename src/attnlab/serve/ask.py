"""The routes of the view "ask"."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["ask"])
