"""Rules that hold for a program as a whole: no two types of one name, no file of the product that
only tests have a use for, and all sources of the program that others build without the rest. Used
by check_tree.py."""

import pathlib
import re

from tree_rooms import CODE, blank_comments_and_strings, is_product, quoted_includes

TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+class)?)\s+(?:\[\[\w+\]\]\s*)?([A-Za-z_]\w*)"
                  r"(?:\s+final)?\s*(?::[^:{][^{]*)?$")
NAMESPACE = re.compile(r"\bnamespace\b\s*([\w:]*)\s*$")


def types_at_namespace_scope(text):
    """(line, qualified name) of each type defined in a namespace that has a name."""
    code = blank_comments_and_strings(text)
    names, head, line = [], "", 1  # a block's namespace, or None for any other block
    for char in code:
        line += char == "\n"
        if char == "{":
            namespace, kind = NAMESPACE.search(head), TYPE.search(head)
            outer = None if None in names else "::".join(names)
            if namespace:
                names.append(namespace.group(1) or None)
            else:
                if kind and outer and not re.search(r"\btemplate\s*<\s*>", head):
                    yield line, f"{outer}::{kind.group(1)}"
                names.append(None)
            head = ""
        elif char == "}":
            if names:
                names.pop()
            head = ""
        elif char == ";":
            head = ""
        else:
            head += char


def twice_defined_types(root, names):
    """Types of one name in one program: whichever definition the linker takes, the other is wrong.
    The program of all is the tests', which has the product and what tests share."""
    first = {}
    for name in names:
        if pathlib.Path(name).suffix in CODE and (is_product(name) or
                                                  name.startswith("tests/testing/")):
            for line, kind in types_at_namespace_scope((root / name).read_text(encoding="utf-8")):
                if first.setdefault(kind, name) != name:
                    yield name, line, f"{kind} is also defined in {first[kind]}"


def reached_files(root, names):
    """Product files that the program has a use for: what src/cli includes, the sources of those
    headers, and what these include in turn. A source without a header of its own belongs to the
    header that it includes first, or to one of its room."""
    product = [n for n in names if is_product(n) and pathlib.Path(n).suffix in CODE]
    includes = {n: list(quoted_includes(root, n)) for n in product}
    reached, due = set(), [n for n in product if n.startswith("src/cli/")]
    while due:
        while due:
            name = due.pop()
            if name not in reached:
                reached.add(name)
                due += [i for i in includes.get(name, ()) if i not in reached]
        for name in product:
            if name in reached or name.endswith((".h", ".cuh")):
                continue
            own = [n for n in (name.rsplit(".", 1)[0] + e for e in (".h", ".cuh")) if n in includes]
            room = name.rpartition("/")[0]
            owners = own or includes[name][:1] + [i for i in includes[name]
                                                  if i.rpartition("/")[0] == room]
            if any(owner in reached for owner in owners):
                due.append(name)
    return product, reached


def unreached_files(root, names):
    product, reached = reached_files(root, names)
    for name in product:
        if name not in reached:
            yield name, 1, "nothing but tests reaches it: the program has no use for it"


# It is built by volunteers with a GPU, not here: its list of folders has to be right unseen.
GPU_CHECK = "tools/gpu_check/CMakeLists.txt"
LISTED_FOLDER = re.compile(r"\$\{root\}/([\w/]+)/\*\.cc|\$\{root\}/([\w/]+)/\*/\*\.cc")


def unlisted_folders(root, names):
    """Folders whose headers gpu_check's sources include, and whose sources it does not build."""
    if GPU_CHECK not in names:
        return
    listed = [one or two + "/" for one, two in
              LISTED_FOLDER.findall((root / GPU_CHECK).read_text(encoding="utf-8"))]
    def builds(name):
        folder = name.rpartition("/")[0]
        return any(folder == f or (f.endswith("/") and folder.rpartition("/")[0] + "/" == f)
                   for f in listed)
    sources = [n for n in names if n.endswith(".cc") and
               (builds(n) or n.startswith(("tools/gpu_check/", "kernels/cuda/")))]
    missing, due, seen = set(), list(sources), set()
    while due:
        name = due.pop()
        if name in seen:
            continue
        seen.add(name)
        due += [i for i in quoted_includes(root, name) if i in names]
        source = name.rsplit(".", 1)[0] + ".cc"
        if source in names and source not in sources:
            missing.add(source.rpartition("/")[0])
    for folder in sorted(missing):
        yield GPU_CHECK, 1, f"it does not build {folder}, whose headers it includes"
