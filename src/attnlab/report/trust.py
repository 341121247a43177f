"""The report of the trust study: what was answered, what is guaranteed, and how far the confidence can be trusted.

The sentence at the top reports what was measured on names that took no part in calibration; the guarantee and its limits
have a section of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attnlab.report.document import (
    Answer,
    Answers,
    Axis,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Piece,
    Row,
    Series,
    Table,
    Text,
    section,
)
from attnlab.report.legacy_parts import (
    QUICK,
    Result,
    cell,
    columns,
    plain_facts,
    report_of,
    reproduce,
    settings_of,
    side_by_side,
    text_column,
    training_blocks,
)
from attnlab.report.words import NOTHING, count, interval, percent, plural

_MEANINGS = {
    "known": "their lines were read, and they were never asked about",
    "withheld": "real names whose lines were not read",
    "invented": "a given name and a surname of the corpus that nobody has together",
}
_SCORES = {
    "confidence": "the probability of the likeliest answer",
    "entropy": "how undecided it is among all answers",
    "distance": "how far it is from what it says of anybody",
}


def _risk(share: float) -> str:
    return f"{100 * share:.3g} %"


def outcome(result: Result) -> str:
    """The main results, in a few sentences."""
    known = next(one for one in result["groups"] if one["name"] == "known")
    if not result["rule"]["met"]:
        asked = plural(known["questions"], "question")
        return (
            f"The model is right in {percent(known['right']['share'])} of {asked} about names that it read about, but a risk of"
            f" {_risk(result['max_risk'])} could not be certified, so that it answers none; answering every question would be"
            f" wrong in {percent(1 - known['right']['share'])}. {_told_apart(result)}"
        ).strip()
    answered, wrong = known["answered"], known["wrong"]
    first = (
        f"Allowed to be wrong in {_risk(result['max_risk'])} of its answers, the model answers {percent(answered['share'])} of"
        f" {plural(known['questions'], 'question')} about names that it read about"
    )
    if wrong["share"] is not None:
        everything = percent(1 - known["right"]["share"])
        first += (
            f", and {percent(wrong['share'])} of these answers are wrong ({interval(wrong['low'], wrong['high'])});"
            f" answering every question would be wrong in {everything}"
        )
    return " ".join(part for part in (f"{first}.", _false_answers(result), _told_apart(result)) if part)


def _false_answers(result: Result) -> str:
    words = {"withheld": "names whose lines it never read", "invented": "invented ones"}
    said = [
        f"{percent(one['answered']['share'])} of {count(one['questions'])} {words[one['name']]}"
        for one in result["groups"]
        if one["name"] in words
    ]
    line = f"By its confidence alone it also answers {' and '.join(said)}"
    return f"{line}; a lookup in the corpus reports these names as never seen." if said else ""


def _told_apart(result: Result) -> str:
    line = next(
        (one for one in result["separation"] if (one["score"], one["against"]) == ("confidence", "withheld")), None
    )
    if line is None:
        return ""
    span = f" ({_area_span(line)})" if line["low"] is not None else ""
    area = f"an area under the ROC curve of {line['value']:.3f}{span}"
    return f"Its confidence tells known from withheld names with {area}, where 0.5 is chance."


def _limits(result: Result) -> list[str]:
    return [
        result["rule"]["words"],
        "The guarantee comes from the calibration questions alone, with 95 % confidence over which of them were drawn, counting"
        " all draws and not only those that certify a threshold; the shares above were then measured on other questions.",
        "It holds for questions drawn like those: about names that were read, in the same forms and of the same kinds, answered"
        " by this model. It is a statement about all answers together, not about a single one.",
        "It does not cover names that were never seen. Those stay unanswered because the model is less sure of them, which is"
        " measured here but not guaranteed, and because the lookup finds no line about them.",
        "An answer counts as right when it matches exactly. A line that contains the answer supports it, whatever the line"
        " says: whether somebody was born in Boston or played there is not distinguished.",
    ]


def _share_cell(one: Result) -> Cell:
    if one["share"] is None:
        return Cell(NOTHING)
    return Cell(percent(one["share"]), one["share"], interval(one["low"], one["high"]))


def _wrong_of_all(group: Result) -> Result:
    """The share of wrong answers if every question of a group is answered."""
    right = group["right"]
    return {"share": 1 - right["share"], "low": 1 - right["high"], "high": 1 - right["low"]}


def _area_span(one: Result) -> str:
    return "" if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}"


def summary_table(result: Result) -> Table:
    """The groups of names, and how they were answered."""
    titles = columns(
        "Names",
        "Questions",
        Column("Right", note="of all questions, answered or not"),
        Column("Answered", note="by the confidence alone"),
        "Wrong of these",
        Column("Wrong of all", note="if every question is answered"),
        Column("Answered after lookup", note="of the name in the lines that were read"),
        Column("Never seen", note="according to the lookup"),
    )
    rows = []
    for one in result["groups"]:
        known, looked = one["name"] == "known", one["looked_up"]
        cells = (
            cell(one["questions"], "count"),
            _share_cell(one["right"]) if one["name"] != "invented" else Cell(NOTHING),
            _share_cell(one["answered"]),
            _share_cell(one["wrong"]) if known else Cell(NOTHING),
            _share_cell(_wrong_of_all(one)) if known else Cell(NOTHING),
            _share_cell(looked["answered"]),
            _share_cell(looked["unseen"]),
        )
        rows.append(Row(Cell(one["name"], one["name"], _MEANINGS[one["name"]]), cells))
    caption = (
        f"At an allowed risk of {_risk(result['max_risk'])}: answered by the confidence alone, and after looking up whether any"
        " line is about the name. Intervals: 95 % (Wilson). Right answers about withheld names are guesses."
    )
    return Table("Results", caption, titles, rows, brief=True)


def _separation_table(result: Result) -> Table:
    titles = columns("By", text_column("Against"), Column("AUROC", largest_first=True))
    rows = []
    for one in result["separation"]:
        area = Cell(f"{one['value']:.3f}", one["value"], _area_span(one))
        rows.append(Row(Cell(one["score"], one["score"], _SCORES[one["score"]]), (Cell(one["against"]), area)))
    caption = (
        "The probability that a known name scores higher than one that was never read, with its 95 % interval. The confidence"
        " is what the study was planned for; the other two scores are shown for comparison."
    )
    return Table("Known or not", caption, titles, rows)


def verdict_table(result: Result) -> Table:
    """The verdicts by group."""
    names = [one["name"] for one in result["groups"]]
    rows = []
    for verdict in result["groups"][0]["verdicts"]:
        found = [one["verdicts"][verdict] for one in result["groups"]]
        if any(one["count"] for one in found):
            cells = []
            for name, one in zip(names, found, strict=True):
                under = f"{percent(one['right'] / one['count'])} right" if name == "known" and one["count"] else ""
                cells.append(Cell(count(one["count"]), one["count"], under))
            rows.append(Row(Cell(verdict), cells))
    caption = "The verdict of attnlab ask on each question, after the lookup."
    return Table("Verdicts", caption, columns("Verdict", *names), rows)


def rules_table(result: Result) -> Table:
    """The rules for several risks, certified on calibration questions."""
    titles = (
        Column("Allowed risk"),
        Column("Threshold", note="the least confidence of an answer that is given"),
        Column("Answered"),
        Column("Certified risk", note="an upper bound with 95 % confidence"),
        text_column("In words"),
    )
    rows = []
    for rule in result["calibration"]["rules"]:
        met = rule["met"]
        cells = (
            Cell(f"{rule['threshold']:.3f}" if met else NOTHING, rule["threshold"]),
            Cell(percent(rule["coverage"]) if met else "none", rule["coverage"]),
            Cell(f"at most {percent(rule['bound'])}" if met else "not certified", rule["bound"]),
            Cell(rule["words"]),
        )
        rows.append(Row(Cell(_risk(rule["max_risk"]), rule["max_risk"]), cells))
    caption = "Certified on all calibration questions, at thresholds that were fixed beforehand."
    return Table("Rules", caption, titles, rows)


def _calibration_words(result: Result) -> str:
    before, after = (result["reliability"][key] for key in ("before", "after"))
    change = "lowers" if after["ece"] <= before["ece"] else "raises"
    return (
        f"Calibration with {plural(result['calibration']['questions'], 'question')} {change} the calibration error on the known"
        f" names from {percent(before['ece'])} to {percent(after['ece'])}; by chance alone a perfectly calibrated model would"
        f" show about {percent(after['ece_if_calibrated'])}."
    )


def fallback_words(result: Result) -> str:
    """What the model falls back on where it knows nothing."""
    found = result.get("fallback")
    if not found:
        return ""
    apart = "clearly more than" if found["low"] > found["chance"] else "clearly less than"
    if found["low"] <= found["chance"] <= found["high"]:
        apart = "which these names cannot tell from"
    return (
        f"For {percent(found['share'])} of the withheld names ({interval(found['low'], found['high'])}) the model says the"
        f" answer of the known name most like it, {apart} the {percent(found['chance'])} that a known name drawn at random"
        " would give."
    )


# Charts


def stairs(heights: Sequence[float]) -> tuple[list[float], list[float]]:
    """A histogram over 0 to 100 % as the corners of its outline."""
    edges = [100 * place / len(heights) for place in range(len(heights) + 1)]
    x = [edge for pair in pairwise(edges) for edge in pair]
    return x, [100 * height for height in heights for _ in range(2)]


def histogram_chart(result: Result) -> Chart:
    """The confidences of each group of names."""
    series = []
    for one in result["groups"]:
        across, heights = stairs(one["histogram"])
        series.append(Series(f"{one['name']} names", across, heights, [0.0] * len(heights), heights))
    label = "Histogram of confidences. " + "; ".join(
        f"{one['name']} names: {percent(one['confidence'])} on average" for one in result["groups"]
    )
    x, y = Axis("confidence in the likeliest answer", "%", 0, 100), Axis("questions of the group", "%", low=0)
    return Chart("lines", "Confidence by group of names", label, x, y, series, height=320)


def curve_chart(result: Result) -> Chart:
    """Risk against coverage on known names, with the rule as a point and the allowed risk as a line."""
    curve, rule = result["curve"], result["rule"]
    known = result["groups"][0]
    allowed = 100 * result["max_risk"]
    spot = []
    if rule["met"] and known["wrong"]["share"] is not None:
        spot = [(100 * known["answered"]["share"], 100 * known["wrong"]["share"])]
    series = [
        Series(
            "wrong among the answers given",
            [100 * one for one in curve["coverage"]],
            [100 * one for one in curve["risk"]],
            dots=spot,
            dots_name="at the certified threshold" if spot else "",
        ),
        Series("allowed", [0.0, 100.0], [allowed, allowed]),
    ]
    label = f"Risk against coverage: {percent(curve['risk_of_all'])} wrong if every question is answered"
    x, y = Axis("questions answered, the surest first", "%", 0, 100), Axis("wrong answers", "%", low=0)
    return Chart("lines", "Risk against coverage, known names", label, x, y, series, height=320)


def reliability_chart(result: Result) -> Chart:
    """Right answers against confidence, before and after calibration."""
    series = [Series("perfectly calibrated", [0.0, 100.0], [0.0, 100.0])]
    for name, words in (("after", "after calibration"), ("before", "before it")):
        table = result["reliability"][name]["table"]
        columns = {key: [100 * one[key] for one in table] for key in ("confidence", "right", "low", "high")}
        band = (columns["low"], columns["high"]) if name == "after" else ([], [])
        series.append(Series(words, columns["confidence"], columns["right"], *band))
    before, after = (percent(result["reliability"][key]["ece"]) for key in ("before", "after"))
    label = f"Reliability: calibration error {before} before calibration, {after} after it"
    x, y = Axis("confidence", "%", 0, 100), Axis("right answers", "%", 0, 100)
    return Chart("lines", "Reliability, known names", label, x, y, series, height=320)


# The whole report


def _examples(one: Result) -> Answers:
    """Some questions of a group, by decreasing confidence."""
    items = [
        Answer(
            item["question"],
            item["said"],
            item["said"] == item["answer"] if item["answer"] else None,
            item["answer"] or "",
            percent(item["confidence"]),
            item["verdict"],
            [Piece(item["quote"])] if item.get("quote") else (),
        )
        for item in one["examples"]
    ]
    return Answers(f"{one['name'].capitalize()} names", items)


def document(result: Result) -> Document:
    """The whole report."""
    words, runs = fallback_words(result), result["runs"]
    likenesses = [
        f"“{one['question']}” – {one['said']}, as for {one['nearest']}"
        for one in (result.get("fallback") or {}).get("examples") or ()
    ]
    told = "Each point is a tenth of the known names, by confidence; the band is the 95 % interval of right answers."
    intro = "A few names of each group, from the most to the least confident answer."
    world = {name: value for name, value in result["world"].items() if name != "quick"}
    return report_of(
        "trust",
        result,
        result.get("verdict") or [outcome(result)],  # older results do not hold it
        [
            *section("Results", histogram_chart(result), summary_table(result)),
            *section("Known or not", _separation_table(result) if result["separation"] else None),
            *section("When it answers", curve_chart(result), rules_table(result)),
            *section(
                "Calibration", Text([_calibration_words(result)]), reliability_chart(result), Text([told], "quiet")
            ),
            *section("Verdicts", verdict_table(result)),
            *section(
                "What it falls back on",
                Text([words]) if words else None,
                Text(likenesses, "list") if words and likenesses else None,
            ),
            *section("What the guarantee covers, and what it does not", Text(_limits(result), "list")),
            *section("Answers", Text([intro]), side_by_side([_examples(one) for one in result["groups"]])),
            *section("Training", *training_blocks(runs)),
            reproduce(result, Facts("Data", plain_facts(world)), settings_of(runs)),
        ],
        [QUICK] if result["world"].get("quick") else [],
    )
