"""The routes of the view "mechanisms": the catalogue, cards, and what is measured when asked."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from attnlab.serve import catalogue
from attnlab.serve.lab import Forbidden, NotFound, TheLab, connected

router = APIRouter(tags=["mechanisms"])
_Name = Annotated[str, Path(min_length=1, max_length=200)]
_LOAD_SECONDS = 120.0  # the first request loads torch
_AUDIT_SECONDS = 300.0
_COST_SECONDS = 600.0


class Mechanism(BaseModel):
    """A mechanism in the catalogue; `cells` is the picture of a pattern, and `verdict` that of an earlier audit."""

    name: str
    summary: str
    cost: str
    weights: str
    causal: bool
    defect: str
    paper: str
    link: str
    source: str
    cells: str
    size: int
    pattern: str
    verdict: str | None = None


class Catalogue(BaseModel):
    """All mechanisms, and whether pasted code may run."""

    mechanisms: list[Mechanism]
    allow_code: bool


class Measured(BaseModel):
    """What was measured, as a part of a report, with the seconds that it took and the date."""

    html: str
    verdict: str | None = None
    seconds: float | None = None
    date: str | None = None


class Card(BaseModel):
    """The card of a mechanism as a report, and what was measured earlier."""

    mechanism: Mechanism
    html: str
    audit: Measured | None = None
    cost: Measured | None = None
    lengths: list[int]


class Pasted(BaseModel):
    """A class that someone wants audited; without a name, the last one in the code."""

    code: Annotated[str, Field(min_length=1, max_length=100_000)]
    class_name: Annotated[str, Field(max_length=100, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""


async def _entries(request: Request, lab: TheLab) -> list[dict[str, Any]]:
    """The catalogue, from the cache if this code has made it before."""
    found = catalogue.kept("catalogue")
    if found is None:
        found = await connected(request, lab.measures, catalogue.catalogue, timeout=_LOAD_SECONDS)
    return found["mechanisms"]


def _with_verdict(entry: dict[str, Any]) -> Mechanism:
    earlier = catalogue.kept(f"audit {entry['name']}") or {}
    return Mechanism(**entry, verdict=earlier.get("verdict"))


async def _known(request: Request, lab: TheLab, name: str) -> dict[str, Any]:
    """The entry of a registered mechanism; files of users are not reached from here."""
    for entry in await _entries(request, lab):
        if entry["name"] == name:
            return entry
    raise NotFound(f"there is no mechanism {name!r}: the catalogue lists them")


@router.get("/mechanisms")
async def mechanisms(request: Request, lab: TheLab) -> Catalogue:
    """All registered mechanisms."""
    entries = await _entries(request, lab)
    return Catalogue(mechanisms=[_with_verdict(entry) for entry in entries], allow_code=lab.options.allow_code)


@router.post("/mechanisms/pasted")
async def audit_pasted(request: Request, lab: TheLab, pasted: Pasted) -> Measured:
    """Audit a pasted class in a process with limits of time and memory."""
    if not lab.options.allow_code:
        raise Forbidden("this server runs no pasted code: start it with attnlab serve --allow-code")
    arguments = (pasted.code, pasted.class_name)
    return Measured(**await connected(request, lab.measures, catalogue.pasted, *arguments, timeout=_AUDIT_SECONDS))


@router.get("/mechanisms/{name}")
async def card(request: Request, lab: TheLab, name: _Name) -> Card:
    """The card of a mechanism: what it does, its costs, limits, options and patterns."""
    entry = await _known(request, lab, name)
    found = catalogue.kept(f"card {name}")
    if found is None:
        found = await connected(request, lab.measures, catalogue.card, name, timeout=_LOAD_SECONDS)
    audited, timed = catalogue.kept(f"audit {name}"), catalogue.kept(f"cost {name}")
    return Card(
        mechanism=_with_verdict(entry),
        html=found["html"],
        audit=Measured(**audited) if audited else None,
        cost=Measured(**timed) if timed else None,
        lengths=list(catalogue.LENGTHS),
    )


@router.post("/mechanisms/{name}/audit")
async def audit(request: Request, lab: TheLab, name: _Name) -> Measured:
    """Audit a mechanism."""
    await _known(request, lab, name)
    return Measured(**await connected(request, lab.measures, catalogue.audit, name, timeout=_AUDIT_SECONDS))


@router.post("/mechanisms/{name}/cost")
async def cost(request: Request, lab: TheLab, name: _Name) -> Measured:
    """Measure time and memory of a mechanism over the length of the text, beside torch's fused attention."""
    await _known(request, lab, name)
    return Measured(**await connected(request, lab.measures, catalogue.cost, name, timeout=_COST_SECONDS))
