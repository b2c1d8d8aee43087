"""A small database in WordNet's format: data.noun as wndb(5) describes it."""

HEADER = (
    "  1 This software and database is being provided to you, the LICENSEE...  \n  2 WordNet 3.0 Copyright 2006  \n"
)

# word: place, hypernyms; 'i' before a place marks the hypernym of an instance.
NOUNS = {
    "entity": ("00000100", []),
    "animal": ("00000200", ["00000100"]),
    "dog": ("00000300", ["00000200"]),
    "poodle": ("00000400", ["00000300"]),
    "collie": ("00000500", ["00000300"]),
    "cat": ("00000600", ["00000200"]),
    "tabby": ("00000700", ["00000600"]),
    "furniture": ("00000800", ["00000100"]),
    "table": ("00000900", ["00000800"]),
    "pet": ("00001000", ["00000200"]),
    "lapdog": ("00001100", ["00000300", "00001000"]),
    "Lassie": ("00001200", ["i00000500"]),
}


def wnid(word):
    return f"n{NOUNS[word][0]}"


def noun_line(place, words, hypernyms):
    pointers = [f"@{'i' if h.startswith('i') else ''} {h.removeprefix('i')} n 0000" for h in hypernyms]
    pointers.append("+ 00692347 v 0101")  # another relation, to a verb
    body = " ".join(f"{word} 0" for word in words)
    pointed = f"{len(pointers):03d} {' '.join(pointers)}"
    return f"{place} 03 n {len(words):02x} {body} {pointed} | a gloss; with n 0000 @ in it  \n"


def write_wordnet(folder, header=HEADER):
    folder.mkdir(exist_ok=True)
    lines = [noun_line(place, [word, f"{word}_kind"], above) for word, (place, above) in NOUNS.items()]
    (folder / "data.noun").write_text(header + "".join(lines))
    return str(folder)
