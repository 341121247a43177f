"""Text and questions, built-in or the user's own. Knows nothing about tokens, models or results."""

from attnlab.corpora.files import Question, read_predictions
from attnlab.corpora.library import Corpus, documents_about, open_book, title_of
from attnlab.corpora.running import RunningText, open_text
from attnlab.corpora.sources import (
    as_table,
    export,
    has_questions,
    is_built_in,
    load_corpus,
    load_questions,
    training_text,
)
