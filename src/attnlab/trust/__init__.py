"""Did it know, or make it up? A calibrated confidence, the line an answer should have come from, and a verdict on both.

    attnlab.calibrate("runs/recall-1", attnlab.load_questions("people:dev"))    # once, with questions never trained on
    attnlab.ask("runs/recall-1", "Where was Hank Aaron born?").words

    read          what a run has read: its questions, its corpus, the index of it
    candidates    the answers to choose from, and those of one kind
    familiar      whether a name is one that it has read about, by its own account
    calibrating   temperature and confidences on held-out questions, kept beside the model
    verdict       pure: from a confidence and the line to one of a few words
    asking        all of it together, for one question or many

It judges answers, and trains nothing: stages makes models, stats has the rules, corpora the lines.
"""

from attnlab.trust.asking import Answer, Neighbour, Oracle, ask
from attnlab.trust.calibrating import Calibrated, Row, calibrate, calibration_of, usual_questions
from attnlab.trust.verdict import VERDICTS, Judgement, judge

__all__ = [
    "VERDICTS",
    "Answer",
    "Calibrated",
    "Judgement",
    "Neighbour",
    "Oracle",
    "Row",
    "ask",
    "calibrate",
    "calibration_of",
    "judge",
    "usual_questions",
]
