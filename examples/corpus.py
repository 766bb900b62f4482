"""A made-up corpus: short stories from a small grammar, cut into word pieces, made into BERT's examples.

A story has a topic, a hero and a mood, and keeps them from sentence to sentence. That is all there is to
learn: a masked word follows from topic and grammar, whether two texts belong together from topic and hero,
and how a story feels from its adjectives. Nothing is read from anywhere; the same seed, the same stories.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MASKED_SHARE = 0.15

TOPICS = {  # people, things, verbs, places
    "harbour": ("sailor pilot diver", "net rope anchor boat oar", "mend haul lift float", "dock pier bay"),
    "kitchen": ("cook baker guest", "pan spoon bread soup oven", "grill roast salt boil", "pantry cellar"),
    "garden": (
        "farmer keeper walker",
        "seed rake flower fence plum",
        "water plant pick weed",
        "orchard path",
    ),
    "school": (
        "teacher pupil writer",
        "book lesson chalk poem desk",
        "open learn spell print",
        "library hall",
    ),
    "workshop": (
        "smith joiner tinker",
        "hammer nail gear plank lamp",
        "drill weld sand paint",
        "shed yard loft",
    ),
    "theatre": (
        "actor singer dancer",
        "song mask curtain drum flute",
        "perform applaud play act",
        "stage balcony",
    ),
    "market": (
        "seller buyer trader",
        "coin basket apple scarf scale",
        "weigh count offer pack",
        "square stall",
    ),
    "railway": (
        "driver guard porter",
        "train ticket signal trunk rail",
        "load start check repair",
        "station bridge",
    ),
}
MOODS = {
    "gloomy": "sad grim bleak dark cold bitter faint harsh",
    "cheerful": "glad warm bright proud calm fresh kind quick",
}
NAMES = ["anna", "bruno", "clara", "david", "emil", "flora", "hugo", "irene", "jonas", "karin"]
SUFFIXES = ["s", "ed", "ing", "ly"]
SMALL_WORDS = ["the", "one", "and", "then", "while", "near", "in", "with", "always", "."]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Story:
    """What stays the same from one sentence of a story to the next."""

    topic: str
    hero: str
    mood: str

    def sentences(self, rng: random.Random) -> Iterator[str]:
        """The story, sentence by sentence, for as long as one listens."""
        people, things, verbs, places = (words.split() for words in TOPICS[self.topic])
        hero, feelings, pick = self.hero, MOODS[self.mood].split(), rng.choice
        while True:
            person, thing, verb, place, feeling = map(pick, (people, things, verbs, places, feelings))
            yield pick(
                [
                    f"{hero} {verb}ed the {feeling} {thing} near the {place} .",
                    f"the {feeling} {person} {verb}s one {thing} with {hero} .",
                    f"then {hero} and the {person} {feeling}ly {verb} the {thing}s .",
                    f"while {verb}ing {thing}s in the {place} {hero} always {pick(verbs)}s {feeling}ly .",
                ]
            )


class Vocabulary:
    """Word pieces: whole stems, endings marked with ##, and single letters for whatever is left."""

    def __init__(self) -> None:
        stems = sorted({word for topic in TOPICS.values() for words in topic for word in words.split()})
        moods = sorted({word for words in MOODS.values() for word in words.split()})
        words = dict.fromkeys([*SMALL_WORDS, *NAMES, *stems, *moods, *LETTERS])
        endings = dict.fromkeys(["##" + piece for piece in (*SUFFIXES, *LETTERS)])
        self.pieces = [*SPECIAL, *words, *endings]
        self._index = {piece: index for index, piece in enumerate(self.pieces)}
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The numbers of the text's pieces."""
        return [piece for word in text.split() for piece in self._cut(word)]

    def decode(self, pieces: Iterable[int]) -> str:
        """The text that these pieces spell."""
        return " ".join(self.pieces[piece] for piece in pieces if piece != PAD).replace(" ##", "")

    def _cut(self, word: str) -> list[int]:
        """The longest known piece first, as WordPiece does."""
        if word not in self._known:
            self._known[word] = self._longest_first(word)
        return self._known[word]

    def _longest_first(self, word: str) -> list[int]:
        cut: list[int] = []
        start = 0
        while start < len(word):
            marked = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if marked + word[start:end] in self._index), None)
            if end is None:
                return [UNKNOWN]
            cut.append(self._index[marked + word[start:end]])
            start = end
        return cut


