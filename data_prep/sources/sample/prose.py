"""Plain prose: short tales put together from a grammar, with a thread that runs through each."""

# ruff: noqa: SIM905 - word lists are easier to read and extend as one string

from collections.abc import Iterator
from random import Random

PEOPLE = {
    "she": (
        "Agnes Bettina Cecily Dorothea Elin Frida Gudrun Hester Imke Judith Katrin Lisbet Marta "
        "Nell Ottilie Petra Ragna Sunniva Tilda Ulla"
    ).split(),
    "he": (
        "Anselm Bram Casper Dirk Eskil Fabian Gerrit Henning Isak Jasper Knut Lukas Matthis Niels "
        "Osric Piet Rasmus Sander Tjark Wim"
    ).split(),
}
THEIR = {"she": "her", "he": "his"}
THEM = {"she": "her", "he": "him"}

TRADES = (
    "baker,beekeeper,bell ringer,carpenter,carter,clerk,cooper,ferryman,fiddler,gardener,"
    "glazier,lamplighter,locksmith,map maker,midwife,miller,net mender,postman,potter,roofer,"
    "sailmaker,schoolmaster,shepherd,surveyor,tailor,thatcher,watchman,weaver,well digger"
).split(",")
THINGS = (
    "bag of salt,bell,book of songs,box of seeds,brass key,clay whistle,coil of rope,compass,"
    "copper kettle,fiddle,folded map,glass bead,grey hat,hammer,jar of honey,ladder,lantern,"
    "letter,mirror,pair of boots,pocket watch,quill,ring,sack of flour,scarf,silver thimble,"
    "small drum,telescope,tin of nails,walking stick,wooden horse,wool blanket"
).split(",")
PLACES = (
    "abandoned chapel,boat house,bridge,cattle market,coach house,crossroads,edge of the wood,"
    "fish hall,gatehouse,harbour wall,hill above the town,inn by the ford,low meadow,mill pond,"
    "old lighthouse,orchard wall,quarry,rope walk,salt works,schoolhouse,stable yard,tannery,"
    "toll gate,tower stairs,vineyard,washing place,weir,wheelwright's yard"
).split(",")
WEATHER = (
    "a cold wind came down from the hills,a thin rain was falling,fog lay on the river,"
    "frost had whitened the roofs,it had snowed all night,the air smelled of hay,"
    "the clouds hung low,the first warm day had come,the heat stood between the houses,"
    "the leaves had begun to fall,the moon was nearly full,the roads were deep in mud,"
    "the sky was clear as glass,the storm had just passed,thunder could be heard far off"
).split(",")
DAYS = (
    "Early one morning,In the last week of autumn,Late in the afternoon,On a market day,"
    "On the day before the fair,On the longest day of the year,One evening in spring,"
    "Shortly after midnight,Soon after the harvest,The winter that the well froze,"
    "Toward the end of summer,When the bells had stopped"
).split(",")
MOODS = (
    "as if nothing had happened,gladly,in a low voice,rather slowly,too quickly,"
    "with a laugh,with a shrug,with great care,without a word,without looking up"
).split(",")
OLD = "battered,borrowed,broken,dusty,forgotten,heavy,little,old,painted,plain,precious,worn".split(
    ","
)
SOUNDS = (
    "a dog barked twice,a door banged somewhere,a gull cried,geese passed overhead,"
    "someone was chopping wood,someone was practising scales,the mill wheel creaked,"
    "the river could be heard over the stones,voices came across the water,wheels went by"
).split(",")
REASONS = (
    "because {their} mother had always wished for one,because it had been promised long ago,"
    "because nobody else would do it,because the debt had to be paid,"
    "for the sake of an old friend,in return for a night's lodging,"
    "since {their} own had been lost in the flood,so that the children would have something to see,"
    "to settle a bet,to show that it could be done"
).split(",")
SAYINGS = (
    "A door that is painted is not yet a door that opens,All roads are short to those who sing,"
    "Count the eggs when the hen has gone,He who lends a ladder should hold it,"
    "It is easier to carry than to wait,Nobody was ever late to a house that burned,"
    "One lamp is enough if you know the stairs,The river asks no one for the way,"
    "What is mended twice is known well,You cannot weigh bread while you eat it"
).split(",")

