#!/usr/bin/env bash
# Make an environment with the published toto-2 package, to be timed beside this project.
# Usage: bench/peer/setup.sh DIR   (about 1 GB)
set -euo pipefail
dir=${1:?usage: setup.sh DIR}
"${PYTHON:-python3}" -m venv "$dir"
pip=("$dir/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" torch==2.13.0
# It asks for Python 3.12 and for GluonTS with lightning; the model alone needs neither.
"${pip[@]}" --ignore-requires-python --no-deps toto-2==2.0.0 dd-unit-scaling==0.1.0
"${pip[@]}" unit-scaling==0.3.5 einops jaxtyping safetensors huggingface-hub pandas gluonts 'numpy<2.5' \
  fastapi uvicorn pydantic
"$dir/bin/python" -c 'import torch; print("published package ready, torch", torch.__version__)'
