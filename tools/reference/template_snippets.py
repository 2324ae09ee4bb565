"""Small templates that cover the Jinja which chat templates use, and hostile ones."""

VARIABLES = {
    "bos_token": "<s>", "n": 7, "f": 2.5, "s": "Hello World", "empty": "", "yes": True,
    "nothing": None, "u": "Größe 你好 👍",
    "list": [3, 1, 2], "words": ["b", "A", "c"], "nested": [[1, 2], [3, 4]],
    "d": {"b": 1, "a": {"x": [1, None, True]}, "items": 5, "C": "z"},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [
            {"function": {"name": "f", "arguments": {"q": "é\"", "k": 1.0}}}]},
        {"role": "user", "content": "Bye"},
    ],
}

EXPRESSIONS = r"""
1 + 2 * 3|| (1 + 2) * 3|| 7 // 2|| -7 // 2|| 7 % 3|| -7 % 3|| 7 / 2|| 8 / 2|| 2 ** 10|| -2 ** 2
2 ** 3 ** 2|| 2 ** -1|| 1.5 + 1|| 7.5 // 2|| -7.5 % 2|| 1e3|| 1e16|| 1.5e-5|| 0.1 + 0.2|| 1_000
3 * 'ab'|| 'ab' * 0|| [1] * 2|| [1] + [2, 'x']|| (1,) + (2,)|| 'a' ~ 1 ~ none ~ 2.0|| 'a' 'b'
1 ~ 2 + 3|| 'x' + 1|| 1 / 0|| 1 % 0|| n - 1|| -n|| +n|| -'a'|| not yes|| not nothing|| not not 1
true and 'x'|| '' and 'x'|| '' or 'y'|| 0 or none|| 1 < 2|| 1 < 2 < 3|| 3 > 2 > 2|| 1 == 1.0
'a' == 'a'|| 'a' != 'b'|| 'a' < 'b'|| [1, 2] < [1, 3]|| [1] == [1]|| {'a': 1} == {'a': 1.0}
1 < 'a'|| none == none|| true == 1|| missing == none|| missing == other|| 'a' in 'abc'
'x' in words|| 'A' in words|| 'a' not in words|| 'a' in d|| 'zz' in d|| 1 in missing|| 1 in 'a'
not 'a' in 'b'|| 'x' if yes|| 'x' if nothing|| 'x' if nothing else 'y'|| 1 if 0 else 2 if 0 else 3
('a', 'b')|| (1,)|| ()|| []|| {}|| {'a': 1, 'b': [1, 2.0]}|| {'a': 1, 'a': 2}
[1, 'a', none, true, 1.0, "it's"]|| ['"', "'\"", 'a\nb', 'é', '\x01']|| list[0]|| list[-1]
list[5]|| list[1:]|| list[:-1]|| list[::-1]|| list[::2]|| list[5:]|| s[0]|| s[-1]|| s[1:4]
s[::-1]|| u[1]|| u[-1]|| u[6:]|| u[::-1]|| u|length|| words[::0]|| d['b']|| d.b|| d.a.x
d['a']['x'][2]|| d.zz|| d.zz.y|| d['items']|| d.get('zz')|| d.get('zz', 4)|| d.get('b')
d.items()|list|| d.keys()|list|| d.values()|list|| nested[1][0]|| nested.0.1|| s.upper()
s.lower()|| s.title()|| 'a b-c'.capitalize()|| s.split()|| s.split('o')|| s.split('o', 1)
s.rsplit('o', 1)|| ' a  b '.split()|| ' a  b c '.split(none, 1)|| ''.split()
' a b c '.rsplit(none, 1)|| ''.split(',')|| 'a,,b'.split(',')|| s.startswith('He')
s.endswith('x')|| s.startswith(('a', 'H'))|| s.replace('o', '0')|| s.replace('o', '0', 1)
'ab'.replace('', '-')|| s.find('o')|| u.find('好')|| s.find('zz')|| s.rfind('o')|| ' x '.strip()
'xxaxx'.strip('x')|| 'xay'.lstrip('x')|| 'xay'.rstrip('yz')|| '\n a\t'.strip() ~ '|'
', '.join(words)|| ''.join([1])|| '{} and {}'.format(1, 'a')|| '{0}{a}{{}}'.format(1, a=2)
'a\nb\r\nc\n'.splitlines()|| 'aXa'.count('a')|| 'abc'.removeprefix('a')|| 'abc'.removesuffix('c')
'12'.isdigit()|| ''.isdigit()|| 'A1'.isupper()|| 'straße'.upper()|| 'ÄÖ'.lower()|| s|upper
s|lower|| 'hello wORLD-x (y)'|title|| 'aBC'|capitalize|| '  a '|trim|| 'xax'|trim('x')
s|replace('l', 'L')|| 5|replace(5, 6)|| words|join|| words|join(', ')
messages|join('-', attribute='role')|| list|length|| d|length|| s|length|| missing|length
5|length|| missing|default('x')|| ''|default('x')|| ''|default('x', true)
nothing|d('x', boolean=true)|| d.zz|d(1)|| 'ab'|list|| d|list|| missing|list|| 5|string
true|string|| [1]|string|| '7'|int|| '7.9'|int|| 'x'|int|| 'x'|int(3)|| 7.9|int|| true|int
'1.5'|float|| 'x'|float|| 2|float|| ' 12 '|int|| list|first|| list|last|| ''|first|| s|first
s|last|| []|last|| d|items|list|| d|dictsort|| d|dictsort(reverse=true)
{'a': 3, 'b': 1}|dictsort(by='value')|| list|map('string')|list|| none|map('upper')|list
none|selectattr('a')|list|| words|map('upper')|join(',')
messages|map(attribute='role')|list|| messages|map(attribute='name', default='-')|join
messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list
words|map('replace', 'b', 'x')|list|| messages|selectattr('tool_calls')|list|length
messages|rejectattr('role', 'in', ['user', 'system'])|list|length|| list|select('odd')|list
list|reject('gt', 1)|list|| ['', 'a', 0]|select|list|| list|sort|| words|sort
words|sort(case_sensitive=true)|| list|sort(reverse=true)
messages|sort(attribute='role')|map(attribute='role')|list|| [1, 1.0, 2, 'a', 'A']|unique|list
list|reverse|list|| s|reverse|| list|sum|| [1.5, 1]|sum|| list|min|| list|max|| []|max
'a\nb\n\nc'|indent|| 'a\nb'|indent(2, true)|| 'a\n\nb'|indent(2, blank=true)
'a\nb\n'|indent('> ')|| '<b>'|safe|| 2.5|round|| 3.5|round|| 2.567|round(2)
2.1|round(method='ceil')|| 5|round|| -3|abs|| -2.5|abs|| d|tojson|| messages[2].tool_calls|tojson
d|tojson(indent=2)|| d|tojson(sort_keys=true)|| u|tojson|| u|tojson(ensure_ascii=true)
d|tojson(separators=(',', ':'))|| 'a"\\/\n\x01\x7f'|tojson|| [1.0, 1e20, none]|tojson
[]|tojson(indent=4)|| {'a': []}|tojson(indent=4)|| {1: 2, none: 3, true: 4}|tojson
missing|tojson|| missing is defined|| s is defined|| missing is undefined|| d.zz is defined
nothing is none|| s is string|| 5 is string|| 5 is number|| true is number|| true is integer
5 is integer|| 5.0 is float|| true is boolean|| d is mapping|| list is mapping|| list is iterable
s is iterable|| 5 is iterable|| list is sequence|| d is sequence|| s is sequence|| 5 is sequence
true is true|| 1 is true|| false is false|| 5 is odd|| 4 is even|| 9 is divisibleby 3
9 is divisibleby(4)|| 1 is eq 1|| 1 is equalto(2)|| 1 is ne 2|| 2 is gt 1|| 2 is lt 1
'a' is in ['a']|| s is not string|| s is string and 5 is not none|| missing is not defined or 1
d.items is defined|| d.items is callable|| s.upper|length|| 'ab' is lower|| 'AB' is upper
list|list is sequence|| (list|map('string')) is sequence|| missing|| missing.x|| missing + 1
-missing|| missing()|| missing[0]|| s.zz|| s.zz()|| list.append(1)|| d.update({'a': 1})
nothing.x|| nothing.x.y|| 5.x|| range(3)|list|| range(2, 8, 3)|list|| range(5, 0, -2)|list
range(0)|list|| range(1000000)|length|| dict(a=1, b=2)|| dict({'a': 1}, b=2)|| namespace(a=1).a
namespace(a=1)|| strftime_now('%d %b %Y')|| strftime_now('%Y-%m-%d %A')|| raise_exception('no')
bos_token ~ '[' ~ n ~ ']'|| "\u00e9\x41\101\t|"|| '\q'|| 'it''s'|| 1 if missing is defined else 2
[1, 2]|first + 1|| s|upper ~ 'x'|| (s ~ 'x')|upper|| -list|first|| {'k': list}['k'][0]
[[1, 2], [3]]|map('length')|list|| messages[-1]['role']|| messages[1:]|length
messages[0].content.split(' ')[0]|| 'a' ~ ('b' if yes) ~ ('c' if nothing)|| '%s' in s
9007199254740993|| 1.0|| 100000.0|| 123456789012345680.0|| 1e-4|| 0.00001|| 3.14|string|| 1, 2
(1)|| 'a</think>b'.split('</think>')[-1].lstrip('\n')|| d.a.x|tojson ~ '!'|| 'abc'[1]
'x' * 3 ~ 'y'|| [none]|| {'a': none}|string
nothing[1:]|| n[1:]|| missing[1:]|| d[1:]|| d.items()[1:]|| (list|map('string'))[1:]
namespace({'a': 1}, a=2).a|| namespace({'a': 1}, b=2).a|| dict({'a': 1}, a=2)
true is sameas true|| 1 is sameas true|| none is sameas none|| nothing is not sameas(false)
list is sameas list|| [1] is sameas [1]|| 'aXbXa'.count('X')|| 'a'.count('')|| 'aaa'.count('aa')
'abab'.rfind('ab')|| 'abc'.rfind('')|| 'ab'.rfind('abc')|| 'abab'.rsplit('b')|| 'aab'.find('ab')
''.find('')|| 'a'.find('ab')|| 'abb'.replace('b', '')|| '' in ''|| 'a' in ''|| 'aXXb'.split('XX')
'aab'.replace('ab', 'x')|| 'a\r\nb\x85c\u2028d'.splitlines()|| 'a\r\nb'|indent|| ''|indent
'a'|indent(2, true)|| ''|indent(2, true)|| '\n'|indent(2, true, true)|| s.startswith(())
"""

