"""Commands that test what a model has learned: evaluate, score, ask, calibrate, generate, look."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from attnlab.cli.common import MEASURE, app, console, errors, output_folder, say, show_json
from attnlab.errors import UserError
from attnlab.machine import require_single_process
from attnlab.store.folders import refuse_existing, write_folder
from attnlab.store.records import encode
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.options import about, at_least_one, default

if TYPE_CHECKING:
    from attnlab.inside.contributions import Measured
    from attnlab.lm.model import LanguageModel
    from attnlab.lm.perplexity import SentenceLosses
    from attnlab.lm.tokenizers import Tokenizer
    from attnlab.trust import Answer, CalibrationSummary


@app.command(group=MEASURE)
def evaluate(
    folder: opt.Folder,
    /,
    *,
    exam: Annotated[opt.Exam | None, about("Test questions, with or without answers."), default("people:test")] = None,
    corpus: Annotated[str | None, about("Text to measure on, one sentence per line: a file, or prose:dev.")] = None,
    probe: opt.Probe = (),
    spaces: Annotated[bool, about("Split text into words at spaces only, as in the course reports.")] = False,
    length: Annotated[opt.Whole | None, about("Longest text in tokens."), default("as in training")] = None,
    out: Annotated[opt.Out | None, default("runs/evaluate-N")] = None,
    device: opt.Device = "auto",
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Test a run on questions, or measure its loss on text.

    Questions: greedy answers, exact match, one prediction per line in OUT/predictions.txt.
    Text (--corpus): the loss of each sentence in OUT/losses.csv, and two perplexities: the mean over
    sentences of exp(mean loss), as in the course reports, and exp(mean loss of all tokens).
    A run of running text (task text) is measured in windows, as in validation. With --length, windows
    and sentences may be longer than the block, if positions and mechanism allow it.
    """
    asks = corpus is None and not probe
    if not asks and exam is not None:
        raise UserError("--exam asks questions, --corpus and --probe measure text: give one, then the other")
    if asks and spaces:
        raise UserError("--spaces splits the text of --corpus and --probe: give one of them")
    if asks and length is not None:
        raise UserError("--length is that of the text of --corpus and --probe: give one of them")
    from attnlab import corpora
    from attnlab.lm.devices import choose_device
    from attnlab.lm.evaluate import examine
    from attnlab.lm.model import load_model

    if asks and exam is None and Run.open(folder).record.running_text:
        raise UserError(f"{folder} was trained on running text, not on questions: measure it with --corpus FILE")
    target = output_folder(out, "evaluate", "an evaluation")
    model, tokenizer = load_model(folder, trust_code=trust_code, device=choose_device(device))
    summary: dict[str, Any] = {"run": str(folder)}
    if asks:
        exam = "people:test" if exam is None else exam
        examination = examine(model, tokenizer, corpora.load_questions(exam))
        result = examination.score()
        summary |= {"exam": exam, **vars(result)}
        files = {"predictions.txt": examination.lines()}
        lines = [result.sentence(), result.commonest_words(), f"predictions: {target / 'predictions.txt'}"]
    else:
        measured, files, lines = _measure(Run.open(folder), model, tokenizer, corpus, probe, spaces, length)
        summary |= measured
        lines += [f"written: {target}"]
    write_folder(target, "evaluation", {**files, "result.json": encode(summary)}, about="an evaluation")
    if json:
        show_json({**summary, "out": str(target)})
        return
    say(*lines)


