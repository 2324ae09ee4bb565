#!/usr/bin/env bash
# Makes build/pagoda_moe-VERSION-py3-none-manylinux_2_36_x86_64.whl, which carries the portable
# program: `pip install FILE.whl`, then `pagoda --version`. The program itself runs no Python; what
# it lacks, its README.txt says. Then installs it into an environment of its own, without an index,
# and runs it there.
#
#   tools/wheel.sh [-DNAME=VALUE...]      builds the portable program first (tools/portable.sh)
#   tools/wheel.sh --archive FILE.tar.gz  takes one that is built
set -euo pipefail
cd "$(dirname "$0")/.."

archive=build/pagoda-portable.tar.gz
if [ "${1:-}" = --archive ]; then
  archive=$2
else
  tools/portable.sh "$@"
fi
wheel=$(python3 tools/make_wheel.py "$archive" --out build)

try=$(mktemp -d)
trap 'rm -rf "$try"' EXIT
python3 -m venv "$try/env"
"$try/env/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
said=$(env -i "$try/env/bin/pagoda" --version)
[[ "$said" == "pagoda "* ]] || { echo "wheel: FAIL: it says \"$said\"" >&2; exit 1; }
[ "$(env -i "$try/env/bin/python" -m pagoda_moe --version)" = "$said" ] \
  || { echo "wheel: FAIL: python -m pagoda_moe says something else" >&2; exit 1; }
code=0
env -i "$try/env/bin/pagoda" train 2> "$try/err" || code=$?
[ "$code" = 2 ] || { echo "wheel: FAIL: exit codes do not come through: $code" >&2; exit 1; }
"$try/env/bin/pip" uninstall --quiet --yes --disable-pip-version-check pagoda-moe
[ ! -e "$try/env/bin/pagoda" ] || { echo "wheel: FAIL: it stays behind" >&2; exit 1; }
echo "wheel: PASS: $wheel, $(($(stat -c %s "$wheel") >> 20)) MiB; $said"
