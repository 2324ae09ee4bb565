"""Programs that stand for pagoda and are broken on purpose. An attack that finds none of these
faults would find none in pagoda."""

import os
import stat

# What a wrapper does with the words it is given; $real is the sound program. Each is one fault
# that a class must find within some of its cases.
REST = 'exec "$real" "$@"'
BROKEN = [
    ("writes an escape", "hostile_inputs", f"printf 'x\\033[2J\\n' >&2; {REST}",
     "that a terminal may be given"),
    ("writes half a character", "environments", f"printf '\\303' >&2; {REST}",
     "that a terminal may be given"),
    ("aborts at damage", "corruption", '"$real" "$@" || kill -ABRT $$',
     "an exit code of the table"),
    ("ends with a code of its own", "forgery", '"$real" "$@" || exit 1',
     "an exit code of the table"),
    ("fails without a word", "corruption", 'exec 2>/dev/null; exec "$real" "$@"',
     "one line that begins with"),
    ("says success whatever came", "corruption", '"$real" "$@"; exit 0', ""),
    ("exports a wrong byte", "corruption",
     '"$real" "$@"; code=$?; for f in */model.safetensors; do case $f in model/*) ;; *) '
     'printf x | dd of="$f" bs=1 seek=9000 conv=notrunc status=none ;; esac; done; exit $code',
     "the exported bytes"),
    ("forgets what was saved", "kill_points",
     'case "$*" in *--resume*) rm -rf run/* ; for w; do shift; case $w in --resume) ;; *) '
     'set -- "$@" "$w" ;; esac; done ;; esac; ' + REST, ""),
    ("leaves files behind", "kill_points", 'mkdir -p run; "$real" "$@"; code=$?; '
     "touch run/left.tmp; exit $code", "the files of an unbroken run"),
    ("leaves a process behind", "environments", f"sleep 30 & {REST}", "no process left behind"),
    ("hangs", "planted_links", "exec sleep 60", "an end within"),
    ("takes memory on trust", "forgery", f"python3 -c 'b\"x\" * (1200 << 20)'; {REST}",
     "at most 1024 MiB"),
    ("follows links", "planted_links",
     f"find . -type l -exec sh -c 'echo x >> \"$1\"' sh {{}} \\; 2>/dev/null; {REST}",
     "files outside as they were"),
    ("removes what links lead to", "planted_links",
     f"find -L . -name 'precious' -delete 2>/dev/null; {REST}", "files outside as they were"),
]
MOST_CASES = 60


def wrapper(lab, number, script):
    path = lab.path(f"broken-{number}")
    path.write_text(f"#!/bin/sh\nreal='{lab.real}'\n{script}\n")
    os.chmod(path, path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(path)


def first_found(lab, run_case, name, expected):
    """The first case that reports the fault, or None, and how many it took."""
    for index in range(MOST_CASES):
        verdict = run_case(lab, name, 1, index)
        for wanted, got in verdict.failures:
            if expected in wanted:
                return f"{verdict.id}: expected {wanted}; got {got}", index + 1
    return None, MOST_CASES


def self_test(lab, run_case):
    """Every broken program is reported by its class."""
    lab.real, timeout_s = lab.pagoda, lab.timeout_s
    missed = 0
    for number, (fault, name, script, expected) in enumerate(BROKEN):
        lab.pagoda = wrapper(lab, number, script)
        lab.timeout_s = 5 if fault == "hangs" else timeout_s
        found, cases = first_found(lab, run_case, name, expected)
        missed += found is None
        told = f"found by case {cases}, {ascii(found)[:150]}" if found else "MISSED"
        print(f"a program that {fault}: {name}: {told}")
    print(f"attack: {len(BROKEN)} broken programs, {missed} missed")
    return 1 if missed else 0