BLOCKS = [
    "{% if yes %}a{% elif n %}b{% else %}c{% endif %}",
    "{% if not yes %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if nothing %}a{% elif missing %}b{% else %}c{% endif %}",
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop."
    "length }}{{ loop.revindex }}{{ loop.revindex0 }}:{{ x }} {% endfor %}",
    "{% for x in list %}{{ loop.previtem }}-{{ loop.nextitem }},{% endfor %}",
    "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in list %}a{% else %}b{% endfor %}",
    "{% for x in list if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% endfor %}",
    "{% for x in list if x > 5 %}a{% else %}b{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for (a, b) in nested %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in list %}{% endfor %}",
    "{% for c in 'aé' %}[{{ c }}]{% endfor %}",
    "{% for x in missing %}a{% endfor %}|",
    "{% for x in 5 %}a{% endfor %}",
    "{% for x in none %}a{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}z{% endfor %}",
    "{% for x in list %}{% for y in words %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endf"
    "or %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{% endfor %}",
    "{% for x in list %}{{ loop.zz }}{% endfor %}|",
    "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in list|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% set x = 1 %}{% for y in list %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=0, y='a') %}{% for y in list %}{% set ns.x = ns.x + y %}{% endfor %"
    "}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}{{ ns['x'] }}",
    "{% set ns = namespace(found=false) %}{% for x in list if not ns.found %}{% if x == 1 %}{% s"
    "et ns.found = true %}{% endif %}{{ x }}{% endfor %}",
    "{% set d2 = {'a': 1} %}{% set d2.a = 2 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}",
    "{% set a, b = nested[0] %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% if yes %}{% set z = 5 %}{% endif %}{{ z }}",
    "{% for x in [1] %}{% set z = 5 %}{% endfor %}{{ z }}|",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x is string }}{{ x|length }}",
    "{% set x | upper | trim %} a{% endset %}[{{ x }}]",
    "{% set x %}{% set y = 2 %}{% endset %}{{ y }}|",
    "{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}|",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}|",
    "{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}"
    "{{ m(b=3, a=4) }}",
    "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=1) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(4) }}",
    "{% macro m(a, b=9) %}{{ a }}-{{ b }}|{% endmacro %}{{ m(*[1, 2]) }}{{ m(*(3,)) }}"
    "{{ m(4, *[5]) }}{{ m(*[], a=6) }}{{ m(*[7], b=8) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1, 2]) }}",
    "{{ 'a-b'.replace(*['-', '+']) }}{{ 'x'|replace(*['x', 'y']) }}{{ range(*[1, 4])|list }}",
    "{{ range(*3) }}",
    "{{ ('<a>'|safe + '<b> & \\'c\\' \"d\"') + ('x<' + ('<y>'|safe)) }}{{ '<a>'|safe ~ '<b>' }}",
    "{{ '<'|safe }}{{ ('<'|safe + {'k': '<'}|tojson)|length }}{{ ('a'|safe) == 'a' }}"
    "{{ ('<'|safe)|replace('<', '>') }}{{ ['<'|safe, '<']|join('<') }}",
    "{{ '<'|safe + 1 }}",
    "{% macro r(x) %}{% if x %}{{ x }}{{ r(x - 1) }}{% endif %}{% endmacro %}{{ r(4) }}",
    "{% set g = 1 %}{% macro m() %}{{ g }}{{ n }}{% set g = 5 %}{{ g }}{% endmacro %}{{ m() }}{{"
    " g }}",
    "{% macro m() %} a {% endmacro %}{{ m()|trim ~ '!' }}{{ m() is string }}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% for x in list %}{% macro_ %}{% endfor %}",
    "{# comment #}a{#- b -#} c {# {{ #}",
    "a {%- if yes -%} b {%- endif -%} c",
    "a {{- n -}} b",
    "  {% if yes %}\n  x\n  {% endif %}\ny",
    "  {%+ if yes %}\n  x\n  {%+ endif +%}\ny",
    "{% if yes +%}\nx\n{% endif %}\n",
    "a\n  {# c #}\nb\n",
    "a\n  {#- c -#}\n  b\n",
    "  {{ n }}\n  {{ n }}\n",
    "a  {% if yes %}b{% endif %}  \n",
    "x\n\n",
    "\r\na\rb\n",
    "\n  {%- if yes %}\n\n  x\n  {%- endif %}\n",
    "{% raw %}{{ x }}{% if %}{% endraw %}|",
    "{%- raw -%} a {%- endraw -%} b",
    "  {% raw %}\n a\n  {% endraw %}\nb",
    "{{ '}}' }}{{ {'a': {'b': 1}} }}",
    "{{ {'a': 1}.a }}{{ '%}' }}",
    "{% set x = '%}' %}{{ x }}",
    "{ { }} { % %}",
    "{{ n }}}",
    "a{{ n }}\n\nb",
    "{{+ n }}{{- n +1 }}",
    "{% generation %}abc{% endgeneration %}d",
    "é{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% en"
    "dfor %}",
    "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}|",
    "{% for m in messages %}{% if m.role == 'assistant' %}{%- generation -%} {{ m.content }} {%-"
    " endgeneration -%}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' +"
    " '\n' }}{% endfor %}",
    "{%- for m in messages %}\n    {%- if m.role == 'user' or (m.role == 'system' and not loop.f"
    "irst) %}\n        {{- m.role + ':' + m.content|trim }}\n    {%- elif m.tool_calls %}\n     "
    "   {%- for t in m.tool_calls %}\n            {%- if t.function %}{%- set t = t.function %}{"
    "%- endif %}\n            {{- t.name ~ t.arguments|tojson }}\n        {%- endfor %}\n    {%-"
    " endif %}\n{%- endfor %}",
    "{%- set ns = namespace(multi=true, last=messages|length - 1) %}{%- for m in messages[::-1] "
    "%}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi and m.role == 'user"
    "' %}{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{{ ns.las"
    "t }}",
    "{% set c = messages[2].content %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('"
    "\n').split('<think>')[-1].lstrip('\n') }}|{{ c.split('</think>')[-1].lstrip('\n') }}{% endi"
    "f %}",
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest "
    "= messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 "
    "== 0) %}{{ raise_exception('order') }}{% endif %}{{ m.role }}{% endfor %}",
    "{% if messages|selectattr('role', 'equalto', 'nobody') %}lazy{% endif %}",
    "{% set g = list|map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{"
    "% endfor %}|",
    "{% set g = list|select('gt', 1) %}{{ g|first }}{{ g|list }}",
    "{{ (list|map('string'))|length }}",
    "{{ (list|map('string'))[0] }}|",
    "{{ d.items()[0] }}|",
    "{{ d.items()|length }}",
    "{{ [list|map('string')]|length }}",
    "{% for x in list %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% set x = [] %}{% for m in messages %}{% set x = x + [m.role] %}{% endfor %}{{ x }}",
    "{% if nothing %}{{ 1|zz }}{{ 1 is zz }}{% endif %}ok",
    "{{ 1|zz if nothing }}{{ 1 is zz if nothing }}|",
    "{% if yes %}{{ 1|zz }}{% endif %}",
    "{% if yes %}{{ 1 is zz }}{% endif %}",
    "{{ []|map('zz')|list }}",
    "{% set ns = namespace({'a': 1, 'b': 2}, b=3) %}{% set ns.a = 4 %}{{ ns.a }}{{ ns.b }}",
    "{% if %}",
    "{% if yes %}",
    "{% endif %}",
    "{% for x %}{% endfor %}",
    "{{ }}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 'a }}",
    "{% zz %}",
    "{{ 1 | zz }}",
    "{{ 1 is zz }}",
    "{{ a b }}",
    "{% break %}",
    "{# a",
    "{{ [1,,2] }}",
    "{% set 1 = 2 %}",
    "{{ 1 2 }}",
    "{% for x in list %}{% endif %}",
    "{{ a.'b' }}",
    "{{ @ }}",
    "{% macro m %}{% endmacro %}",
    "{% if a = b %}{% endif %}",
    # Texts are stripped of what Unicode calls white space, and sort is stable.
    "{{ '\u00a0\u3000 x\u2003\u0085 '|trim }}|{{ '\u2028x\u1680'.strip() }}",
    "a\u00a0 {%- if 1 -%} \u3000\u2009b{% endif %}",
    "{% set l = [{'k': 1, 'n': 'a'}, {'k': 0, 'n': 'b'}, {'k': 1, 'n': 'c'}, {'k': 0, 'n': 'd'}] %}"
    "{% for m in l|sort(attribute='k') %}{{ m.n }}{% endfor %} "
    "{% for m in l|sort(attribute='k', reverse=true) %}{{ m.n }}{% endfor %}",
]

