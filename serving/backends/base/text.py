"""Distinguishes text from binary data."""


def looks_like_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are UTF-8 text. The last character may be incomplete."""
    for cut in range(4):
        try:
            text = head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        return bool(text) and all(character.isprintable() or character in "\r\n\t\f" for character in text)
    return False