_OPENINGS = [
    "{day}, when {weather}, {name} the {trade} set out for the {place} with a {old} {thing}.",
    "{day} {name}, who was the {trade} of the village, found a {thing} at the {place}.",
    "{name} had been a {trade} for {years} years when a stranger left a {old} {thing} at the door.",
    "There was once a {trade} called {name}, who kept a {thing} in a {old} chest. {day} it was "
    "gone.",
    "{day} {weather}, and {name} the {trade} went to the {place} to sell a {old} {thing}.",
    "Nobody at the {place} knew why {name}, a {trade}, wanted a {thing}. {day} they found out.",
]
_PURPOSES = [
    "{They} wanted to bring it to {friend} the {trade2}, {reason}.",
    "It was meant for {friend}, a {trade2}, {reason}.",
    "{They} had told only {friend} about it, who was a {trade2} and could keep a secret.",
    "The {thing} belonged to {friend}, {their} neighbour, a {trade2} of few words.",
    "{They} would not have parted with the {thing}, had {friend} the {trade2} not asked for it "
    "{mood}.",
]
_WAYS = [
    "The way led past the {place2}, where {sound}.",
    "At the {place2} {they} stopped, because {sound}.",
    "From the {place2} on, {weather2}, and {they} walked faster.",
    "{They} counted {count} steps from the {place2}, then turned back and counted again.",
    "Near the {place2} {they} put the {thing} down, rested a while, and took it up {mood}.",
    "Halfway, {sound}; {they} held the {thing} close and went on.",
    "{Weather2}. At the {place2} there was no one, only a {old2} {thing2} on a bench.",
    "A child at the {place2} asked what {they} had there, and {they} answered {mood}.",
]
_TROUBLES = [
    "Then {they} saw that the {thing} was cracked.",
    "But the gate was locked, and the key hung on the wrong side.",
    "There the road ended, for the bridge had been taken away in the night.",
    "A man stepped out and said that the {thing} was his, and that he could prove it.",
    "When {they} reached for the {thing}, it was not there any more.",
    "{They} had forgotten one thing: {friend} had moved to the {place2} {years} years ago.",
]
_TALKS = [
    '"What do you want for it?" asked {friend}. "{saying}," said {name} {mood}.',
    '"You are late," said {friend}. "{saying}," {name} answered. "And the mud was deep."',
    '{friend} looked at the {thing} {mood}. "{saying}," {they2} said at last.',
    '"My grandmother used to say: {saying}," said {friend}, and {they2} made room on the bench.',
    '"Take the {thing2} instead," said {friend} {mood}. "It has been here for {years} years."',
    '{name} explained it all, from the {place} to the {place2}. "{saying}," was all that {friend} '
    "said.",
]
_TURNS = [
    "So they went together to the {place2}, and on the way {sound}.",
    "They lit a lamp, sat down, and looked at the {thing} for a long time.",
    "In the end {friend} gave {them} a {old2} {thing2} for it, and both thought it a good bargain.",
    "That night {they} slept at the {place2}, with the {thing} under {their} head.",
    "{friend} fetched a {thing2}, and with it they had the matter put right within the hour.",
    "They shook hands on it, {mood}, and {friend} the {trade2} wrote the day on the wall.",
]
_ENDINGS = [
    "To this day the {thing} hangs at the {place}, and no {trade} passes without a nod to it.",
    "When {name} came home, {weather2}, and there was light in the window.",
    "{name} never spoke of it again, but at the {place} they still tell how {they} carried the "
    "{thing}.",
    "Since then people say of a {old} {thing} that it has been to the {place2} and back.",
    "And the {thing2}? It stayed with {friend}, who became the best {trade2} that the valley had "
    "known.",
    "{saying}, as they say there; and {name} the {trade} would be the last to deny it.",
]


def tales(random: Random) -> Iterator[str]:
    """Yields tales without end. Each keeps to its people, their pronouns and one thing."""
    while True:
        yield _tale(random)


def _tale(random: Random) -> str:
    they, they2 = random.choice(list(PEOPLE)), random.choice(list(PEOPLE))
    name = random.choice(PEOPLE[they])
    trade, trade2 = random.sample(TRADES, 2)
    thing, thing2 = random.sample(THINGS, 2)
    thread = {
        "name": name,
        "friend": random.choice([other for other in PEOPLE[they2] if other != name]),
        "they": they,
        "they2": they2,
        "their": THEIR[they],
        "them": THEM[they],
        "trade": trade,
        "trade2": trade2,
        "thing": thing,
        "thing2": thing2,
    }
    place, *others = random.sample(PLACES, 5)
    days = random.choice(DAYS)
    patterns = [
        [random.choice(_OPENINGS), random.choice(_PURPOSES), *random.sample(_WAYS, 2)],
        [random.choice(_TROUBLES), *random.sample(_TALKS, random.randint(1, 3))],
        [*random.sample(_TURNS, random.randint(1, 2)), random.choice(_ENDINGS)],
    ]
    paragraphs = []
    for paragraph, place2 in zip(patterns, others, strict=False):
        filled = [
            _fill(pattern, random, thread | {"place": place, "place2": place2, "day": days})
            for pattern in paragraph
        ]
        paragraphs.append(" ".join(filled))
    return "\n".join(paragraphs)


def _fill(pattern: str, random: Random, thread: dict[str, str]) -> str:
    weather, weather2 = random.sample(WEATHER, 2)
    old, old2 = random.sample(OLD, 2)
    values = thread | {
        "weather": weather,
        "weather2": weather2,
        "sound": random.choice(SOUNDS),
        "mood": random.choice(MOODS),
        "old": old,
        "old2": old2,
        "reason": random.choice(REASONS).format(their=thread["their"]),
        "saying": random.choice(SAYINGS),
        "years": str(random.randint(2, 40)),
        "count": str(random.randint(20, 900)),
    }
    values |= {"They": values["they"].capitalize(), "Weather2": weather2[0].upper() + weather2[1:]}
    return pattern.format(**values)
