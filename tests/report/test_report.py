"""The report as files: complete, safe, self-contained, small and whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from reading import Reader, read

import attnlab.report
from attnlab.errors import StorageError
from attnlab.report import write_report

Result = dict[str, Any]
NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)> | `*\"'&"


def report(result: Result, folder: Path) -> tuple[Reader, str]:
    path = write_report(result, folder)
    return read(path.read_text(encoding="utf-8")), (folder / "report.md").read_text(encoding="utf-8")


def test_both_files_are_written_and_nothing_else(result: Result, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "study"
    assert write_report(result, folder) == folder / "report.html"
    write_report(result, folder)  # again: a report can be made anew
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "report.html", "report.md"]


def test_the_page_is_written_whole_or_not_at_all(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")
    written: list[Path] = []
    monkeypatch.setattr(attnlab.report, "write_bytes", lambda path, content: written.append(path))
    write_report(result, tmp_path)
    assert [path.name for path in written] == ["report.md", "report.html"]  # the page last: it says that all is there
    monkeypatch.undo()

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError):
        write_report(result, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


@pytest.mark.parametrize(
    "words",
    [
        "What does a small model remember?",
        "The pretrained model correctly answers 81.6 % of 750 questions",
        "81.6 % 78.7 to 84.2 % 612 of 750 Chicago 3.1 % 5 min 21 s",
        "2.3 % 1.4 to 3.6 % 17 of 750 Los Angeles 100.0 % –",
        "Finished 2026-11-15 in 6 min 52 s with attnlab run --model.n_layer 3",
        "pretrain 500 40 2,000,000 26,667 1 min 15 s 0.410 3,383,296",
        "million tokens read",
        "Atlanta, not Mobile",
        "another phrase of the same line",
        "Characters 420,000",
        "model.n_embd 256",
        "torch 2.13.0",
    ],
)
def test_the_page_says(result: Result, tmp_path: Path, words: str) -> None:
    assert words in report(result, tmp_path)[0].text


def test_the_markdown_has_the_same_numbers(result: Result, tmp_path: Path) -> None:
    page, text = report(result, tmp_path)
    assert "| pretrained + fine-tuned | 81.6 % | 78.7 to 84.2 % | 612 of 750 | Chicago 3.1 % | 5 min 21 s |" in text
    assert "| majority answer | 2.3 % | 1.4 to 3.6 % | 17 of 750 | Los Angeles 100.0 % | – |" in text
    assert "| pretrain | 500 | 40 | 2,000,000 | 26,667 | 1 min 15 s | 0.410 | 3,383,296 |" in text
    assert "| Where was Hank Aaron born? | Atlanta | Mobile | another phrase of the same line |" in text
    assert "\n    attnlab run --model.n_layer 3\n" in text
    sentence = text.split("\n\n")[1]
    assert sentence.startswith("The pretrained model")
    assert sentence in page.text


def test_every_table_of_the_markdown_is_even(result: Result, tmp_path: Path) -> None:
    result["rows"][0]["name"] = "a|b\nc"
    text = report(result, tmp_path)[1]
    for block in text.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1
    assert r"| a\|b c |" in text


def poison(value: Any) -> Any:
    """The result with something nasty in every text; words that steer the report stay."""
    if isinstance(value, str):
        return value if value in ("model", "baseline") else value + NASTY
    if isinstance(value, dict):
        return {key: poison(item) for key, item in value.items()}
    return [poison(item) for item in value] if isinstance(value, list) else value


def test_user_text_is_escaped_wherever_it_stands(result: Result, tmp_path: Path) -> None:
    clean, _ = report(result, tmp_path)
    page, text = report(poison(result), tmp_path)
    assert "Where was Hank Aaron born?<script>alert(1)</script>" in page.text
    assert len(page.all("script")) == len(clean.all("script")) == 2
    assert page.all("img") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    html = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))  # a command is shown as code
    assert "<" not in prose


def test_nothing_is_loaded_and_only_the_own_script_may_run(result: Result, tmp_path: Path) -> None:
    page, _ = report(result, tmp_path)
    html = (tmp_path / "report.html").read_text()
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "url(" not in html
    assert "@import" not in html
    assert "http:" not in html
    assert "https:" not in html
    policy = next(meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy["content"])
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", str(policy["content"]))


def test_the_policy_names_the_script_that_stands_in_the_page(result: Result, tmp_path: Path) -> None:
    import base64
    import hashlib

    html = write_report(result, tmp_path).read_text()
    script = html.rsplit("<script>", 1)[1].split("</script>")[0]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in html


def test_the_page_is_accessible(result: Result, tmp_path: Path) -> None:
    page, _ = report(result, tmp_path)
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert len(page.all("h1")) == len(page.all("title")) == len(page.all("main")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") == "true" for svg in page.all("svg"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [section.get("aria-labelledby") for section in page.all("section")]
    assert set(labelled) <= set(ids)


def test_every_head_can_be_chosen_without_the_script(result: Result, tmp_path: Path) -> None:
    page, _ = report(result, tmp_path)
    html = (tmp_path / "report.html").read_text()
    picks = [item for item in page.all("input") if item.get("type") == "radio"]
    assert len(picks) == 24
    assert len([item for item in picks if "checked" in item]) == 1
    names = {str(item["id"]) for item in picks}
    assert {label.get("for") for label in page.all("label")} == names
    assert {str(use["href"]) for use in page.all("use")} == {f"#{name.replace('pick', 'cells')}" for name in names}
    assert all(f"#{name}:checked ~ .panels" in html for name in names)


@pytest.mark.parametrize("attention", [None, {"question": "q", "answer": "a", "tokens": [], "patterns": []}])
def test_a_mechanism_without_patterns_has_no_attention_part(
    result: Result, tmp_path: Path, attention: Result | None
) -> None:
    assert "attention of one answer" in " ".join(report(result, tmp_path)[0].text.split())
    result["attention"] = attention
    page, text = report(result, tmp_path)
    assert "attention of one answer" not in page.text
    assert "attention of one answer" not in text
    assert len(page.all("script")) == 1


def test_a_layer_without_weights_over_tokens_is_left_out_and_named(result: Result, tmp_path: Path) -> None:
    result["attention"]["patterns"][0] = []
    page, text = report(result, tmp_path)
    for shown in (page.text, text):
        assert "Layer 1 left out: no weights of tokens on tokens there." in " ".join(shown.split())


def test_rows_that_do_not_add_up_are_not_said_to(result: Result, tmp_path: Path) -> None:
    assert "adds up to 100 %" in report(result, tmp_path)[0].text
    result["attention"]["patterns"][1][2][3][0] += 0.2
    assert "adds up to 100 %" not in report(result, tmp_path)[0].text


def test_an_exam_without_answers_shows_predictions_only(result: Result, tmp_path: Path) -> None:
    for row in result["rows"]:
        for key in ("correct", "accuracy", "low", "high"):
            del row[key]
    result["answers"] = {"right": [], "wrong": []}
    page, text = report(result, tmp_path)
    assert "nothing is scored" in page.text
    assert "pretrained only what pretrained only means 750 Chicago 3.1 % 5 min 00 s" in page.text
    assert "Accuracy" not in page.text + text
    assert "| pretrained only | 750 | Chicago 3.1 % | 5 min 00 s |" in text
    assert "Bar chart" not in (tmp_path / "report.html").read_text()


def test_a_quick_run_says_so(result: Result, tmp_path: Path) -> None:
    assert "quick run" not in report(result, tmp_path)[0].text
    result["world"]["quick"] = True
    page, text = report(result, tmp_path)
    assert "A quick run." in page.text
    assert "A quick run." in text


def test_the_least_result_is_enough(result: Result, tmp_path: Path) -> None:
    result |= {"rows": [], "runs": {}, "answers": {"right": [], "wrong": []}, "attention": None, "environment": {}}
    del result["world"]["quick"]
    page, text = report(result, tmp_path)
    assert "No model was examined." in page.text
    assert "No model was examined." in text


def test_half_a_surrogate_does_not_stop_the_report(result: Result, tmp_path: Path) -> None:
    result["answers"]["wrong"][0]["prediction"] = "a\ud800b"
    assert "a?b" in report(result, tmp_path)[0].text


def test_a_large_result_makes_a_small_page(long_result: Result, tmp_path: Path) -> None:
    path = write_report(long_result, tmp_path)
    assert path.stat().st_size < 1_000_000
