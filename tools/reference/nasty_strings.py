"""Strings that tokenizers get wrong, drawn from a seed: scripts, marks, white space, digits,
contractions, added tokens inside text, code, control characters, long runs."""

import random
import unicodedata

# First and last code point of what is drawn from; unassigned ones are left out.
SCRIPTS = {
    "ascii": (0x20, 0x7E), "latin1": (0xA0, 0xFF), "latin_ext": (0x100, 0x24F),
    "ipa": (0x250, 0x2AF), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F),
    "armenian": (0x531, 0x58A), "hebrew": (0x5D0, 0x5EA), "arabic": (0x600, 0x6FF),
    "syriac": (0x700, 0x74F), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FE),
    "gurmukhi": (0xA01, 0xA76), "tamil": (0xB82, 0xBFA), "telugu": (0xC00, 0xC7F),
    "malayalam": (0xD00, 0xD7F), "sinhala": (0xD81, 0xDF4), "thai": (0xE01, 0xE5B),
    "lao": (0xE81, 0xEDF), "tibetan": (0xF00, 0xFDA), "myanmar": (0x1000, 0x109F),
    "georgian": (0x10A0, 0x10FF), "jamo": (0x1100, 0x11FF), "ethiopic": (0x1200, 0x137C),
    "cherokee": (0x13A0, 0x13FD), "runic": (0x16A0, 0x16F8), "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1800, 0x18AA), "latin_add": (0x1E00, 0x1EFF), "greek_ext": (0x1F00, 0x1FFE),
    "punctuation": (0x2000, 0x206F), "super": (0x2070, 0x209C), "currency": (0x20A0, 0x20C0),
    "letterlike": (0x2100, 0x218B), "arrows": (0x2190, 0x23FF), "enclosed": (0x2460, 0x24FF),
    "shapes": (0x2500, 0x27BF), "cjk_marks": (0x3000, 0x303F), "hiragana": (0x3041, 0x309F),
    "katakana": (0x30A0, 0x30FF), "han": (0x4E00, 0x9FFF), "hangul": (0xAC00, 0xD7A3),
    "compat_han": (0xF900, 0xFAD9), "presentation": (0xFB00, 0xFDFF),
    "halfwidth": (0xFF01, 0xFFEE),
    "gothic": (0x10330, 0x1034A), "math": (0x1D400, 0x1D7FF), "emoji": (0x1F300, 0x1F64F),
    "symbols": (0x1F680, 0x1F6FF), "supplement": (0x1F900, 0x1F9FF), "han_b": (0x20000, 0x2A6DF),
}
MARKS = [chr(c) for c in [*range(0x300, 0x370), *range(0x483, 0x488), *range(0x591, 0x5BE),
                          *range(0x64B, 0x660), 0x93C, 0x94D, 0x9BC, 0xE38, 0xE39, 0xF71, 0xF72,
                          0xC3C, 0xEBA, 0x11A34, 0x3099, 0x309A,
                          *range(0x20D0, 0x20F1), 0xFE0E, 0xFE0F, 0x1D165]]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t", "\v", "\f",
          "\u00a0", "\u0085", "\u1680", "\u180e", "\u2003", "\u200a", "\u200b", "\u2028", "\u2029",
          "\u202f", "\u205f", "\u3000", "\ufeff", "\x1c", "\x1f"]
DIGITS = ["0123456789", "\u0660\u0661\u0662\u0669", "\u0966\u0967\u096f", "\u0e50\u0e59",
          "\u2160\u216b", "\u00b2\u00b3\u00bc\u00bd", "\uff10\uff19", "\u4e00\u5341",
          "\u2460\u2469", "\U0001d7ce\U0001d7ff", "\u0bf0\u0f33"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL",
                "'lL", "'d", "'D", "'\u017f", "\u2019s", "'\u212a", "''s", "'", "'x"]
EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd",
         "\U0001f1e9\U0001f1ea", "\U0001f1ea\U0001f1fa\U0001f1fa\U0001f1f8", "1\ufe0f\u20e3",
         "\u2764\ufe0f\u200d\U0001f525", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e007f",
         "\U0001f937\U0001f3ff\u200d\u2642\ufe0f", "\u263a", "\U0001f600\U0001f600"]
PAIRS = ["\u00e9", "\u1e69", "\u00c5", "\u212b", "\u2126", "\u1ea5", "\ud55c\uae00", "\uac01",
         "\u0958", "\u2adc", "\ufb1d", "\u0344", "\u0374", "\u037e", "\u0387", "\u1f71", "\u2000",
         "\u2001", "\u2329", "\uf900", "\U0001d15e", "\u09cb", "\u0dda", "\u304c", "\u30d1",
         "\u01d5", "\u0390", "\u0439", "\u0622", "\u0bca"]
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<repo_name>",
         "<file_sep>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<empty_output>",
         "<issue_start>", "<0x0A>", "<0xE9>", "[INST]"]
