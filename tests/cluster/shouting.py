"""A module of the project beside the app file."""


def shouted(word: str) -> str:
    return word.upper()
