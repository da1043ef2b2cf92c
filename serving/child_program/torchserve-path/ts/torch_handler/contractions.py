"""English contractions in full: CONTRACTION_MAP, for handlers of texts."""

# The first halves that a second one is added to.
_WILL = ("I", "you", "he", "she", "it", "we", "they", "that", "there", "this", "who", "what", "where", "when", "how")
_WOULD = ("I", "you", "he", "she", "it", "we", "they", "that", "there", "who", "what", "where", "how")
_HAVE = ("I", "you", "we", "they", "could", "might", "must", "should", "would", "who", "what", "where", "why", "how")
_IS = ("he", "she", "it", "that", "there", "here", "this", "who", "what", "where", "when", "why", "how")
_NOT = (
    *("are", "could", "dare", "did", "does", "do", "had", "has", "have", "is", "may", "might", "must", "need", "ought"),
    *("should", "was", "were", "would"),
)
_ODD = {
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "'cause": "because",
    "shan't": "shall not",
    "won't": "will not",
    "won't've": "will not have",
    "I'm": "I am",
    "you're": "you are",
    "we're": "we are",
    "they're": "they are",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "so's": "so as",
    "so've": "so have",
    "to've": "to have",
    "y'all": "you all",
    "y'all're": "you all are",
    "y'all've": "you all have",
    "y'all'd": "you all would",
}


def _made() -> dict[str, str]:
    made = dict(_ODD)
    for word in _WILL:
        made |= {f"{word}'ll": f"{word} will", f"{word}'ll've": f"{word} will have"}
    for word in _WOULD:
        made |= {f"{word}'d": f"{word} would", f"{word}'d've": f"{word} would have"}
    made |= {f"{word}'ve": f"{word} have" for word in _HAVE}
    made |= {f"{word}'s": f"{word} is" for word in _IS}
    for word in _NOT:
        made |= {f"{word}n't": f"{word} not", f"{word}n't've": f"{word} not have"}
    return made | {text.lower(): full for text, full in made.items() if text.startswith("I'")}


CONTRACTION_MAP: dict[str, str] = _made()
