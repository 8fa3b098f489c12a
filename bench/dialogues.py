"""Conversations of two people over many dated days, with questions about them, in two styles.

The same seed gives the same conversations. `dialogues` generates conversations from templates. A question is worded
differently from its evidence: chat and question draw from different columns of `TOPICS`, and share the names and only
some words. Topics come back on other days and with the other person, so that words alone do not suffice. A part of the
questions names a date; another part asks for something that was never said, and has no evidence. `written` makes
conversations of written exchanges (`dialogue_threads.txt`) with a lot of small talk, which later mentions words of the
exchanges again. Topics and exchanges for tuning and for the report are disjoint.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NAMES = ("Nora", "Felix", "Amara", "Jonas", "Priya", "Mateo", "Ingrid", "Tomas", "Leila", "Oscar", "Hana", "Victor")
DAYS = 20
"""Days on which the two people talk."""
THREADS = 3
"""Topics of one day."""
BEGUN = 1_672_567_200.0
DAY = 86_400.0
AGAIN_SHARE = 0.3
"""The share of small talk that takes up a word of an earlier exchange."""
LEAST_WORD = 4
"""Shorter words are not taken up again."""
LEAST_HINT = 3
"""Shorter words of an answer are not used as hints."""
QUESTIONS = 60
"""Questions about one conversation."""

Kind = Literal["event", "detail", "date", "none", "written"]

TOPICS = Path(__file__).with_name("dialogue_topics.txt")
"""One topic per line, divided by `|`: what it is called in the chat, and in a question; what somebody did in the chat,
and in a question; then details, each as the words of the chat and the question about them. A line `=` divides the
topics for tuning from those for the report."""
THREADS_FILE = Path(__file__).with_name("dialogue_threads.txt")
"""Written exchanges, divided by empty lines, with questions and the numbers of the lines that answer them. A line `=`
divides those for tuning from those for the report."""
THREADS_USED = 15
"""Exchanges of one written conversation."""
CHAT = (
    "Morning, {other}! Did you sleep well?",
    "Not too badly, thanks. The coffee is slowly doing its thing.",
    "Same old, same old. The queue at the post office nearly broke me.",
    "Ugh, tell me about it. I spent an hour on hold with the phone company.",
    "Did you watch the final episode? I have opinions.",
    "No spoilers, please! I'm two behind.",
    "It's pouring here, the gutters are singing.",
    "We've got sun for once. I hung the laundry outside and felt like a champion.",
    "I can't decide what to cook tonight. Help me.",
    "Something with lentils? You always feel better after lentils.",
    "You know me too well, {other}.",
    "My back hurts from that office chair. I should get up more often.",
    "Set an alarm! I do ten squats whenever the kettle boils.",
    "Ha, I can picture it. The neighbours must love you.",
    "Have to run, the delivery man is at the door.",
    "Talk later! Say hello to everybody from me.",
    "Are you free on Sunday? We could go for a walk by the river.",
    "I'd love that. Two o'clock at the bridge?",
    "Perfect. I'll bring the thermos.",
    "I found a photo of us from years ago. We look so young and so sure of ourselves.",
    "Please burn it. No, wait, send it to me first.",
    "That's such good news! You've earned it.",
    "I'm so sorry to hear that. Is there anything I can do?",
    "You're sweet. Just talking about it helps.",
    "The kids next door have started drumming. Pray for me.",
    "I've been thinking about what you said the other day, and you were right.",
    "Wow, I did not see that coming.",
    "Time flies. I can't believe it's nearly the end of the month.",
    "I ate far too much cake at the office and regret nothing.",
    "Good for you. Life is short.",
    "My mother called three times today to ask about the same parcel.",
    "She just wants to hear your voice, I think.",
    "True. I should visit more often.",
    "Did the dentist go all right?",
    "No holes! I celebrated with toffee.",
    "I'm on the train and the man across from me is eating a whole fish.",
    "Never a dull moment with you, {other}.",
    "I keep meaning to answer your long message properly. This week, I promise.",
    "No rush at all. I know how busy you are.",
    "I slept through two alarms and still made it on time. How was your day?",
)
AGAIN = (
    "I told my colleague about your {word}, she wanted to hear everything.",
    "How is it going with the {word}, by the way?",
    "Speaking of that, I saw something about {word} in the paper and thought of you.",
    "Somebody at work mentioned {word} today and I had to smile, {other}.",
    "Is there any news about the {word}?",
)
ONGOING = (
    "It's keeping me busy, but I can't complain.",
    "Nothing new yet, I'll tell you as soon as I hear more.",
    "Better than I feared. Thanks for asking, {other}.",
    "Oh, don't get me started on the {word}. Another time!",
)
WHEN = ("yesterday", "last week", "last Friday", "on Sunday", "two days ago", "this morning", "over the weekend", "")
OPENERS = (
    "Hey {other}! Guess what, I {did} a {noun} {when}!",
    "Hi {other}, so much has happened. {When} I {did} the {noun}, and I am still excited.",
    "By the way, I {did} my {noun} {when}. It was about time!",
    "You won't believe it, {other}: I {did} that {noun} {when}.",
)
REACTIONS = (
    "Wow, {other}, that's amazing! How was it?",
    "That sounds great! I always wanted to do something like that. What was the best part?",
    "No way! A {noun}? Tell me everything!",
    "Congrats, {other}! I'm so proud of you. How did it go?",
    "Oh nice, I remember you thinking about it. Any surprises?",
)
DETAILS = (
    "Honestly, {said}. I did not expect that at all.",
    "Well, {said}!",
    "It was quite something: {said}, and we laughed a lot.",
    "Thanks! {said}. Can you imagine?",
)
ANSWERED = (
    "Haha, I would have loved to see that. Take care of yourself!",
    "That's so good to hear. You really deserve it, {other}.",
    "I can imagine! Life is full of moments like that.",
    "Amazing. We should talk about it more when we meet.",
    "Oh dear. And are you going to do it again?",
)
PLANS = (
    "Definitely, maybe next month with some friends from work.",
    "Sure, I'm already looking forward to it. And what about you?",
    "Yes, it helps me to clear my mind and feel good.",
    "I think so, family time matters most to me these days though.",
)
SMALL_TALK = (
    "Hey {other}, long time no see! How are you doing?",
    "I'm good, thanks! Busy with work and the family, as always. What's new with you?",
    "The weather has been great here, so we spent a lot of time outside with friends.",
    "Same here. Work is crazy, and I really need a break soon.",
    "I saw a good film, but I forgot what it was called. The music was beautiful.",
    "Thanks for listening, {other}. Your support means a lot to me.",
    "We had people over for dinner, and the kids loved the game we played.",
    "Talk to you soon, {other}! Have a great day.",
    "I took a picture of the garden in the morning light, it was so peaceful.",
    "My sister called and asked about our trip, so I told her about the group.",
    "I tried a new class at the gym, and my coach was great, but I am so tired today.",
    "Let's meet for coffee next week. There is a new place near the station.",
    "My boss wants me to lead a team, and I have no idea how to find the time.",
    "Music always helps me when I am down. Yesterday I played for hours.",
)
PROMPTS = (
    "{other}, how is it going with the {noun}?",
    "And what about the {noun}, {other}? Did you do anything interesting?",
    "I keep thinking about your {noun}. Anything new?",
)
TAILS = (
    "It really made my day.",
    "I needed that after such a long week at work.",
    "Spending time with the people I love keeps me going.",
    "It reminded me of when we were kids.",
    "I have a picture of it on my phone.",
    "Do you ever feel like that?",
    "My family was so supportive.",
    "It was a bit scary, but worth it in the end.",
    "Life has been good to me lately.",
    "I learned a lot about myself.",
    "Have you tried anything new recently?",
    "I can't wait to see what comes next.",
    "Nothing beats a quiet evening after that.",
    "I am so grateful for friends like you.",
)
EVENT_QUESTIONS = ("When did {name} {asked} the {ask}?", "At what time did {name} {asked} a {ask}?")
DATE_QUESTIONS = (
    "What news about the {ask} did {name} have on {date}?",
    "On {date}, how was the {ask} of {name} going?",
    "What happened at the {ask} of {name} in {month}?",
)


@dataclass(frozen=True)
class Topic:
    noun: str
    ask: str
    did: str
    asked: str
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Line:
    who: str
    text: str
    at: float


@dataclass(frozen=True)
class Question:
    text: str
    kind: Kind
    evidence: frozenset[int]
    """Numbers of the lines that contain the answer, counted from 0."""


@dataclass(frozen=True)
class Dialogue:
    people: tuple[str, str]
    lines: tuple[Line, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Thread:
    """A written exchange: who says what, and questions with the numbers of the lines that answer them, from 1."""

    said: tuple[tuple[str, str], ...]
    asked: tuple[tuple[str, tuple[int, ...]], ...]


def topics() -> tuple[list[Topic], list[Topic]]:
    """The topics for tuning, and those for the report."""
    halves: list[list[Topic]] = [[], []]
    half = 0
    for line in TOPICS.read_text(encoding="utf-8").splitlines():
        if line == "=":
            half = 1
            continue
        noun, ask, did, asked, *details = line.split("|")
        pairs = tuple((said, question) for said, _, question in (each.partition(" = ") for each in details))
        halves[half].append(Topic(noun, ask, did, asked, pairs))
    return halves[0], halves[1]


def synonyms() -> list[list[str]]:
    """For each topic, the words by which chat and questions name it, and those for what was done. Words of several
    topics are in the first one only. The details of a topic, which most questions are about, are not in it."""
    taken: set[str] = set()
    groups: list[list[str]] = []
    for topic in (topic for half in topics() for topic in half):
        for phrases in ((topic.noun, topic.ask), (topic.did, topic.asked)):
            words = {word.strip("'s").lower() for phrase in phrases for word in phrase.split()}
            group = sorted(word for word in words - taken if len(word) > LEAST_HINT)
            taken.update(group)
            groups.append(group)
    return groups


def dialogues(count: int, which: Literal["tuning", "report"], seed: int = 0) -> list[Dialogue]:
    chosen = topics()[which == "report"]
    return [_Writer(random.Random(f"{which} {seed} {number}"), chosen).write() for number in range(count)]


def threads() -> tuple[list[Thread], list[Thread]]:
    """The exchanges for tuning, and those for the report."""
    halves: list[list[Thread]] = []
    for half in THREADS_FILE.read_text(encoding="utf-8").split("\n=\n"):
        found: list[Thread] = []
        for block in half.strip().split("\n\n"):
            lines = block.splitlines()
            said = tuple((line[0], line[3:]) for line in lines if not line.startswith("?"))
            asked = [line[2:].split(" | ") for line in lines if line.startswith("?")]
            found.append(Thread(said, tuple((text, tuple(map(int, at.split()))) for text, at in asked)))
        halves.append(found)
    return halves[0], halves[1]


def written(count: int, which: Literal["tuning", "report"], seed: int = 0) -> list[Dialogue]:
    chosen = threads()[which == "report"]
    return [_written(random.Random(f"written {which} {seed} {number}"), chosen) for number in range(count)]


def _written(chance: random.Random, chosen: list[Thread]) -> Dialogue:
    people = tuple(chance.sample(NAMES, 2))
    lines: list[Line] = []
    asked: list[Question] = []
    mentioned: list[str] = []
    at = BEGUN + chance.randrange(300) * DAY

    def say(who: str, text: str, **words: str) -> int:
        nonlocal at
        at += chance.randint(10, 200)
        other = people[who == people[0]]
        lines.append(Line(who, text.format(other=other, **words), at))
        return len(lines) - 1

    def chat(most: int) -> None:
        start = chance.randrange(2)
        for number in range(chance.randint(2, most)):
            who = people[(start + number) % 2]
            if mentioned and chance.random() < AGAIN_SHARE:
                word = chance.choice(mentioned)
                say(who, chance.choice(AGAIN), word=word)
                say(people[people[0] == who], chance.choice(ONGOING), word=word)
            else:
                say(who, chance.choice(CHAT))

    for thread in chance.sample(chosen, THREADS_USED):
        at += chance.randint(1, 18) * DAY + chance.randrange(20_000)
        chat(14)
        first = chance.randrange(2)
        names = {"A": people[first], "B": people[1 - first]}
        places = [say(names[who], text, **names) for who, text in thread.said]
        for text, evidence in thread.asked:
            found = frozenset(places[number - 1] for number in evidence)
            asked.append(Question(text.format(**names), "written", found))
        words = {word.strip(".,?!") for _, text in thread.said for word in text.split()}
        mentioned += sorted(word for word in words if len(word) > LEAST_WORD and word.isalpha() and word.islower())
        chat(10)
    chance.shuffle(asked)
    return Dialogue((people[0], people[1]), tuple(lines), tuple(asked))


class _Writer:
    def __init__(self, chance: random.Random, chosen: list[Topic]) -> None:
        self._random = chance
        first, second = chance.sample(NAMES, 2)
        self._people = (first, second)
        unsaid = max(2, len(chosen) // 6)
        mixed = chance.sample(chosen, len(chosen))
        self._unsaid, self._topics = mixed[:unsaid], mixed[unsaid:]
        self._lines: list[Line] = []
        self._asked: list[Question] = []
        self._at = 0.0

    def write(self) -> Dialogue:
        day = BEGUN + self._random.randrange(300) * DAY
        for _ in range(DAYS):
            day += self._random.randint(2, 16) * DAY
            self._at = day + self._random.randrange(36_000)
            self._small_talk(4)
            for topic in self._random.sample(self._topics, THREADS):
                self._thread(topic)
                self._small_talk(2)
        for _ in range(QUESTIONS // 8):
            topic, name = self._random.choice(self._unsaid), self._random.choice(self._people)
            _, question = self._random.choice(topic.details)
            self._asked.append(Question(question.format(name=name), "none", frozenset()))
        answered = [each for each in self._asked if each.evidence]
        without = [each for each in self._asked if not each.evidence]
        self._random.shuffle(answered)
        found = [*answered[: QUESTIONS - len(without)], *without]
        return Dialogue(self._people, tuple(self._lines), tuple(found))

    def _say(self, who: str, template: str, **words: str) -> int:
        other = next(each for each in self._people if each != who)
        text = " ".join(template.format(other=other, **words).split()).replace(" !", "!").replace(" .", ".")
        if self._random.random() < 0.6:
            text = f"{text} {self._random.choice(TAILS)}"
        self._at += self._random.randint(10, 90)
        self._lines.append(Line(who, text[0].upper() + text[1:], self._at))
        return len(self._lines) - 1

    def _small_talk(self, most: int) -> None:
        who, other = self._random.sample(self._people, 2)
        for number in range(self._random.randint(1, most)):
            self._say(other if number % 2 else who, self._random.choice(SMALL_TALK))

    def _thread(self, topic: Topic) -> None:
        """One of the two tells about a topic; the other one asks."""
        chance = self._random
        who, other = chance.sample(self._people, 2)
        when = chance.choice(WHEN)
        words = {"noun": topic.noun, "did": topic.did, "when": when, "When": (when or "recently").capitalize()}
        opener: int | None = None
        if chance.random() < 0.6:
            opener = self._say(who, chance.choice(OPENERS), **words)
            self._say(other, chance.choice(REACTIONS), noun=topic.noun)
        else:
            self._say(other, chance.choice(PROMPTS), noun=topic.noun)
        said, question = chance.choice(topic.details)
        detail = self._say(who, chance.choice(DETAILS), said=said)
        self._say(other, chance.choice(ANSWERED))
        if chance.random() < 0.6:
            self._say(who, chance.choice(PLANS))
        date = time.gmtime(self._at)
        names = {
            "name": who,
            "ask": self._named(topic),
            "asked": topic.asked,
            "date": time.strftime("%d %B %Y", date).lstrip("0"),
            "month": time.strftime("%B %Y", date),
        }
        if opener is not None:
            self._ask(chance.choice(EVENT_QUESTIONS), "event", {opener}, names)
        self._ask(f"{question[:-1]}{self._hint(topic, said)}?", "detail", {detail}, names)
        self._ask(chance.choice(DATE_QUESTIONS), "date", {detail} if opener is None else {opener, detail}, names)

    def _named(self, topic: Topic) -> str:
        """What a question calls the topic: often with a word of the chat."""
        parts = topic.noun.split()
        return self._random.choice(
            (topic.noun, f"{parts[0]} {topic.ask.split()[0]}", f"{topic.ask} ({parts[-1]})", topic.ask)
        )

    def _hint(self, topic: Topic, said: str) -> str:
        """The end of a question about a detail: the topic, or a word of the answer in another form, or both."""
        words = [word for word in said.split() if len(word) > LEAST_HINT and word.isalpha()]
        word = self._random.choice(words) if words else said.split()[-1]
        word = word[:-1] if word.endswith("s") else f"{word}s"
        kind = self._random.random()
        about = f" with the {self._named(topic)}" if kind < 0.75 else ""
        return f"{about}, considering the {word}" if kind > 0.45 else about

    def _ask(self, template: str, kind: Kind, evidence: set[int], names: dict[str, str]) -> None:
        """A question that was asked before gets the new evidence too."""
        text = template.format(**names)
        for place, known in enumerate(self._asked):
            if known.text == text:
                self._asked[place] = Question(text, kind, known.evidence | evidence)
                return
        self._asked.append(Question(text, kind, frozenset(evidence)))
