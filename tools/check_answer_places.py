#!/usr/bin/env python3
"""Checks what pagoda trains of a conversation, by running a model's own chat template, against
Jinja2 and marks in the messages: for all templates, also those of which there is no copy with
{% generation %} tags (tools/check_template_spans.py is for these).

    python tools/check_answer_places.py build/release/template_probe FOLDER

Every *.jinja in FOLDER is rendered with generated conversations, in which each text begins and ends
with a mark of its own. Of each row that pagoda makes,

- the text is Jinja2's of all messages if that begins with those up to each answer, and else there
  is a row for each answer, with Jinja2's text up to it; one special token may be added;
- what is trained holds the marks of the row's answers, and no other mark;
- it ends where the answer does, white space aside, or with one special token behind it;
- "exact": it begins behind what Jinja2 renders before the answer and with a generation prompt,
  where that is how the answer's text begins; "bounded": where no such prompt is there, behind the
  messages before it and no later than the answer's first mark. "tags": the template has tags of its
  own, so that marks and texts alone are compared.

"refused": pagoda refuses where it should: Jinja2 refuses, a field is not in Jinja2's text, or the
answer's text begins neither with the messages before it nor with the prompt.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path

from check_template_spans import SPECIAL, common_bytes, covered
from make_template_vectors import TOOLS, environment

WORDS = ["Hi.", "a < b", "Größe 你好 👍", "it's \"so\"", "line\nline\n\nline", "no and yes"]
VERDICTS = ("exact", "bounded", "tags", "refused", "differs")


class Source:
    """A template, and its texts of a conversation's beginnings in Jinja2."""

    def __init__(self, text):
        self.text, self.tagged = text, "endgeneration" in text
        self.special = sorted(set(SPECIAL.findall(text)) | {"</s>"})
        self.environment = environment()
        try:
            self.template = self.environment.from_string(text)
        except Exception:  # whatever Python raises is a refusal
            self.template = None
        self.row, self.texts = None, {}

    def begin(self, row):
        self.row, self.texts = row, {}

    def up_to(self, count, prompt=False):
        """Bytes of the first messages; None where Jinja2 refuses."""
        if (count, prompt) not in self.texts:
            self.texts[count, prompt] = self.render(count, prompt)
        return self.texts[count, prompt]

    def render(self, count, prompt):
        if self.template is None:
            return None
        self.environment.written, self.environment.spans = [], []
        try:
            for part in self.template.generate(
                    messages=self.row["messages"][:count], tools=self.row.get("tools"),
                    documents=None, bos_token="<s>", eos_token="</s>",
                    add_generation_prompt=prompt):
                self.environment.written.append(part)
        except Exception:
            return None
        return "".join(self.environment.written).encode()


class Marks:
    """Texts between two marks, and which message's they are."""

    def __init__(self, rng):
        self.rng, self.of = rng, {}  # mark: (message or None, field)

    def text(self, message, field):
        first, last = f"q{len(self.of)}b", f"q{len(self.of)}e"
        self.of |= {first: (message, field), last: (message, field)}
        return f"{first} {self.rng.choice(WORDS)} {last}"


def conversation(rng, thoughts, tools):
    """A row, and its marks. thoughts, tools: whether there may be some."""
    marks, messages = Marks(rng), []
    tools = tools and rng.random() < 0.4

    def say(role, **more):
        messages.append({"role": role, "content": marks.text(len(messages), "content"), **more})

    if rng.random() < 0.5:
        say("system")
    for _ in range(rng.randint(1, 3)):
        say("user")
        if tools and rng.random() < 0.5:
            arguments = {"place": marks.text(len(messages), "tool_calls"), "days": [1]}
            say("assistant", tool_calls=[
                {"type": "function", "function": {"name": "weather", "arguments": arguments}}])
            say("tool", name="weather")
            say("assistant")
        elif thoughts and rng.random() < 0.4:
            say("assistant", reasoning_content=marks.text(len(messages), "reasoning_content"))
        else:
            say("assistant")
    row = {"messages": messages}
    if tools:
        row["tools"] = json.loads(json.dumps(TOOLS))
        row["tools"][0]["function"]["description"] = marks.text(None, "tools")
    return row, marks.of


def answers_of(row):
    return [i for i, m in enumerate(row["messages"]) if m["role"] == "assistant"]


def beginning(source, i):
    """What is known before message i, and its prompt; each b"" where there is none."""
    before = next((text for text in (source.up_to(n) for n in range(i, 0, -1)) if text), b"")
    return before, source.up_to(i, prompt=True) or b""


def refusal(source, row, marks):
    """Why pagoda must refuse the row; None: it must not."""
    whole = source.up_to(len(row["messages"]))
    if not whole:
        return "Jinja2 refuses"
    if "tools" in row and not any(mark.encode() in whole for mark, (_, field) in marks.items()
                                  if field == "tools"):
        return "no tools"
    for i in answers_of(row):
        text = source.up_to(i + 1)
        if not text:
            return "Jinja2 refuses a beginning"
        before, prompt = beginning(source, i)
        if not (prompt and text.startswith(prompt)) and not (before and text.startswith(before)):
            return "no beginning"
    for i in range(len(row["messages"])):
        text = source.up_to(i + 1) or whole
        for field in ("reasoning_content", "tool_calls"):
            own = [mark for mark, place in marks.items() if place == (i, field)]
            if own and not any(mark.encode() in text for mark in own):
                return f"no {field}"
    first = answers_of(row)[0]
    text = source.up_to(first + 1)
    own = [mark for mark, place in marks.items() if place == (first, "content")]
    return None if any(mark.encode() in text for mark in own) else "no content"


