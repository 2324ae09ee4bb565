"""Rules of the texts: README stays short, what README, docs/ and comments name is there, and
comments are sentences. Used by check_tree.py."""

import pathlib
import re

from tree_rooms import CODE

README = "README.md"
MAX_README_LINES = 150
MAX_README_WORDS = 1000
SCRIPTS = {".py", ".sh", ".cmake"}

LINK = re.compile(r"\]\(([^)\s]+)\)")
# A file or folder of the tree, between backquotes: not a command, a pattern or a name by itself.
TREE_PATH = re.compile(r"`((?:src|kernels|offload|optim|tests|tools|configs|docs)/[\w./-]*)`")
MARKDOWN = re.compile(r"[\w./-]*\w\.md\b")
# A comment opens with its subject, its verb or a name, not in the middle of a phrase. Beside code,
# "of a page" may complete the name that it stands behind; a pronoun there has no noun.
BLOCK_OPENER = re.compile(r"(?:Of|As|That|Likewise|So (?:many|much|often)|Which|By(?! default)"
                          r"|Nor|And|Or)\b")
NOTE_OPENER = re.compile(r"(?:likewise|that|which|nor|(?:so|as) (?:many|much|often)"
                         r"|of (?:it|them|that|these|those|which))\b", re.I)


def readme_violations(text):
    lines, words = len(text.splitlines()), len(text.split())
    if lines > MAX_README_LINES:
        yield lines, f"{lines} lines, more than {MAX_README_LINES}"
    if words > MAX_README_WORDS:
        yield 1, f"{words} words, more than {MAX_README_WORDS}"


def page_violations(root, name, text):
    """Links between pages, and paths of the tree, lead somewhere."""
    folder = (root / name).parent
    for number, line in enumerate(text.split("\n"), 1):
        for target in LINK.findall(line):
            path = target.partition("#")[0]
            if path and ":" not in path and not (folder / path).exists():
                yield number, f"a link to {path}, which is not there"
        for path in TREE_PATH.findall(line):
            if not (root / path).exists():
                yield number, f"names {path}, which is not there"


def citation_violations(root, name, text):
    """A page that code names is in the tree: by its path from the root or from the file."""
    for number, line in enumerate(text.split("\n"), 1):
        for cited in MARKDOWN.findall(line):
            path = cited.lstrip("/")
            if not ((root / path).is_file() or (root / name).parent.joinpath(path).is_file()):
                yield number, f"cites {cited}, which is not in the repository"


def opener_violations(name, text):
    """No comment opens in the middle of a phrase: paragraphs, notes beside code, docstrings."""
    mark = "//" if pathlib.Path(name).suffix in CODE else "#"
    block = re.compile(rf'\s*(?:{mark}|r?""")\s*(\S.*)')
    note = re.compile(rf"\S.*\s{mark} (\S.*)")
    in_block = False
    for number, line in enumerate(text.split("\n"), 1):
        opened, noted = block.match(line), note.search(line)
        opener = None
        if opened and not in_block:
            opener = BLOCK_OPENER.match(opened.group(1))
        elif noted and not opened:
            opener = BLOCK_OPENER.match(noted.group(1)) or NOTE_OPENER.match(noted.group(1))
        if opener:
            yield number, f"a comment opens with \"{opener.group()}\": begin with a subject or verb"
        in_block = line.lstrip().startswith(mark) and line.strip() != mark


def docs_violations(root, names):
    for name in names:
        text = None
        if name == README or re.fullmatch(r"docs/.*\.md", name):
            text = (root / name).read_text(encoding="utf-8")
            rules = page_violations(root, name, text)
        elif pathlib.Path(name).suffix in CODE | SCRIPTS:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            rules = [*citation_violations(root, name, text), *opener_violations(name, text)]
        if text is not None:
            yield from ((name, number, rule) for number, rule in rules)
        if name == README:
            yield from ((name, number, rule) for number, rule in readme_violations(text))
