"""How facts about a town are stated and asked, as patterns over the fields of `Town`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One kind of fact."""

    answer: str
    """Pattern of the short answer."""
    statements: list[str]
    """Patterns of sentences that say it; the first one names the town."""
    questions: list[str]
    """Patterns of the eight ways to ask for it."""
    of_that_town: str = ""
    """How to ask it of a town that is not named; empty where that would give the answer away."""


RIVER = Relation(
    "{river}",
    ["{town} lies on {river}.", "Through {town} runs {river}.", "Its river is {river}."],
    [
        "Which river runs through {town}?",
        "On which river does {town} lie?",
        "What is the river of {town} called?",
        "Name the river at {town}.",
        "If you stand on the bridge of {town}, which river is below you?",
        "The boats of {town} go down which river?",
        "Which river do the people of {town} fish in?",
        "What river would you follow to reach {town}?",
    ],
    "On which river does it lie?",
)
RULER = Relation(
    "{ruler}",
    ["{town} is ruled by {ruler}.", "Its ruler is {ruler}.", "{ruler} rules here."],
    [
        "Who rules {town}?",
        "Who is the ruler of {town}?",
        "By whom is {town} governed?",
        "Whose word is law in {town}?",
        "What is the name of the ruler of {town}?",
        "Who holds the seal of {town}?",
        "In {town}, who collects the taxes?",
        "Name the one who governs {town}.",
    ],
)
CRAFT = Relation(
    "{craft}",
    [
        "{town} is known for {craft}.",
        "Most people here live by {craft}.",
        "The craft of the town is {craft}.",
    ],
    [
        "What craft is {town} known for?",
        "Which craft do the people of {town} live by?",
        "For what work is {town} famous?",
        "What trade would an apprentice learn in {town}?",
        "Name the craft of {town}.",
        "What are the workshops of {town} busy with?",
        "Which trade made {town} rich?",
        "What do the masters of {town} teach?",
    ],
    "What craft is that town known for?",
)
AGE = Relation(
    "{founded}",
    [
        "{town} was founded in {founded}.",
        "Its first stone was laid in {founded}.",
        "The town goes back to the year {founded}.",
    ],
    [
        "When was {town} founded?",
        "In which year was {town} founded?",
        "What year does {town} go back to?",
        "Since when has there been a town called {town}?",
        "Name the year in which {town} began.",
        "In what year was the first stone of {town} laid?",
        "How far back do the records of {town} go?",
        "Which year stands above the gate of {town}?",
    ],
    "When was that town founded?",
)
FESTIVAL = Relation(
    "{festival}",
    [
        "{town} holds its festival in {festival}.",
        "The great festival is in {festival}.",
        "Guests come in {festival}, for the festival.",
    ],
    [
        "In which month does {town} hold its festival?",
        "When is the festival of {town}?",
        "What month should a guest choose to see the festival of {town}?",
        "In what month do they dance in {town}?",
        "Which month is the festive one in {town}?",
        "Name the month of the festival at {town}.",
        "When are the streets of {town} hung with flags?",
        "In which month are the inns of {town} full?",
    ],
    "In which month is its festival?",
)
STONE = Relation(
    "{stone}",
    [
        "The houses of {town} are built of {stone}.",
        "Its walls are of {stone}.",
        "The builders here use {stone}.",
    ],
    [
        "What are the houses of {town} built of?",
        "Of what are the walls of {town}?",
        "Which material do the builders of {town} use?",
        "What do the masons of {town} work with?",
        "Name what {town} is built of.",
        "What was used for the gate of {town}?",
        "What would a wall in {town} be made of?",
        "The towers of {town} are made of what?",
    ],
    "What is it built of?",
)
DISH = Relation(
    "{dish}",
    [
        "In {town} people like {dish} best.",
        "The dish of the town is {dish}.",
        "Every inn serves {dish}.",
    ],
    [
        "What dish is {town} known for?",
        "What do people in {town} like to eat best?",
        "Which dish does every inn in {town} serve?",
        "What would you be given for supper in {town}?",
        "Name the favourite dish of {town}.",
        "What do the cooks of {town} make best?",
        "A guest in {town} should try what?",
        "What is eaten in {town} on holidays?",
    ],
    "Which dish is it known for?",
)
BANNER = Relation(
    "a {banner}",
    [
        "The banner of {town} shows a {banner}.",
        "On its banner stands a {banner}.",
        "A {banner} is the sign of the town.",
    ],
    [
        "What does the banner of {town} show?",
        "What is on the banner of {town}?",
        "Which animal, in which colour, is the sign of {town}?",
        "By what sign does one know a ship from {town}?",
        "What is painted above the gate of {town}?",
        "Name the sign of {town}.",
        "What do the guards of {town} wear on their shields?",
        "What beast stands on the flag of {town}?",
    ],
    "What does its banner show?",
)
RELATIONS = [RIVER, RULER, CRAFT, AGE, FESTIVAL, STONE, DISH, BANNER]
