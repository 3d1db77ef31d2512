"""Varied English sentences from a small grammar whose words cover every English phoneme."""

import random
import re

TEMPLATES = (
    "{determiner} {adjective} {person} {did} {determiner} {thing} {place}.",
    "{name} {did} {number} {adjective} {things} {time}.",
    "{time}, {name} and {determiner} {person} {went} {place}.",
    "{determiner} {person} {went} {place} with {number} {things}.",
    "{name} {said} that {determiner} {adjective} {thing} was {place}.",
    "Why did {name} {do} {determiner} {adjective} {thing} {time}?",
    "Please {do} {determiner} {thing}, or {name} will {do} the {things}.",
    "{determiner} {thing} {place} was {quality}, but {determiner} {person} {did} it.",
    "{number} {things} were {quality} {time}.",
    "Could {determiner} {adjective} {person} {do} these {things} {place}?",
    "{name} would rather {do} {determiner} {thing} than {do} {number} {things}.",
    "Nobody {said} how {quality} {determiner} {adjective} {thing} was.",
    "There are {number} {adjective} {things} {place}.",
    "{name} {went} away when {determiner} {person} {did} the {adjective} {thing}.",
)

_LISTS = {
    "determiner": "the, a, my, your, their, his, her, our, this, that, every, another",
    "name": (
        "Amy, George, Joyce, Judith, Hugh, Ruth, Zoe, Howard, Charlotte, Roy, Theo, Yasmin, Oliver, Shirley, Vaughan, "
        "Beth, Ian, Claire, Doug, Angus, Maud, Keith, Faith, Boyd"
    ),
    "person": (
        "teacher, boy, girl, judge, farmer, neighbour, cook, doctor, child, uncle, singer, nurse, captain, author, "
        "brother, mother, visitor, butcher, youth, engineer, artist, soldier, thief, mayor, king, queen, sailor, "
        "lawyer, hiker"
    ),
    "thing": (
        "measure, treasure, garage, book, coin, bottle, button, chair, bridge, camera, window, jar, path, cloth, "
        "vision, beach, hedge, yacht, engine, orange, onion, feather, mirror, pillow, cushion, sugar, bowl, voice, "
        "toy, cow, house, fire, church, badge, shawl, leather, anchor, finger, letter, ladder, cube, wheel, vase, "
        "zebra, thumb, yoghurt, guitar, pear, beard, tower"
    ),
    "things": (
        "measures, treasures, books, coins, bottles, buttons, chairs, bridges, windows, jars, paths, beaches, hedges, "
        "engines, oranges, onions, feathers, mirrors, cushions, bowls, voices, toys, cows, houses, fires, badges, "
        "anchors, fingers, letters, cubes, wheels, thumbs, guitars, pears, clouds, wings, matches, leaves, shoes, "
        "eggs, boats, maps, cakes, wolves"
    ),
    "adjective": (
        "old, young, quick, loud, thick, smooth, usual, good, wooden, noisy, huge, yellow, pure, rare, weird, brown, "
        "royal, rough, cheap, strange, early, warm, thirsty, foolish, orange, ancient, clear, tiny, sharp, vague, "
        "heavy, shiny, cloudy, joyful, northern, beige, awful, gentle"
    ),
    "quality": (
        "good, bad, pure, loud, rare, cheap, beautiful, missing, broken, useful, soft, thick, enjoyable, unusual, "
        "hidden, charming, sour, poor, smooth, weird, ruined, fair"
    ),
    "did": (
        "measured, took, found, pushed, caught, heard, saw, watched, chose, bought, threw, pulled, fixed, joined, "
        "shook, used, judged, followed, hid, brought, cleaned, moved, noticed, destroyed, shared, touched"
    ),
    "do": (
        "measure, take, find, push, catch, hear, see, watch, choose, buy, throw, pull, fix, join, shake, use, judge, "
        "follow, hide, bring, clean, move, notice, destroy, share, touch"
    ),
    "went": "walked, ran, hurried, drove, travelled, rushed, jumped, marched, strolled, vanished, rode, sailed",
    "said": "said, thought, knew, argued, shouted, whispered, explained, agreed, noticed, showed",
    "number": (
        "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, thirty, fourteen, a hundred"
    ),
    "place": (
        "by the river, in the kitchen, under the bridge, near the church, behind the house, on the beach, at the "
        "station, outside the theatre, above the clouds, through the woods, around the garage, across the square, "
        "beyond the hills, over the moor, between the jars, along the path"
    ),
    "time": (
        "this morning, yesterday, on Thursday, before lunch, at noon, after the show, last year, every hour, in July, "
        "one evening, as usual, long ago, on Wednesday, without a pause"
    ),
}
WORDS = {field: words.split(", ") for field, words in _LISTS.items()}


def sentences(count: int, seed: int) -> list[str]:
    """Return `count` different sentences; a larger count with the same seed only adds to the end."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[_fill(generator)] = None
    return list(found)


def _fill(generator: random.Random) -> str:
    template = generator.choice(TEMPLATES)
    text = re.sub(r"\{(\w+)\}", lambda field: generator.choice(WORDS[field[1]]), template)
    text = re.sub(r"\ba (?=[aeiou])(?!us|uni)", "an ", text)
    return text[0].upper() + text[1:]
