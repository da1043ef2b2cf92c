"""CONTRACTION_MAP has the full forms of English contractions, for handlers of texts. The map has exactly TorchServe's
contractions, because other words would change the answers of a classifier."""

# The ending of a contraction, its full form, and the words that take it.
_ENDINGS = {
    "'ll": ("will", "he how I it she they we what who you"),
    "'d": ("would", "he I it she that there they we you"),
    "'ve": ("have", "could I might must should so they to we what when where who why will would you"),
    "'s": ("is", "he how it she that there what when where who why"),
    "'re": ("are", "they we what you"),
    "n't": ("not", "are could did does do had has have is may might must need ought should was were would"),
}
_BEFORE_HAVE = ("'ll", "'d", "n't")  # endings after which 've is possible
_ODD = {
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "'cause": "because",
    "how'd": "how did",
    "how'd'y": "how do you",
    "where'd": "where did",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "shan't've": "shall not have",
    "won't": "will not",
    "won't've": "will not have",
    "I'm": "I am",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "so's": "so as",
    "y'all": "you all",
    "y'all're": "you all are",
    "y'all've": "you all have",
    "y'all'd": "you all would",
    "y'all'd've": "you all would have",
}


def _made() -> dict[str, str]:
    made = dict(_ODD)
    for ending, (meaning, words) in _ENDINGS.items():
        for word in words.split():
            made[word + ending] = f"{word} {meaning}"
            if ending in _BEFORE_HAVE:
                made[f"{word}{ending}'ve"] = f"{word} {meaning} have"
    return made | {f"i{text[1:]}": f"i{full[1:]}" for text, full in made.items() if text.startswith("I'")}


CONTRACTION_MAP: dict[str, str] = _made()
