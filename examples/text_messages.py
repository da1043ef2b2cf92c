"""Messages to a web shop, made from sentence patterns. The text models are trained and tested with them.

Whole patterns are held out: no sentence of HELD_OUT has the pattern of a training sentence.
"""

import itertools
import random

TOPICS = ("account", "delivery", "payment", "product", "praise")

SLOTS = {
    "item": [
        "lamp",
        "jacket",
        "keyboard",
        "backpack",
        "kettle",
        "phone",
        "watch",
        "pair of shoes",
        "coffee machine",
        "desk",
        "tent",
        "blender",
    ],
    "time": [
        "yesterday",
        "on Monday",
        "last week",
        "two days ago",
        "this morning",
        "in October",
        "three weeks ago",
        "before the holidays",
    ],
    "place": ["Lyon", "Osaka", "my office", "the neighbours", "Turin", "Leeds", "the old address", "Porto"],
    "amount": ["20 euros", "49.90", "a hundred dollars", "12 pounds", "300 kronor", "7.50"],
    "card": ["credit card", "debit card", "voucher", "gift card", "bank account"],
    "opening": ["Hello", "Good morning", "Hi there", "Dear team", "Hi", "Good evening"],
    "part": ["switch", "screen", "zip", "battery", "handle", "cable", "lid", "strap"],
    "person": ["your colleague", "the lady on the phone", "your team", "the person in the chat", "the support"],
}

TRAINED = {
    "account": """I cannot log in since {time}.
        {opening}, I forgot my password and the link to reset it does not arrive.
        Please change the email address of my account.
        My account is locked after I typed the wrong password {time}.
        How do I delete my account and all my data?
        I want to change my user name.
        The login page says that my email is unknown.
        {opening}, please close the account that I opened {time}.
        Somebody else logged in with my password {time}, please help.
        I never received the email to confirm my account.
        Where can I change my password?
        My profile still shows the old email address.
        The code to sign in is not accepted.
        I signed up {time} and cannot sign in any more.
        My password does not work any more.
        {opening}, I need to reset my login.
        Please delete everything that you keep about me.
        I have two accounts and would like to keep only one user.
        It says that my account does not exist.
        Why do I have to log in again every day?""",
    "delivery": """Where is my parcel? I ordered the {item} {time}.
        {opening}, my {item} should have been delivered {time}.
        The tracking number does not work.
        The parcel was sent to {place} and not to me.
        When will the {item} arrive?
        The courier left my parcel with {place}.
        My order has been on its way since {time}.
        Can you deliver the {item} to {place}?
        The package arrived {time}, but it was empty.
        {opening}, the driver did not ring and took the parcel back.
        Shipping takes far too long, I still wait for the {item}.
        Please send my order to another address.
        The tracking page says that the package is still in {place}.
        How long does shipping to {place} take?
        Your driver delivered somebody else's {item} to me.
        The box was left outside {time} in the rain.
        Is my order already on its way to {place}?
        {opening}, the delivery {time} was cancelled and nobody told me.
        I have been waiting for my {item} since {time}.
        The parcel service says that nothing was ever sent.""",
    "payment": """You charged my {card} twice for the {item}.
        I was billed {amount} too much.
        {opening}, I need an invoice for the {item}.
        My {card} was refused when I wanted to pay.
        When do I get my refund of {amount}?
        The invoice from {time} shows the wrong sum.
        I returned the {item} {time} and have not got my money back.
        Can I pay with a {card}?
        There is a charge of {amount} that I do not know.
        Please refund {amount} to my {card}.
        The discount of {amount} is missing on my bill.
        {opening}, I paid {time} but the order still says unpaid.
        Why was {amount} taken from my {card}?
        I would like to pay in three instalments.
        The bill for the {item} is higher than the price in the shop.
        {opening}, please check my bill, you charged {amount} for shipping.
        My bank says that you took the money twice.
        I need a receipt for what I bought {time}.
        Where is the refund for the {item} that I sent back?
        Do you take a {card} for payments over {amount}?""",
    "product": """The {part} of my {item} is broken.
        {opening}, the {item} does not turn on any more.
        The {item} came with a scratch on the {part}.
        How do I clean the {part}?
        The manual of the {item} is missing.
        The {part} stopped working {time}.
        Is there a spare {part} for the {item}?
        The {item} is too small, I would like another size.
        My {item} makes a strange noise.
        Does the {item} come in green?
        The {part} fell off when I used the {item} {time}.
        {opening}, how do I replace the {part} of the {item}?
        The {item} gets hot and smells burnt.
        What is the {item} made of?
        The {part} does not work.
        {opening}, a {part} was missing in the box of my {item}.
        How do I use the {item} for the first time?
        My {item} is broken, can it be repaired?
        How do I switch the {item} off?
        After {amount} of repairs the {part} is loose again.""",
    "praise": """Thank you, {person} was very helpful.
        I love my new {item}, it is wonderful.
        {opening}, I just want to say thanks.
        Great service, I will gladly buy from you again.
        The {item} is even better than I hoped.
        {person} solved everything in minutes, excellent!
        Best shop that I know.
        Everybody here is happy with the {item}, thank you so much.
        What a lovely {item}, great quality.
        I am very happy with how {person} helped me {time}.
        Five stars, perfect from start to end.
        Thanks a lot, everything was great.
        Excellent quality and friendly people.
        Wonderful, keep up the good work!
        I am happy, the {item} is perfect.
        Many thanks for the quick answer {time}.
        {opening}, your shop is excellent.
        I really love it!
        Thank you for the great help with my {item}.
        {person} was so friendly, many thanks!""",
}