def token_behind(source, text, end):
    """Where one special token behind `end` ends, white space before it aside; `end`: there is
    none."""
    begin = next((at for at in range(end, len(text)) if text[at] not in b" \t\r\n"), end)
    ends = [begin + len(token.encode()) for token in source.special
            if text.startswith(token.encode(), begin)]
    return max(ends, default=end)


def place_of(source, i, text):
    """(earliest begin, latest begin or None, end) of answer i in `text`."""
    own = source.up_to(i + 1)
    before, prompt = beginning(source, i)
    least = max(common_bytes(prompt, text), common_bytes(before, text))
    end = len(own.rstrip(b" \t\r\n"))
    return least, least if prompt and own.startswith(prompt) else None, end


def wrong_marks(text, trained, marks, answers):
    """Marks that are trained and must not be, or the other way round."""
    wrong = []
    for mark, (message, _) in marks.items():
        for found in re.finditer(re.escape(mark).encode() + rb"(?![0-9be])", text):
            if (found.start() in trained) != (message in answers):
                wrong.append(mark)
    return wrong


def compare_row(source, made, base, answers, marks):
    """"exact", "bounded" or "tags"; else what is wrong."""
    text = made["text"].encode()
    if not text.startswith(base):
        return "another text"
    if len(text) > len(base) and token_behind(source, text, len(base)) != len(text):
        return "more than a token is added"
    trained = covered(text, made["spans"])
    if wrong := wrong_marks(text, trained, marks, answers):
        return f"marks {wrong}"
    if source.tagged:
        return "tags"
    word, left = "exact", set(trained)
    for i in answers:
        least, begin, end = place_of(source, i, text)
        if begin is None:
            word = "bounded"
            first = min((text.find(mark.encode()) for mark, place in marks.items()
                         if place[0] == i and text.find(mark.encode()) >= least), default=end)
            begin = min((at for at in trained if least <= at <= first), default=end)
            if any(at not in trained for at in range(begin, first)
                   if text[at] not in b" \t\r\n"):
                return f"a gap before message {i + 1}"
        own = covered(text, [(begin, end)])
        if not own <= trained:
            return f"message {i + 1} is not trained from {begin} to {end}"
        left -= own | covered(text, [(end, token_behind(source, text, end))])
    return word if not left else f"more is trained, at {min(left)}"


def compare(source, row, marks, got):
    """A verdict, and what is wrong or why it is refused."""
    why = refusal(source, row, marks)
    if "error" in got or why is not None:
        agreed = "error" in got and why is not None
        return ("refused", why) if agreed else ("differs", f"{why}; pagoda: {str(got)[:300]}")
    answers, whole = answers_of(row), source.up_to(len(row["messages"]))
    one = all(whole.startswith(source.up_to(i + 1)) for i in answers)
    wanted = [(whole, answers)] if one else [(source.up_to(i + 1), [i]) for i in answers]
    if len(wanted) != len(got["rows"]):
        return "differs", f"{len(got['rows'])} rows and not {len(wanted)}"
    words = {compare_row(source, made, base, some, marks)
             for made, (base, some) in zip(got["rows"], wanted)}
    wrong = words - {"exact", "bounded", "tags"}
    if wrong:
        return "differs", f"{sorted(wrong)}: {str(got)[:1200]}"
    return next(word for word in ("tags", "bounded", "exact") if word in words), ""


def check(program, source, rng, count, reasons):
    """Verdicts, and the first row that differs."""
    found, first = dict.fromkeys(VERDICTS, 0), None
    cases = []
    for _ in range(count):  # mostly of what the template knows
        unknown = rng.random() < 0.1
        cases.append(conversation(rng, unknown or "reasoning_content" in source.text,
                                  unknown or "tools" in source.text))
    lines = "".join(json.dumps({"template": source.text, "row": row, "bos": "<s>", "eos": "</s>",
                                "special": source.special}) + "\n" for row, _ in cases)
    done = subprocess.run([program], input=lines, text=True, check=True, encoding="utf-8",
                          stdout=subprocess.PIPE)
    results = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(results) == count
    for (row, marks), got in zip(cases, results):
        source.begin(row)
        word, why = compare(source, row, marks, got)
        found[word] += 1
        if word == "refused":
            reasons[why] = reasons.get(why, 0) + 1
        if word == "differs" and first is None:
            first = (row, why)
    return found, first


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="conversations for each template")
    parser.add_argument("--only", default="", help="a part of templates' names")
    arguments = parser.parse_args()
    total, reasons, wrong, number = dict.fromkeys(VERDICTS, 0), {}, 0, 0
    for path in sorted(arguments.folder.rglob("*.jinja")):
        if arguments.only not in path.name:
            continue
        source = Source(path.read_text())
        found, first = check(arguments.program, source, random.Random(arguments.seed),
                             arguments.count, reasons)
        print(f"{path.name}: " + ", ".join(f"{n} {word}" for word, n in found.items() if n),
              flush=True)
        if first is not None:
            print(f"  {first[1]}\n  {json.dumps(first[0])[:700]}")
        for word, n in found.items():
            total[word] += n
        wrong, number = wrong + (found["differs"] > 0), number + 1
    print(f"{number} templates: " + ", ".join(f"{n} {word}" for word, n in total.items()))
    print("refused: " + ", ".join(f"{n} {why}" for why, n in sorted(reasons.items())))
    print(f"{wrong} templates differ somewhere")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
