# shellcheck shell=bash
# Sourced by scripts/policyfs and scripts/test: makes what they run in, once, and finds it made ever after. The caller
# has set `scripts` to the directory of this file.
#
#   prepare EXTRA COMMAND=PACKAGE...    leaves $environment, a virtual environment with policyfs and its EXTRA ("" for none)
#
# Every call asks the same three questions: are the Debian packages there (by the commands they bring, since node or
# python often come from elsewhere), is the virtual environment there, is its stamp that of today's pyproject.toml. No
# process of Python or pip is started to answer them, so a command that finds all in place starts at once.
#
# All that is made lies under $XDG_CACHE_HOME (or ~/.cache), by release and machine type, because a wheel built against
# one release's libfuse does not load on the next:
#   environments/KEY   one for each checkout and $POLICYFS_PYTHON
#   wheels             shared by all checkouts: pyfuse3 is compiled once, and a second clone needs no network
#   log                what apt-get and pip said
# To start again, delete it.

set -euo pipefail

root=${scripts%/scripts}

say() { printf 'policyfs: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

digest() { sha256sum | cut -c1-64; }

# shellcheck source=/dev/null
system=$(. /etc/os-release 2>/dev/null && printf '%s-%s' "$ID" "${VERSION_ID:-rolling}") || system=linux
cache=${XDG_CACHE_HOME:-~/.cache}/policyfs/$system-$HOSTTYPE
key=$(printf '%s\n' "$root" "${POLICYFS_PYTHON:-}" | digest)
environment=$cache/environments/${key:0:16}

prepare() {
  local extra=$1 fingerprint stamp
  shift
  fingerprint=$(cat "$root/pyproject.toml" "$root/scripts/environment.sh" | digest)
  stamp=$environment/installed${extra:+-$extra}
  [ -z "$(missing_commands "$@")" ] && installed && return
  mkdir -p "$cache/environments" "$cache/wheels" 2>/dev/null || fail "cannot write to $cache; set XDG_CACHE_HOME to another directory"
  # Two first uses at once: the second waits and then finds everything made. The lock's descriptor ends with the
  # subshell, so that no daemon started later holds it.
  (
    flock 9
    # pip builds in processes of its own, which -I does not reach.
    unset "${!PYTHON@}"
    find_python
    install_packages $(missing_commands "$@") $(missing_for_python)
    installed || { make_environment && printf %s "$fingerprint" >"$stamp"; }
  ) 9>"$cache/lock"
}

installed() { [ -x "$environment/bin/python" ] && [ -r "$stamp" ] && [ "$(<"$stamp")" = "$fingerprint" ]; }

# The packages whose command is not there.
missing_commands() {
  local pair
  for pair; do type -P "${pair%%=*}" >/dev/null || printf '%s ' "${pair#*=}"; done
}

find_python() {
  local candidate candidates=(python3 /usr/bin/python3)
  [ -z "${POLICYFS_PYTHON:-}" ] || candidates=("$POLICYFS_PYTHON")
  for candidate in "${candidates[@]}"; do
    # The interpreter behind a virtual environment, a shim or a link: the one that stays when those change.
    python=$("$candidate" -I -c '
import os, sys
assert sys.version_info >= (3, 11)
print(os.path.realpath(sys._base_executable))' 2>/dev/null) && return
  done
  fail "no Python 3.11 or newer as ${candidates[*]}; install one (apt-get install python3) or set POLICYFS_PYTHON to its path"
}

# What Debian leaves out of its python3, and, where no wheel of pyfuse3 is at hand, what compiling it takes.
missing_for_python() {
  "$python" -I - "$cache/wheels" <<'PYTHON'
import importlib.util, os, shutil, subprocess, sys, sysconfig

name = f"python3.{sys.version_info.minor}"
missing = [] if importlib.util.find_spec("ensurepip") else [f"{name}-venv"]
tag = f"-cp3{sys.version_info.minor}-"
if not any(wheel.startswith("pyfuse3-") and tag in wheel for wheel in os.listdir(sys.argv[1])):
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing.append(f"{name}-dev")
    if not shutil.which("gcc"):
        missing += ["gcc", "libc6-dev"]
    if not shutil.which("pkg-config"):
        missing += ["pkg-config", "libfuse3-dev"]
    elif subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        missing.append("libfuse3-dev")
print(*missing)
PYTHON
}

install_packages() {
  [ $# -gt 0 ] || return 0
  local elevate=() install=(apt-get install -y --no-install-recommends "$@")
  type -P apt-get >/dev/null || fail "please install what Debian calls: $*"
  if [ "$(id -u)" != 0 ]; then
    elevate=(sudo)
    # Without a terminal nobody can type a password.
    { type -P sudo && { [ -t 0 ] || sudo -n true; }; } >/dev/null 2>&1 || fail "Debian packages are missing; run as root: ${install[*]}"
  fi
  elevate+=(env DEBIAN_FRONTEND=noninteractive)
  say "installing Debian packages: $*"
  # Up-to-date lists need no update, and it is the slow part.
  "${elevate[@]}" "${install[@]}" >"$cache/log" 2>&1 ||
    { "${elevate[@]}" apt-get update && "${elevate[@]}" "${install[@]}"; } >>"$cache/log" 2>&1 ||
    fail_with_log "apt-get failed; run as root: apt-get update && ${install[*]}"
}

make_environment() {
  # One that was left half made has a python, but no pip that runs.
  if ! "$environment/bin/python" -I -m pip --version >/dev/null 2>&1; then
    say "making a virtual environment of $("$python" -V)"
    "$python" -I -m venv --clear "$environment" >"$cache/log" 2>&1 || fail_with_log "cannot make a virtual environment"
  fi
  install_from_wheels >"$cache/log" 2>&1 && return
  say "building pyfuse3 and fetching the other wheels, once for all checkouts (about a minute)"
  "$environment/bin/python" -I - "$root/pyproject.toml" "$extra" <<'PYTHON' >"$environment/requirements.txt"
import sys, tomllib

with open(sys.argv[1], "rb") as file:
    configuration = tomllib.load(file)
project = configuration["project"]
# The build backend too: pip fetches it again for each editable install.
for requirement in [
    *configuration["build-system"]["requires"],
    *project["dependencies"],
    *project["optional-dependencies"].get(sys.argv[2], []),
]:
    print(requirement)
PYTHON
  {
    # Prefer a wheel at hand to a newer source distribution: only a raised bound in pyproject.toml compiles again.
    pip wheel --prefer-binary --find-links "$cache/wheels" --wheel-dir "$cache/wheels" --requirement "$environment/requirements.txt" &&
      install_from_wheels
  } >"$cache/log" 2>&1 || fail_with_log "pip failed"
}

install_from_wheels() { pip install --no-index --find-links "$cache/wheels" --editable "$root${extra:+[$extra]}"; }

# Isolated, so that neither PYTHON* variables nor a module in the current directory take part.
pip() { "$environment/bin/python" -I -m pip --disable-pip-version-check "$@"; }

fail_with_log() {
  tail -n 15 "$cache/log" >&2
  fail "$1 (all of its output: $cache/log)"
}
