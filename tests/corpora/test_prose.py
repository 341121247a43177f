"""The built-in sentences: clean, apart, the same each time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnlab.corpora import export, load_corpus, load_questions, prose
from attnlab.errors import DataError

HELP = """
The "assert" statement
**********************

Assert statements are a convenient way to insert debugging assertions
into a non-
empty program.  In the current version, *expression* is "True" [1], see
Note: this ends with a colon, so it is no sentence:

   assert_stmt ::= "assert" expression ["," expression]

* Use :func:`len` to get the number of items in a list.
* See ``sys`` for what the interpreter knows about itself.

>>> print("This is not a sentence.")
This is not a sentence.

   +------+--------------------------+
   | "x"  | This is a cell of a table. |

   "del x" doesn’t call the method — it only ends the life of a name.
   x = the_value if it is a good one else y[0].
   Short one.
   SEE ALSO THE OTHER ONE.
"""


def test_only_sentences_are_left() -> None:
    sentences = prose.sentences_of(
        [HELP, "Use Len to get the number of items in a list!\n", "It is the end of a text."]
    )
    assert sentences == (
        ("Assert statements are a convenient way to insert debugging assertions into a non-empty program.", 0),
        ("Use len to get the number of items in a list.", 0),
        ("See sys for what the interpreter knows about itself.", 0),
        ("It is the end of a text.", 2),
    )


def test_docstrings_are_told_from_other_strings() -> None:
    source = (
        "USAGE = '''\\\nThis is the text of a program.\n'''\n"
        'def f():  # it\'s a comment with a """ in it\n'
        '    """This is what it does."""\n'
        '    return \'don\\\'t\' + """This is data."""\n'
        "class C:\n    r'''And this is a class.'''\n"
    )
    assert list(prose.docstrings(source)) == ["This is what it does.", "And this is a class."]


def test_parts_share_no_sentence_and_make_up_the_whole() -> None:
    parts = {part: load_corpus(f"prose:{part}").lines for part in ("train", "dev", "test")}
    whole = load_corpus("prose").lines
    bare = {part: {prose.bare(line) for line in lines} for part, lines in parts.items()}
    assert sum(map(len, parts.values())) == len(whole) == len({prose.bare(line) for line in whole})
    assert not bare["train"] & bare["dev"] | bare["train"] & bare["test"] | bare["dev"] & bare["test"]
    assert 0.75 < len(parts["train"]) / len(whole) < 0.85


def test_there_is_enough_of_it_and_it_reads_like_english() -> None:
    lines = load_corpus("prose").lines
    assert 500_000 < sum(map(len, lines)) < 3_000_000
    words = [word for line in lines for word in re.findall(r"[A-Za-z]+", line.lower())]
    assert 0.05 < words.count("the") / len(words) < 0.12
    assert not [line for line in lines if re.search(r">>>|::|`|\*|==|[<>{}\\|]|\n|  ", line)]
    assert all(3 <= len(line.split()) <= 100 for line in lines)
    assert all(line.rstrip("\"')")[-1] in ".!?" for line in lines)


def test_a_number_is_that_of_the_first_sentences() -> None:
    assert load_corpus("prose:2000").lines == load_corpus("prose").lines[:2000]
    assert set(load_corpus("prose:2000:dev").lines) < set(load_corpus("prose:dev").lines)
    with pytest.raises(DataError, match="sentences to choose from, not 10000000: ask for 1 to"):
        load_corpus("prose:10000000")
    with pytest.raises(DataError, match="sentences to choose from, not 0"):
        load_corpus("prose:0")


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="did you mean prose:dev"):
        load_corpus("prose:dve")
    with pytest.raises(DataError, match="did you mean prose"):
        load_corpus("porse")
    with pytest.raises(DataError, match="no questions about them"):
        load_questions("prose:dev")


def test_what_is_exported_is_read_back_with_its_licence(tmp_path: Path) -> None:
    paths = export("prose:300", tmp_path / "out")
    assert sorted(path.name for path in paths) == ["LICENSE-DATA.md", "dev.txt", "test.txt", "train.txt"]
    for part in ("train", "dev", "test"):
        assert load_corpus(tmp_path / "out" / f"{part}.txt").sha256 == load_corpus(f"prose:300:{part}").sha256
    assert "Python Software Foundation" in (tmp_path / "out/LICENSE-DATA.md").read_text(encoding="utf-8")
    with pytest.raises(DataError, match="export prose, which writes all parts"):
        export("prose:dev", tmp_path / "other")
