# shellcheck shell=bash
# Sourced by start_serve.sh and run_tests.sh: `environment FILE ...` makes .venv hold those requirements.
# A stamp with the files' digest is written last, so that an installation cut short is done again.

fail() {
  echo "error: $*" >&2
  exit 1
}

environment() {
  local python=${PYTHON:-python3} stamp log file
  local -a files=()
  [ -x .venv/bin/python ] && python=.venv/bin/python
  command -v "$python" >/dev/null || fail "$python is not there; install Python 3.11 or later, or name it in PYTHON"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old; install Python 3.11 or later, or name it in PYTHON"
  stamp=$(cat "$@" | sha256sum | cut -d' ' -f1)
  exec 9>.venv.lock # two starts at once: the second waits
  flock 9
  if [ "$(cat .venv/requirements.sha256 2>/dev/null)" != "$stamp" ]; then
    log=.venv/install.log
    echo "installing $* into .venv (once; a few minutes) ..." >&2
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
      rm -rf .venv # half made
      "$python" -m venv .venv || fail "$python -m venv .venv failed; is the venv module installed, and the disk not full?"
    fi
    for file in "$@"; do files+=(-r "$file"); done
    .venv/bin/python -m pip install --disable-pip-version-check "${files[@]}" >"$log" 2>&1 ||
      fail "pip could not install $*: $(grep -iE 'error|no space' "$log" | tail -n 1) (all of it in $log)"
    echo "$stamp" >.venv/requirements.sha256
  fi
  flock -u 9
  exec 9>&-
}
