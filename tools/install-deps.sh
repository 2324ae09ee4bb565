#!/usr/bin/env bash
# Installs what building and testing pagoda needs from Debian packages. Does nothing, and needs no
# rights, when everything is there. As a normal user it goes through sudo.
#
#   tools/install-deps.sh               compiler, libraries, test library, a book to train on
#   tools/install-deps.sh --quickstart  also .venv with what brings the quickstart's model and data
#   tools/install-deps.sh --python      also .venv with all developers' tools (golden files, parity
#                                       checks); pagoda itself never runs Python
#   tools/install-deps.sh --clang       also the compiler of sanitized builds and of tools/fuzz.sh
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  build-essential cmake ninja-build pkg-config git ca-certificates
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libdnnl-dev ocl-icd-opencl-dev
  libopenmpi-dev openmpi-bin
  liburing-dev libisal-dev libxxhash-dev libgtest-dev libssl-dev
  libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
  python3 python3-venv
  bible-kjv bible-kjv-text
)

requirements=
for argument in "$@"; do
  case "$argument" in
    --quickstart) requirements=tools/requirements-quickstart.txt ;;
    --python) requirements=tools/requirements.txt ;;
    --clang)  # llvm: names in reports
      packages+=(clang-16 libclang-rt-16-dev libomp-16-dev lld-16 llvm-16) ;;
    -h | --help)
      sed -n '2,10s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *)
      echo "install-deps: unknown argument \"$argument\" (--quickstart, --python, --clang)" >&2
      exit 2
      ;;
  esac
done

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
  echo "install-deps: this is not Debian or Ubuntu; install by hand what matches:" >&2
  echo "  ${packages[*]}" >&2
  exit 69
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done

if [ "${#missing[@]}" -eq 0 ]; then
  echo "install-deps: all ${#packages[@]} packages are installed"
else
  echo "install-deps: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "install-deps: not root and no sudo; as root run: apt-get install ${missing[*]}" >&2
      exit 69
    fi
    as_root=(sudo)
  fi
  # Old package lists name files that mirrors no longer have.
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

if [ -n "$requirements" ]; then
  if [ ! -x .venv/bin/python ]; then python3 -m venv .venv; fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements"
  echo "install-deps: .venv has the Python tools of $requirements"
fi
