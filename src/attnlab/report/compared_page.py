"""The page of a comparison: its tables, charts and texts, put into the template. Plain data in, HTML out."""

from __future__ import annotations

from typing import Any

from attnlab.report import compared, compared_charts, compared_pairs, compared_texts
from attnlab.report.compared import Result
from attnlab.report.compared_epochs import epoch_figures
from attnlab.report.page import render
from attnlab.report.words import flat, plain

SCRIPTS = ("page.js", "tables.js", "curves.js")


def samples(result: Result) -> list[dict[str, Any]]:
    """The samples of every specimen that wrote some."""
    return [
        {"name": one["name"], "mark": compared.mark(one), "texts": one["samples"]}
        for one in result["specimens"]
        if one.get("samples")
    ]


def comparison_page(result: Result) -> str:
    """The whole page."""
    environment = result.get("environment") or {}
    context = {
        "result": result,
        "environment": environment,
        "verdicts": compared.verdicts(result),
        "leaking": compared.leaking(result),
        "summary": compared.summary_table(result),
        "notes": [(one["title"], one["note"]) for one in result["figures"] if one.get("note")],
        "comparisons": compared_pairs.comparisons_table(result),
        "forest": compared_charts.forest_figures(result),
        "said": compared_pairs.sentences(result),
        "by_seed": compared_pairs.by_seed_table(result),
        "losses": compared_charts.loss_figures(result) or epoch_figures(result),
        "sentences": compared_texts.probe_sentences(result),
        "probes": compared_texts.probes_tables(result),
        "samples": samples(result),
        "quality": compared_texts.quality_table(result),
        "audit": compared_texts.audit_table(result),
        "leak": compared_charts.leak_figure(result),
        "word_by_word": compared_texts.word_by_word_table(result),
        "explanation": result.get("explanation") or [],
        "theirs": compared.theirs_table(result),
        "seeds": compared.seeds_table(result),
        "paired": compared_pairs.paired_table(result),
        "costs": compared.costs_table(result),
        "varied": compared.varied_table(result),
        "order": compared.order_of(result),
        "data_facts": compared.data_facts(result),
        "environment_facts": [(name, plain(value)) for name, value in environment.items()],
        "settings": {name: list(flat(values)) for name, values in (result.get("settings") or {}).items()},
    }
    return render("compared.html.j2", context, SCRIPTS)