@app.command(group=MEASURE)
def score(
    exam: Annotated[opt.Exam, about("Test questions with answers: a file, or people:test.")],
    /,
    *predictions: Annotated[Path, about("Files of one prediction per line, in the order of the questions.")],
    always: Annotated[list[str] | None, about("Score this constant answer too; repeatable.")] = None,
    all_pairs: Annotated[bool, about("Test every pair, not only each against the first.")] = False,
    out: Annotated[opt.Out | None, about("Folder to write a report to; must not exist.")] = None,
    json: opt.Json = False,
) -> None:
    """Score files of predictions, of any program, and test them against each other.

    Answers must match exactly, but for spaces around them. Several files are compared question by
    question, by McNemar's exact test, with Holm's correction if there are several pairs.
    """
    from attnlab.lm import exams
    from attnlab.report import FORMATS, write_document
    from attnlab.report.parts import score_document

    if out is not None:
        refuse_existing(out)
    scores = exams.score(exam, *predictions, always=always or (), all_pairs=all_pairs)
    if out is not None:
        write_document(score_document(scores, opt.typed_command()), out, FORMATS)
    if json:
        show_json({**vars(scores), "out": None if out is None else str(out)})
        return
    say(*scores.lines(), *([f"written: {out}"] if out is not None else []))


def _measure(
    run: Run,
    model: LanguageModel,
    tokenizer: Tokenizer,
    corpus: str | None,
    probes: Sequence[str],
    spaces: bool,
    length: int | None,
) -> tuple[dict[str, Any], dict[str, bytes], list[str]]:
    """Measure the loss on a corpus and on probes: the figures, the files to write, and what to print."""
    from attnlab import corpora
    from attnlab.lm import perplexity

    if spaces and not tokenizer.words:
        raise UserError(f"{run.path} reads pieces or characters, which have no splitter: leave out --spaces")
    if length is not None and length < 2:
        raise UserError(f"--length must be at least 2, not {length}")
    if length is not None and length > model.longest:
        raise UserError(f"this model reads at most {model.longest} tokens: give no larger --length")
    task = run.record.task
    reading: dict[str, Any] = {"longest": length or task.longest, "padded": task.padded, "spaces": spaces}
    summary: dict[str, Any] = {"corpus": corpus, **reading}
    files, lines = {}, []
    if corpus is not None:
        text = perplexity.text_for(run, corpus)
        measured = perplexity.losses_on(run, model, tokenizer, text, length or 0, spaces)
        counted = measured.summary()
        if isinstance(text, corpora.Corpus):
            read, what = text.lines, "these sentences"
        else:
            read = tuple(text.each_line())
            what, counted["windows"] = f"its {len(read):,} lines", counted.pop("sentences")
            del counted["sentence_perplexity"]
        seen = perplexity.count_seen_lines(run, read, tokenizer)
        summary |= {"sha256": text.sha256, "seen": seen, **counted}
        files["losses.csv"] = measured.to_csv()
        lines = _measured_in_words(measured, counted)
        lines += [f"({seen:,} of {what} were in its training text)"] if seen else []
    reading["ended"] = not run.record.running_text  # a sentence does not end a document
    summary["probes"] = perplexity.probe(model, tokenizer, probes or perplexity.PROBES, **reading)
    for row in summary["probes"]:
        lines.append(f"loss {row.loss:6.3f}  perplexity {row.perplexity:10,.1f}  {row.sentence}")
    return summary, files, lines


def _measured_in_words(measured: SentenceLosses, counted: Mapping[str, float]) -> list[str]:
    """The losses of sentences, or of the windows of running text."""
    of = f"{counted['tokens']:,} tokens ({100 * counted['unknown_share']:.1f} % unknown): loss {measured.loss:.3f}"
    per_token = f"token perplexity     {measured.token_perplexity:10,.1f}   exp(mean loss per token)"
    if "windows" in counted:
        windows = "1 window" if counted["windows"] == 1 else f"{counted['windows']:,} windows"
        return [f"{windows} of running text, as in validation, {of}", per_token]
    per_sentence = f"sentence perplexity  {measured.sentence_perplexity:10,.1f}   mean of exp(mean loss per sentence)"
    return [f"{counted['sentences']:,} sentences, {of}", per_token, per_sentence]


