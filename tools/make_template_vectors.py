#!/usr/bin/env python3
"""Writes tests/golden/chat/template_vectors.json: what Jinja2, set as Transformers sets it, makes
of small templates; or compares pagoda with it on the chat templates that packages carry.

    python tools/make_template_vectors.py [--out tests/golden/chat/template_vectors.json]
    python tools/make_template_vectors.py --check build/release/template_probe FOLDER

FOLDER has unpacked packages; every *.jinja in it is rendered with generated conversations.
"""

import argparse
import json
import random
import subprocess
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from reference.template_snippets import HOSTILE, SNIPPETS, VARIABLES

TODAY = datetime(2026, 11, 23)


class Generation(jinja2.ext.Extension):
    """The tag "generation": what it encloses is noted as a span of characters."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("noted"), [], [], body).set_lineno(line)

    def noted(self, caller):
        text = caller()
        begin = len("".join(self.environment.written))
        self.environment.spans.append((begin, begin + len(text)))
        return text


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=refuse, strftime_now=TODAY.strftime)
    return env


def rendered(source, variables):
    """{"text", "generated"} with spans in bytes, or {"error"}."""
    env = environment()
    env.written, env.spans = [], []
    try:
        for part in env.from_string(source).generate(**variables):
            env.written.append(part)
    except Exception as error:  # whatever Python raises is a refusal
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    text = "".join(env.written)
    vector = {"text": text}
    if env.spans:
        vector["generated"] = [[len(text[:at].encode()) for at in span] for span in env.spans]
    return vector


def write_vectors(out):
    vectors = [{"template": source, **rendered(source, VARIABLES)} for source in SNIPPETS]
    for vector in vectors:
        assert " at 0x" not in vector.get("text", ""), vector
    document = {"jinja2": jinja2.__version__, "variables": VARIABLES, "vectors": vectors,
                "hostile": HOSTILE}
    lines = json.dumps(document, ensure_ascii=True, indent=0)
    out.write_text(lines + "\n")
    errors = sum("error" in vector for vector in vectors)
    print(f"{len(vectors)} templates, {errors} of them refused; {len(HOSTILE)} hostile ones")


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The \"weather\" at a place.\nNow.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "a town"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "array", "items": {"type": "integer"}}}}}}]
WORDS = ["Hi", "a < b", "<think>\nx\n</think>\n\ny", " \n blanks \n", "Größe 你好 👍", "",
         "{{ x }}", "it's \"so\"", "line\nline\n\nline", "</think>z", "1"]


def message(rng, role, number):
    made = {"role": role, "content": rng.choice(WORDS)}
    if role == "assistant" and rng.random() < 0.3:
        made["reasoning_content"] = rng.choice(WORDS)
    if role == "assistant" and rng.random() < 0.3:
        made["tool_calls"] = [{"type": "function", "id": f"call{number:05d}", "function": {
            "name": "weather", "arguments": {"place": rng.choice(WORDS), "days": [1, 2]}}}]
    if role == "tool":
        made.update(name="weather", tool_call_id=f"call{number:05d}")
    return made


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for number in range(rng.randint(1, 3)):
        messages.append(message(rng, "user", number))
        if rng.random() < 0.9:
            messages.append(message(rng, "assistant", number))
        while "tool_calls" in messages[-1] and rng.random() < 0.8:
            messages.append(message(rng, "tool", number))
            messages.append(message(rng, "assistant", number))
    variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>",
                 "add_generation_prompt": rng.random() < 0.5}
    if rng.random() < 0.4:
        variables["tools"] = TOOLS
    if rng.random() < 0.2:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def check(program, folder, seed, count):
    failures = 0
    sources = {path: path.read_text() for path in sorted(Path(folder).rglob("*.jinja"))}
    for path, source in sources.items():
        rng = random.Random(seed)
        cases = [conversation(rng) for _ in range(count)]
        lines = "".join(json.dumps({"template": source, "variables": case}) + "\n"
                        for case in cases)
        done = subprocess.run([program], input=lines, text=True, check=True, encoding="utf-8",
                              stdout=subprocess.PIPE)
        results = [json.loads(line) for line in done.stdout.split("\n") if line]
        assert len(results) == len(cases)
        wrong, refused = 0, 0
        for case, got in zip(cases, results):
            want = rendered(source, case)
            refused += "error" in want
            same = "error" in got if "error" in want else got == want
            wrong += not same
            if not same and wrong <= 1:
                print(f"{path}: {json.dumps(case)[:400]}\n  expected {str(want)[:600]}\n"
                      f"  got      {str(got)[:600]}")
        failures += wrong > 0
        print(f"{path.name}: {count} conversations, {refused} refused by Jinja2, {wrong} differ")
    print(f"{len(sources)} templates, {failures} differ somewhere")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    golden = Path(__file__).resolve().parent.parent / "tests/golden/chat/template_vectors.json"
    parser.add_argument("--out", type=Path, default=golden)
    parser.add_argument("--check", nargs=2, metavar=("PROGRAM", "FOLDER"))
    parser.add_argument("--seed", type=int, default=1, help="of --check's conversations")
    parser.add_argument("--count", type=int, default=60, help="conversations for each template")
    arguments = parser.parse_args()
    if arguments.check:
        failed = check(*arguments.check, arguments.seed, arguments.count)
        raise SystemExit(1 if failed else 0)
    write_vectors(arguments.out)


if __name__ == "__main__":
    main()