Arrays = dict[str, np.ndarray]


class Corpus:
    """Stories as arrays of a fixed length, ready to train on."""

    def __init__(self, seq: int, seed: int) -> None:
        self.seq = seq
        self.vocabulary = Vocabulary()
        self.masked = max(1, round(MASKED_SHARE * seq))
        self._rng = random.Random(seed)

    def pretraining(self, count: int) -> tuple[Arrays, Arrays, Arrays]:
        """Pairs of texts with masked pieces: the inputs, what they hide, and which of it counts.

        Half of the pairs are two parts of one story (`seq_relationship` 0), half are of different ones (1).
        """
        pairs = [self._pair() for _ in range(count)]
        masked = [self._mask(text) for text, _, _ in pairs]
        inputs = {
            "tokens": np.array([tokens for tokens, _, _ in masked], np.int32),
            "segments": np.array([segments for _, segments, _ in pairs], np.int32),
            "positions": np.array([positions for _, positions, _ in masked], np.int32),
        }
        hidden = np.array([pieces for _, _, pieces in masked], np.int32)
        targets = {
            "predictions": hidden,
            "seq_relationship": np.array([other for _, _, other in pairs], np.int32),
        }
        counts = {
            "predictions": (hidden != PAD).astype(np.float32),
            "seq_relationship": np.ones(count, np.float32),
        }
        return inputs, targets, counts

    def classification(self, count: int) -> tuple[Arrays, np.ndarray]:
        """Single stories and how they feel: 0 gloomy, 1 cheerful."""
        stories = [self._story() for _ in range(count)]
        tokens = [self._padded([CLS, *self._text(story, self.seq - 2), SEP]) for story in stories]
        inputs = {
            "tokens": np.array(tokens, np.int32),
            "segments": np.zeros((count, self.seq), np.int32),
        }
        return inputs, np.array([list(MOODS).index(story.mood) for story in stories], np.int32)

    def _story(self) -> Story:
        return Story(*(self._rng.choice(list(choices)) for choices in (TOPICS, NAMES, MOODS)))

    def _text(self, story: Story, length: int) -> list[int]:
        """As many whole sentences as fit, and at least the start of one."""
        text: list[int] = []
        for sentence in story.sentences(self._rng):
            pieces = self.vocabulary.encode(sentence)
            if text and len(text) + len(pieces) > length:
                break
            text += pieces
        return text[:length]

    def _pair(self) -> tuple[list[int], list[int], int]:
        first = self._story()
        other = self._rng.random() < 0.5
        second = self._story() if other else first
        length = (self.seq - 3) // 2
        start = [CLS, *self._text(first, length), SEP]
        end = [*self._text(second, length), SEP]
        return self._padded(start + end), self._padded([0] * len(start) + [1] * len(end)), int(other)

    def _padded(self, pieces: list[int]) -> list[int]:
        return pieces + [PAD] * (self.seq - len(pieces))

    def _mask(self, text: list[int]) -> tuple[list[int], list[int], list[int]]:
        """The text with some pieces hidden, where they were, and what they were (padded)."""
        open_to_it = [at for at, piece in enumerate(text) if piece >= len(SPECIAL)]
        count = min(self.masked, max(1, round(MASKED_SHARE * len(open_to_it))))
        positions = sorted(self._rng.sample(open_to_it, count))
        shown = list(text)
        for at in positions:
            shown[at] = self._cover(text[at])
        padding = [0] * (self.masked - count)
        return shown, positions + padding, [text[at] for at in positions] + padding

    def _cover(self, piece: int) -> int:
        """Eight of ten hidden pieces are masked, one is replaced by any other, one stays."""
        chance = self._rng.random()
        if chance < 0.8:
            return MASK
        if chance < 0.9:
            return self._rng.randrange(len(SPECIAL), len(self.vocabulary))
        return piece
