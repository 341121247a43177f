"""The built-in stories, read again by a parser of their own: facts, articles and pronouns agree in every one of them."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from attnlab.corpora import export, load_corpus, load_questions, stories
from attnlab.corpora.stories import Story, story, with_article
from attnlab.errors import DataError
from attnlab.tasks.guess import guess_task

STORIES = [story(number) for number in range(1500)]
WORDS = tomllib.loads(resources.files("attnlab.corpora").joinpath("data", "stories.toml").read_text(encoding="utf-8"))
GIRLS, BOYS = (set(WORDS[key].replace(",", " ").split()) for key in ("girls", "boys"))
SPOT = r"(?P<spot>(?:in|on|under|behind|beside|between) the [\w' -]+?)(?: and (?:sighed|forgot about it))?[.]"
PUT = re.compile(
    rf"^(?P<who>\w+)\b.*?\b(?:put|placed|left|laid|set|hid) (?:the (?P<thing>[\w -]+?)|it) {SPOT}$", re.MULTILINE
)
PRONOUNS = {"she": "g", "her": "g", "herself": "g", "he": "b", "his": "b", "him": "b", "himself": "b"}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?]) (?=[A-Z\"])", text)


def noun_in(sentence: str, nouns: set[str]) -> str:
    """The first thing of a story that a sentence names."""
    return next(word for word in re.findall(r"[\w-]+", sentence) if word in nouns)


def places(tale: Story) -> dict[str, list[tuple[str, str]]]:
    """Where each thing was put by whom, read from the text alone."""
    read: dict[str, list[tuple[str, str]]] = {thing.noun: [] for thing in tale.things}
    for sentence in sentences(tale.body):
        if match := PUT.match(sentence):
            read[noun_in(sentence, set(read))].append((match["spot"], match["who"]))
    return read


def test_things_stay_where_they_were_put() -> None:
    for tale in STORIES:
        facts = {thing.noun: [(step.spot, step.by) for step in thing.placings] for thing in tale.things}
        assert places(tale) == facts, tale.text
        now: dict[str, str] = {}
        for sentence in sentences(tale.body):
            match = PUT.match(sentence)
            old = re.match(rf"\w+ (?:found|saw) the [\w -]+? {SPOT[:-3]}(?:,| and)", sentence)
            noun = noun_in(sentence, set(facts)) if match else ""
            if old:
                assert old["spot"] == now[noun], tale.text
            if match:
                assert match["spot"] not in now.values(), tale.text
                now[noun] = match["spot"]


def test_the_ending_tells_where_the_first_thing_is() -> None:
    for tale in STORIES:
        assert tale.text == f"{tale.body} {tale.ending}"
        spots = re.findall(
            r"(?:was|found it|found the [\w -]+?) ((?:in|on|under|behind|beside|between) the .+?)\.", tale.ending
        )
        assert spots == [tale.things[0].spot], tale.ending
        if (
            gone := re.search(
                r"(?:looked for|longer|expected)[\w -]*? ((?:in|on|under|behind|beside|between) the .+?)[,.]",
                tale.ending,
            )
        ) and ("looked for" not in gone.group() or "not there" in tale.ending):
            who = tale.characters[0].name
            left = [placing.spot for placing in tale.things[0].placings if placing.by == who]
            assert gone[1] == left[-1] != tale.things[0].spot


def test_places_belong_to_the_setting_and_weather_to_its_side() -> None:
    out, inside = (
        {told.strip() for told in WORDS["sentences"][f"weather_{side}"].split("|")} for side in ("out", "in")
    )
    assert all(any(told & set(sentences(tale.body)) for tale in STORIES) for told in (out, inside))
    changes = [line.split(" =>")[0] for line in WORDS["sentences"]["weather"].strip().splitlines()]
    for tale in STORIES:
        side, spots = WORDS["settings"][tale.setting].split(" | ")
        assert {step.spot for thing in tale.things for step in thing.placings} <= set(spots.split(", "))
        told = set(sentences(tale.body))
        assert not told & (inside if side == "out" else out)
        changed = [
            cause
            for cause in changes
            if cause in tale.text[0].lower() + tale.text[1:] or cause.capitalize() in tale.text
        ]
        assert len(told & (out | inside)) + len(changed) <= 1, tale.text
        assert not changed or side == "out"


def test_names_persist_and_pronouns_are_those_of_the_person_named_last() -> None:
    for tale in STORIES:
        girls = {who.name for who in tale.characters if who.girl}
        names = {who.name for who in tale.characters}
        assert girls <= GIRLS
        assert names - girls <= BOYS
        assert len(names) == len(tale.characters) >= 2
        words = re.findall(r"\w+", tale.text)
        assert {word for word in words if word in GIRLS | BOYS} == names, tale.text
        last = ""
        for word in words:
            last = word if word in names else last
            if kind := PRONOUNS.get(word.lower()):
                assert kind == ("g" if last in girls else "b"), tale.text


def test_articles_agree() -> None:
    spoken_otherwise = {"ukulele", "unicorn", "useful"}
    silent = {"honest", "hourglass"}
    seen = set()
    for tale in STORIES:
        for article, word in re.findall(r"\b([Aa]n?) ([\w-]+)", tale.text):
            vowel = (word[0] in "aeiou" and word not in spoken_otherwise) or word in silent
            assert (article.lower() == "an") == vowel, (article, word)
            seen.add(word)
    assert len(seen) > 300
    assert [with_article(word) for word in ("unusual owl", "hourglass", "ukulele", "old hat")] == [
        "an unusual owl",
        "an hourglass",
        "a ukulele",
        "an old hat",
    ]


def test_words_do_not_get_mixed_up() -> None:
    nouns = [noun for kind in WORDS["things"].values() for noun in kind["nouns"].split(", ")]
    assert len(nouns) == len(set(nouns))
    assert not GIRLS & BOYS
    for tale in STORIES:
        known = {thing.noun for thing in tale.things}
        assert len(known) == len(tale.things) == len({thing.adjective for thing in tale.things})
        for thing in tale.things:
            assert tale.text.count(with_article(thing.phrase)) == 1, tale.text
        for sentence in sentences(tale.body):
            # A thing is only named as a thing: with its article, or by who would like one too.
            for noun in known & set(re.findall(r"[\w-]+", sentence)):
                assert re.search(rf"\b(?:the|a|an) (?:[\w-]+ )?{noun}\b", sentence), sentence


def test_a_story_is_not_told_twice_and_has_enough_words() -> None:
    assert len({tale.text for tale in STORIES}) == len(STORIES)
    # Without names, adjectives and things, too.
    bare = {re.sub(r"\b(?:the|a|an) [\w -]+?\b|\b[A-Z]\w+", "", tale.body) for tale in STORIES}
    assert len(bare) == len(STORIES)
    words = [re.findall(r"[\w'-]+", tale.text.lower()) for tale in STORIES]
    assert len({word for text in words for word in text}) > 2300
    assert max(map(len, words)) < 170
    assert not any(re.search(r"[{}\n]|  |\.\.|=>", tale.text) for tale in STORIES)


def test_questions_are_answered_by_the_story_without_its_ending() -> None:
    asked = stories.questions(STORIES)
    kinds: dict[str, int] = {}
    for tale, item in zip(STORIES, asked, strict=True):
        assert item.question.startswith(f"{tale.body} ")
        question = item.question.removeprefix(f"{tale.body} ")
        noun = noun_in(question, {thing.noun for thing in tale.things})
        read, kind = places(tale)[noun], " ".join(question.split()[:2])
        kinds[kind] = kinds.get(kind, 0) + 1
        owner = next(sentence for sentence in sentences(tale.body) if re.search(rf"\ban? [\w-]+ {noun}\b", sentence))
        answers = {
            "Where is": read[-1][0],
            "Where was": read[0][0],
            "Who put": read[-1][1],
            "Whose is": owner.split()[0],
        }
        assert item.answer == answers[kind], item
        if kind == "Who put":
            assert read[-1][0] in question
    assert set(kinds) == {"Where is", "Where was", "Who put", "Whose is"}
    assert kinds["Where is"] > len(STORIES) / 3


def test_a_story_depends_on_its_seed_and_number_alone() -> None:
    assert load_corpus("stories:200").sha256 == "f3954a81c14152ffdfee3bd5935d0ea13dd2a433eea7d973be4a1022be168ca6"
    assert load_corpus("stories:100").lines == load_corpus("stories:200").lines[:100]
    assert story(5, seed=1) != story(5)
    parts = {part: load_corpus(f"stories:200:{part}").lines for part in ("train", "dev", "test")}
    assert [len(lines) for lines in parts.values()] == [160, 20, 20]
    assert sorted(line for lines in parts.values() for line in lines) == sorted(load_corpus("stories:200").lines)
    dev = load_questions("stories:200:dev")
    assert len(dev) == 20
    assert dev == load_questions("stories:500:dev")[:20]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("stories:9", "there can be 10 to 1,000,000 stories, not 9"),
        ("stories:1000001", "there can be 10 to 1,000,000 stories"),
        ("stories:x4", "unknown built-in data"),
        ("stories:tset", "did you mean stories:test"),
        ("storeis:dev", "did you mean stories:dev"),
    ],
)
def test_mistakes_are_named(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_corpus(source)


def test_a_corpus_of_stories_is_not_a_set_of_questions() -> None:
    with pytest.raises(DataError, match="choose stories:50:train or stories:50:dev or stories:50:test"):
        load_questions("stories:50")
    assert guess_task("stories:50:train").options == {"documents": "lines"}


def test_what_is_exported_is_read_back(tmp_path: Path) -> None:
    export("stories:50", tmp_path / "out")
    for part in ("train", "dev", "test"):
        assert load_corpus(tmp_path / f"out/{part}.txt").sha256 == load_corpus(f"stories:50:{part}").sha256
        assert load_questions(tmp_path / f"out/{part}.tsv") == load_questions(f"stories:50:{part}")
    assert "attnlab" in (tmp_path / "out/LICENSE-DATA.md").read_text(encoding="utf-8")
