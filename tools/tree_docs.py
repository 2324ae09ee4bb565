"""Rules of the texts: README stays short, and what README, docs/ and comments name is there. Used
by check_tree.py."""

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


def docs_violations(root, names):
    for name in names:
        text = None
        if name == README or re.fullmatch(r"docs/.*\.md", name):
            text = (root / name).read_text(encoding="utf-8")
            rules = page_violations(root, name, text)
        elif pathlib.Path(name).suffix in CODE | SCRIPTS:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            rules = citation_violations(root, name, text)
        if text is not None:
            yield from ((name, number, rule) for number, rule in rules)
        if name == README:
            yield from ((name, number, rule) for number, rule in readme_violations(text))