CODE = ["def f(x):\n    return x**2  # \u00b5\n",
        "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
        "SELECT * FROM t WHERE a='it''s';", "<div class=\"x\">&nbsp;</div>",
        "{\"a\": [1, 2.5e-3]}",
        "x\\n\\t\\u00e9", "https://example.org/a_b?c=%20#d", "a@b.org", "$E=mc^2$",
        "#!/bin/sh\nexit 0",
        "\\begin{equation}", "__init__", "camelCaseAndPascalCase", "0xDEADBEEF", "1,234,567.89",
        "-----", "=====", "/* ** */", "...", "?!?!", "\u2026\u2014\u201c\u201d"]
PROSE = ["The quick brown fox jumps over the lazy dog.", "I'm sure they'd've said it's John's.",
         "我们在北京学习中文。你好，世界！", "สวัสดีชาวโลก", "مرحبا بالعالم", "Привет, мир!",
         "こんにちは世界", "안녕하세요 세계", "नमस्ते दुनिया", "שלום עולם",
         "Ça va très bien, même à Noël\u202f!"]


def assigned(low, high):
    points = map(chr, range(low, high + 1))
    return [c for c in points if unicodedata.category(c) not in ("Cn", "Cs")]


ALPHABETS = [assigned(*ends) for ends in SCRIPTS.values()]


def word(rng):
    letters = rng.choice(ALPHABETS)
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 9)))


def marked(rng):
    """Letters with marks in any order, composed, decomposed or neither."""
    text = "".join(rng.choice("aeounAEOyz\u0391\u03b9\u0438\u0915\u304b")
                   + "".join(rng.choices(MARKS, k=rng.randint(0, 4)))
                   for _ in range(rng.randint(1, 6)))
    form = rng.choice([None, "NFC", "NFD"])
    return unicodedata.normalize(form, text) if form else text


def pair(rng):
    text = rng.choice(PAIRS)
    apart = unicodedata.normalize("NFD", text)
    return rng.choice([text, apart, "a" + apart])


def spelt_token(rng):
    token = rng.choice(ADDED)
    cut = rng.choice([token, token, token, token[:-1], token[1:], token + token, token.upper()])
    return rng.choice(["", " ", "  ", "\n"]) + cut + rng.choice(["", " ", "  ", "\n"])


def contraction(rng):
    return rng.choice(["I", "they", "IT", "\u00e9t\u00e9", "", "5"]) + rng.choice(CONTRACTIONS)


def number(rng):
    digits = rng.choice(DIGITS)
    return "".join(rng.choice(digits) for _ in range(rng.randint(1, 12)))


def control(rng):
    low = "".join(chr(rng.randint(0, 31)) for _ in range(rng.randint(1, 4)))
    return low + rng.choice("\x7f\x80\x9f\0")


def any_scalar(rng):
    while True:
        c = chr(rng.randint(0, rng.choice([0x2FFF, 0xFFFF, 0x2FFFF])))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


REPEATED = ["a", "ab", "\u4e2d", "!", "\u00e9", "\u2581"]
PIECES = [word, word, word, marked, pair, spelt_token, contraction, number, control, any_scalar,
          lambda rng: rng.choice(SPACES), lambda rng: rng.choice(SPACES) * rng.randint(1, 30),
          lambda rng: rng.choice(EMOJI), lambda rng: rng.choice(CODE),
          lambda rng: rng.choice(PROSE), lambda rng: rng.choice(REPEATED) * rng.randint(1, 40)]


def drawn(rng):
    between = rng.choice(["", "", " ", " ", "  "])
    return between.join(rng.choice(PIECES)(rng) for _ in range(rng.randint(1, 8)))


def fixed():
    """What is there whatever the seed."""
    alone = [chr(c) for c in range(0x100)] + MARKS + SPACES + [c for d in DIGITS for c in d]
    groups = EMOJI + PAIRS + ADDED + CODE + PROSE + CONTRACTIONS
    groups += [unicodedata.normalize("NFD", p) for p in PAIRS]
    around = [a + t + b for t in ADDED[:6] for a in ("", " ", "x", "\n ") for b in ("", " ", "x")]
    long = [" " * 10000, "a" * 100000, "ab " * 2000, "\n" * 3000, "\u4e2d" * 3000, "9" * 3000,
            "\u0301" * 2000, " a" * 2000, "\u2581" * 500, "!" * 5000, ("x" * 50 + "\n") * 100]
    return ["", *alone, *groups, *around, *long]


def nasty_strings(seed, count):
    rng = random.Random(seed)
    strings = fixed()
    while len(strings) < count:
        strings.append(drawn(rng))
    return strings