HELD_OUT = {
    "account": """{opening}, I cannot sign in to my account with the new password.
        Please help me to reset the password, I cannot log in.
        I would like to delete my user account.
        Why is my login locked since {time}?""",
    "delivery": """{opening}, my parcel with the {item} has not arrived.
        Has my order been delivered to {place}?
        The courier did not deliver the package {time}.
        I still wait for the parcel that you sent {time}.""",
    "payment": """{opening}, please send me the invoice and refund {amount}.
        My {card} was charged {amount} too much {time}.
        I want my money back for the {item}, it was billed twice.
        Can I pay the bill with my {card}?""",
    "product": """{opening}, my {item} is broken, the {part} does not work.
        The {part} of the {item} makes a noise.
        How do I turn on the {item}?
        The {item} stopped working {time}, is there a spare {part}?""",
    "praise": """Many thanks to {person}, great service!
        The {item} is wonderful, I am very happy.
        {opening}, excellent shop, thank you.
        I love the {item}, perfect quality.""",
}


def messages(patterns: dict[str, str], per_pattern: int, seed: int) -> tuple[list[str], list[int]]:
    """Return up to `per_pattern` different sentences of each pattern, shuffled, and the number of each sentence's topic."""
    chooser = random.Random(seed)
    rows = []
    for topic, lines in patterns.items():
        for pattern in lines.splitlines():
            names = [name for name in SLOTS if f"{{{name}}}" in pattern]
            fillings = list(itertools.product(*(SLOTS[name] for name in names)))
            for filling in chooser.sample(fillings, min(per_pattern, len(fillings))):
                text = pattern.strip().format(**dict(zip(names, filling, strict=True)))
                rows.append((text[0].upper() + text[1:], TOPICS.index(topic)))
    chooser.shuffle(rows)
    return [text for text, _ in rows], [topic for _, topic in rows]


def doubled(texts: list[str], topics: list[int], seed: int) -> tuple[list[str], list[int]]:
    """Return the messages, and each message again followed by another one on its topic, for messages of two sentences."""
    chooser = random.Random(seed)
    same = {topic: [text for text, its in zip(texts, topics, strict=True) if its == topic] for topic in set(topics)}
    longer = [f"{text} {chooser.choice(same[topic])}" for text, topic in zip(texts, topics, strict=True)]
    return texts + longer, topics * 2