@app.command(group=MEASURE)
def ask(
    folder: opt.Folder,
    question: Annotated[
        str | None, about("Question, phrased like the training questions."), default("one per line of the input")
    ] = None,
    /,
    *,
    max_risk: opt.MaxRisk = 0.1,
    explain: Annotated[bool, about("Show the reasons, the likeliest answers and the guarantee.")] = False,
    top: Annotated[opt.Whole, about("Number of likeliest answers.")] = 5,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Ask a run questions: an answer with a verdict and its source, or no answer.

    recalled and supported  confident, and the line it read about the name says so
    inferred                confident; the line does not say so, and names no other answer of that kind
    contradicts its source  confident; the line does not say so, and names another
    guess                   not confident enough for the allowed risk
    never seen              no line that it read is about the name

    After `attnlab calibrate` it answers only if the risk is at most --max-risk. Without a question it
    asks for them, one per line, until Ctrl-D.
    """
    at_least_one("top", top)
    from attnlab.stats.checks import check_level
    from attnlab.trust.asking import Oracle, checked_question

    questions = lines_of_input("question> ") if question is None else [checked_question(question)]
    check_level(max_risk, "--max-risk")
    oracle = Oracle(folder, trust_code=trust_code)
    advice = "" if oracle.calibration or explain or json else f"note: {oracle.guarantee(max_risk)}"
    if question is None and sys.stdin.isatty():
        say("ask questions, one per line; Ctrl-D ends")
    for asked in questions:
        try:
            _show_answer(oracle.answer(asked, max_risk, top), explain, json)
            if advice:
                errors.print(advice, soft_wrap=True, highlight=False)
                advice = ""
        except UserError as error:
            if question is not None:
                raise
            errors.print(f"attnlab: {error}", soft_wrap=True, highlight=False)


def lines_of_input(prompt: str) -> Iterator[str]:
    """Yield the lines of standard input that are not blank, after a prompt if it is a terminal."""
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401  (input() then has a history)
    while True:
        try:
            line = input(prompt if typed else "")
        except EOFError:
            if typed:
                say("")
            return
        if line.strip():
            yield line


def _show_answer(answer: Answer, explain: bool, json: bool) -> None:
    from attnlab.trust.verdict import UNSEEN, percent

    if json:
        likeliest = [{"answer": text, "probability": share} for text, share in answer.alternatives]
        documents = list(answer.lines) if answer.looked_up else None
        show_json({**asdict(answer), "answers": likeliest, "documents": documents})
        return
    say(answer.words)
    if not explain:
        return
    say(*(f"  {reason}" for reason in answer.reasons))
    if answer.nearest:
        say("  the most similar names that it knows, and its answers for them:")
        for match in answer.nearest:
            say(f"  {100 * match.similarity:5.0f} %  {match.name}" + (f": {match.answer}" if match.answer else ""))
    if answer.verdict != UNSEEN:
        say("likeliest:", *(f"{percent(share):>9}  {text}" for text, share in answer.alternatives))
        rest = max(0.0, 1 - sum(share for _, share in answer.alternatives))
        say(f"{percent(rest):>9}  (anything else, or nothing)")
    if answer.rule not in answer.reasons:
        say(answer.rule)


@app.command(group=MEASURE)
def calibrate(
    folder: opt.Folder,
    /,
    *,
    questions: Annotated[
        str | None, about("Held-out questions, QUESTION<TAB>ANSWER per line."), default("people:calibration")
    ] = None,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Measure how far a run's confidence can be trusted, for `attnlab ask`.

    Takes a few hundred questions that the run was not trained on, about names that it read; of
    several about one name it uses one. They turn its confidence into probabilities and certify
    thresholds. The result is stored in the run.
    """
    from attnlab import corpora, trust

    require_single_process("a calibration")
    opened = Run.open(folder)
    source = questions or trust.usual_questions(opened)
    summary = trust.calibrate(opened, corpora.load_questions(source), trust_code=trust_code).summary()
    if json:
        show_json({"run": str(folder), "source": source, **vars(summary)})
        return
    _show_calibration(summary)
    say(f"\nstored in the run; ask it: attnlab ask {shlex.quote(str(folder))}")


def _show_calibration(summary: CalibrationSummary) -> None:
    right, low, high = (100 * share for share in (summary.accuracy, summary.low, summary.high))
    say(
        f"{summary.questions:,} questions that it was not trained on, {summary.candidates:,} answers to choose"
        f" from: {right:.1f} % right (95 % interval {low:.1f} to {high:.1f} %)"
    )
    say(f"answering everything would be wrong in {100 - right:.1f} %")
    if summary.strangers:
        say(f"left out: {summary.strangers:,} about names that no line it read is about")
    if summary.repeated:
        say(f"left out: {summary.repeated:,} further questions about the same names")
    before, after, perfect = (100 * ece for ece in (summary.ece_before, summary.ece_after, summary.ece_if_calibrated))
    say(
        f"calibration error {before:.1f} % before, {after:.1f} % after, on other questions than the fit"
        f" (about {perfect:.1f} % by chance if calibrated perfectly)"
    )
    if area := summary.auroc:
        span = f" ({area.low:.3f} to {area.high:.3f})" if area.low is not None else ""
        say(f"confidence separates right from wrong answers with AUROC {area.value:.3f}{span}, where 0.5 is chance")
    say(*(f"\n{rule.words}" for rule in summary.rules))


@app.command(group=MEASURE)
def generate(
    folder: opt.Folder,
    prompt: Annotated[str, about("Start of the texts; models of words or of running text need none.")] = "",
    /,
    *,
    n: Annotated[opt.Whole | None, about("Number of texts."), default("5; 1 at temperature 0")] = None,
    temperature: Annotated[
        float | None, about("Sampling temperature; 0 takes the likeliest token."), default("0.8")
    ] = None,
    top_k: Annotated[opt.Whole, about("Number of likeliest tokens to sample from; 0: all.")] = 0,
    top_p: Annotated[float, about("Total probability of the likeliest tokens to sample from.")] = 1.0,
    beams: Annotated[opt.Whole, about("Texts that a beam search keeps; 0: sample.")] = 0,
    length_penalty: Annotated[float, about("Rank beams by log probability / tokens^this.")] = 0.0,
    seed: opt.Seed = 0,
    max_new_tokens: Annotated[opt.Whole, about("Maximum new tokens per text.")] = 100,
    device: opt.Device = "auto",
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Sample texts from a run's model, or find likely ones by beam search.

    Prints their repetition (seq-rep-4: the share of 4-grams of words that occurred before in the same
    text) and diversity (distinct-2: the share of distinct pairs of words in all texts) below them.
    """
    n = (1 if temperature == 0 else 5) if n is None else n  # at temperature 0 all texts are the same
    at_least_one("n", n)
    at_least_one("max-new-tokens", max_new_tokens)
    if beams and (temperature is not None or top_k or top_p != 1):
        raise UserError("--beams does not sample: leave out --temperature, --top-k and --top-p")
    if length_penalty and not beams:
        raise UserError("--length-penalty ranks the texts of a beam search: give --beams, such as 4")
    from attnlab.lm import decoding
    from attnlab.lm.devices import choose_device
    from attnlab.lm.model import load_model
    from attnlab.report.words import plural

    model, tokenizer = load_model(folder, trust_code=trust_code, device=choose_device(device))
    settings: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty}
    ranked: list[decoding.Beam] = []
    if beams:
        ranked = decoding.beam_search(model, tokenizer, prompt, n, limit=max_new_tokens, **settings)
        texts = [beam.text for beam in ranked]
    else:
        settings = {
            "temperature": 0.8 if temperature is None else temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
        }
        texts = decoding.sample(model, tokenizer, prompt, n, limit=max_new_tokens, **settings)
    variety = decoding.variety(texts, prompt)
    if json:
        scores = {name: [getattr(beam, name) for beam in ranked] for name in ("score", "log_probability", "tokens")}
        shown = {**vars(variety), **(scores if beams else {})}
        show_json({"run": str(folder), "prompt": prompt, **settings, "samples": texts, **shown})
        return
    notes = [f"  (log probability {beam.log_probability:.2f}, {plural(beam.tokens, 'token')})" for beam in ranked]
    say(*(text + note for text, note in zip_longest(texts, notes, fillvalue="")), f"\n{variety}")


@app.command(group=MEASURE)
def look(
    folder: opt.Folder,
    text: Annotated[str, about("Text to read; the symbols ⁇ and □ stand for themselves.")] = "",
    /,
    *,
    question: Annotated[
        bool | None,
        about("Ask TEXT as a question, as in training."),
        default("if it ends in ?"),
        Parameter(negative="--no-question"),
    ] = None,
    heads: Annotated[bool, about("Score what every head does; without TEXT, on repeated random tokens.")] = False,
    ablate: Annotated[bool, about("Switch off every head in turn; with --exam or --corpus.")] = False,
    exam: Annotated[opt.Exam | None, about("Questions with answers, for --ablate: a file, or people:dev.")] = None,
    corpus: Annotated[str | None, about("Text for --ablate: sentences, one per line, or running text.")] = None,
    out: Annotated[opt.Out | None, default("runs/look-N")] = None,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Show what every head attends to as a model reads a text.

    Writes OUT/look.html and OUT/patterns.png. With --heads every head is scored for averaging,
    copying, previous token, same token, induction and beginning of text: OUT/heads.png. With --ablate
    every head is switched off in turn, and right answers or perplexity are measured without it.
    """
    from attnlab import corpora
    from attnlab.inside.contributions import head_contributions
    from attnlab.inside.heads import score_heads
    from attnlab.inside.look import View, look
    from attnlab.lm import evaluate, perplexity
    from attnlab.lm.model import load_model
    from attnlab.report.screen import show
    from attnlab.report.words import quoted

    if ablate != ((exam is None) != (corpus is None)) or (ablate and (text or question or heads)):
        raise UserError("--ablate takes --exam QUESTIONS or --corpus TEXT, and neither a text nor --heads")
    if not text and not ablate and (question or not heads):
        raise UserError("there is no text to read: write some, or score heads on random tokens with --heads alone")
    opened, target = Run.open(folder), output_folder(out, "look", "a look")
    if question is None:
        question = text.rstrip().endswith("?") and opened.record.task.tested == "answers"
        if question:
            errors.print("note: read as a question, as in training; --no-question reads it as text", soft_wrap=True)
    loaded = load_model(opened.model, trust_code=trust_code)
    flags = [name for name, value in (("--question", question), ("--heads", heads), ("--ablate", ablate)) if value]
    flags += [word for name, value in (("--exam", exam), ("--corpus", corpus)) if value for word in (name, value)]
    command = shlex.join(["attnlab", "look", str(folder), *([text] if text else []), *flags])
    if ablate:
        if exam is not None:
            measure: Callable[[], Measured] = partial(evaluate.examine, *loaded, corpora.load_questions(exam))
        else:
            measure = partial(perplexity.losses_on, opened, *loaded, perplexity.text_for(opened, str(corpus)))
        view: Any = head_contributions(loaded[0], measure)
    elif heads:
        view = score_heads(*loaded, text or None, question=question)
    else:
        view = look(*loaded, text, question=question)
    write_folder(target, "look", view.files(str(folder), command), about="attention weights")
    page, picture = target / "look.html", target / ("heads.png" if heads or ablate else "patterns.png")
    if json:
        show_json({"run": str(folder), **vars(view.record()), "page": str(page), "picture": str(picture)})
        return
    if isinstance(view, View):
        say(*(f"{100 * guess.probability:5.1f} %  {quoted(guess.token)}" for guess in view.next))
        if unread := [str(number) for number, layer in enumerate(view.layers, start=1) if layer.kind == "influence"]:
            say(f"(no pattern in layer {', '.join(unread)}: its influence is shown instead)")
        say(*filter(None, [view.legend]))
    else:
        show(view.document(str(folder), command), console)
    say(f"page: {page}", f"picture: {picture}")
