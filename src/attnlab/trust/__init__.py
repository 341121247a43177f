"""How far to trust an answer: a calibrated confidence, the corpus line it should come from, and a verdict on both.

    attnlab.calibrate("runs/recall-1", attnlab.load_questions("people:calibration"))    # once
    attnlab.ask("runs/recall-1", "Where was Hank Aaron born?").words

    training_data   questions and corpus of a run, the possible answers, and the forms of questions
    answers         the exact probability of every possible answer, and of having read about a name
    calibrating     the map from scores to probabilities, from held-out questions, stored in the run
    verdict         pure functions: from a confidence and the line to a verdict
    asking          all of it together, for one question or many

It judges answers and trains nothing: stages trains models, stats has the rules, corpora the lines.
"""

from attnlab.trust.asking import Answer, Neighbour, Oracle, ask
from attnlab.trust.calibrating import Calibrated, CalibrationSummary, Row, calibrate, calibration_of, usual_questions
from attnlab.trust.verdict import VERDICTS, Judgement, judge