SNIPPETS = ["{{ " + expression.strip() + " }}"
            for line in EXPRESSIONS.strip().split("\n") for expression in line.split("||")] + BLOCKS

# Each must end in an error, within the bounds of time and memory.
HOSTILE = [
    "{{ '[1]'|from_json }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 1000000000000 }}", "{{ [0] * 1000000000000 }}", "{{ ('a' * 1000000) * 1000000 }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}"
    "{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% endfor %}"
    "{{ ns.l }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% endfor %}"
    "{% set m = namespace(l=[1]) %}{% for i in range(60) %}{% set m.l = [m.l, m.l] %}{% endfor %}"
    "{{ ns.l == m.l }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}"
    "{% endfor %}{{ ns.l|tojson }}",
    "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns.self }}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(x) %}{{ n(x) }}{% endmacro %}{% macro n(x) %}{{ m(x) }}{{ m(x) }}"
    "{% endmacro %}{{ m(1) }}",
    "{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "{{ " + "[" * 1000 + "]" * 1000 + " }}",
    "{{ " + "not " * 1000 + "1 }}", "{{ " + "-" * 1000 + "1 }}", "{{ 1" + " + 1" * 1000 + " }}",
    "{{ x" + ".y" * 1000 + " }}", "{{ x" + "|trim" * 1000 + " }}", "{{ 1" + " if 1" * 1000 + " }}",
    "{% if 1 %}" * 1000 + "{% endif %}" * 1000, "{% for a in b %}" * 1000 + "{% endfor %}" * 1000,
    "{% if 1 %}" + "{% elif 1 %}" * 1000 + "{% endif %}", "{{ 'x'|indent(100000000000) }}",
    "{{ ('a\n' * 1000000)|indent(1000000) }}", "{{ range(10 ** 15) }}", "{{ 9 ** 9 ** 9 }}",
    "{{ 9223372036854775807 + 1 }}", "{{ 99999999999999999999 }}", "{{ 10 ** 400 * 1.0 }}",
    "{{ ('a,' * 10000000).split(',')|length }}",
    "{{ ('ab' * 9000000).replace('a', 'b' * 1000)|length }}",
    "{{ strftime_now('%1000000000d') }}", "{{ strftime_now('%Y' * 1000) }}",
    "{{ [1]|map('zz')|list }}",
    "{{ [1]|map|list }}", "{{ [1]|selectattr|list }}", "{{ range(0, 10, 0) }}",
    "{{ 1|round(99999) }}",
    "{{ d|tojson(indent=99999999999) }}", "{{ (range(99999)|list * 100)|sort|length }}",
    "{{ (range(99999)|map('string')|join(',')).split(',')|unique|list|length }}",
    "{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{{ x == 'b' ~ x }}{% endfor %}",
    "{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}"
    "{% endfor %}",
    "{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{% if x[1] %}{% endif %}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{{ x }}{{ x }}{{ x }}", "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}", "{% call m() %}{% endcall %}",
    "{{ s.__class__ }}{{ s.__class__.__mro__ }}", "{{ s.__class__() }}",
    "{% set h = namespace(x=namespace({'a': 1})) %}{% for i in range(30000) %}"
    "{% set h.x = namespace({'a': {'k': h.x.a}}) %}{% endfor %}{{ h.x.a|tojson|length }}",
    "{% set h = namespace(x=namespace({'a': 1})) %}" +
    "{% for i in range(99999) %}{% set h.x = namespace({'a': [h.x.a]}) %}{% endfor %}" * 5,
    "{% set h = namespace(x=namespace(a=1)) %}{% for i in range(99999) %}"
    "{% set h.x = namespace(a=[h.x.a]) %}{% endfor %}",
    "{% set h = namespace(x=[].append) %}{% for i in range(99999) %}"
    "{% set h.x = [h.x].append %}{% endfor %}",
    ("{% for x in " + "[" * 90 + "x" + "]" * 90 + " %}") * 60 + "{% endfor %}" * 60,
    "{{ ('a ' * 16000000).split()|length }}", "{{ ('a ' * 16000000).rsplit()|length }}",
    "{{ ('a,' * 16000000).rsplit(',')|length }}", "{{ ('a\n' * 16000000).splitlines()|length }}",
    "{{ ('a\n' * 16000000)|indent(8)|length }}", "{{ ('\x01' * 60000000)|tojson|length }}",
    "{{ ['\x01' * 120000000]|string|length }}",
    "{% set d = {" + ", ".join(f"'k{i}': 1" for i in range(100)) + "} %}"
    "{% for i in range(50000) %}{% set x = namespace(d) %}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{% set y = 'a' * 4000000 ~ 'b' %}{% for i in range(9999) %}"
    "{{ y in x }}{{ x.find(y) }}{{ x.count(y) }}{{ x.split(y)|length }}"
    "{{ x.replace(y, '') is none }}"
    "{% endfor %}",
    "{% set x = 'a' * 8000000 %}{{ x.rfind('b' ~ 'a' * 4000000) }}",
    "{% set x = 'a' * 8000000 %}{{ x.rsplit('b' ~ 'a' * 4000000)|length }}",
    "{% set x = 'a' * 9000000 %}{% for i in range(99999) %}{{ ''.find(x) }}{% endfor %}",
    "".join("{% set v" + str(i) + " = 1 %}" for i in range(3000)) +
    "{% for i in range(99999) %}{% if v2999 %}{% endif %}{% endfor %}",
    "{% set n = namespace(" + ", ".join(f"v{i}=1" for i in range(3000)) + ") %}"
    "{% for i in range(99999) %}{% if n.v2999 %}{% endif %}{% set n.v2999 = 2 %}{% endfor %}",
    "{% macro m(" + ", ".join(f"v{i}=1" for i in range(2000)) + ") %}{% endmacro %}"
    "{% for i in range(50) %}{{ m(" + ", ".join(f"v{i}=1" for i in range(2000)) +
    ") }}{% endfor %}",
    "{% for x in list recursive %}{{ loop(x) }}{% endfor %}", "{{ cycler() }}", "{{ x(*y) }}",
    "{{ 'a'|attr('b') }}",
    "{% for x in list %}{% macro m() %}{% endmacro %}{% endfor %}",
    "{% set ns = namespace() %}{% for x in list if x %}{% set ns.l = loop %}"
    "{% endfor %}{{ ns.l.last }}{{ ns.l.nextitem.x }}",
]
