#!/usr/bin/env bash
# Lint, types and all tests. Arguments go to pytest, as in: ./run_tests.sh -k batch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/environment.sh
environment requirements.txt requirements-test.txt

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} .venv/bin/python -m pytest "$@"
