#!/usr/bin/env bash
# Run the Ascend image with one chip of this host: deploy/run-ascend.sh [CHIP] [PORT] [COMMAND ...]
#   CHIP     number of /dev/davinciN, default 0; inside the container it is npu:0
#   PORT     port on this host's loopback, default 8040
#   COMMAND  instead of the service: deploy/run-ascend.sh 1 8040 python3 verify_npu_vs_cpu.py --report /dev/stdout
# IMAGE (toto-serve-ascend), MODELS (./models) and KEYS (./keys, with keys.txt in it) name what is used.
# DRY_RUN=1 prints the command. One card belongs to one container unless device-share is on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

chip=${1:-0}
port=${2:-8040}
shift $(($# < 2 ? $# : 2))

fail() {
  echo "error: $*" >&2
  exit 1
}
[[ $chip =~ ^[0-9]+$ ]] || fail "CHIP must be a number, found '$chip'"
if ! [[ $port =~ ^[0-9]{1,5}$ ]] || ((port < 1 || port > 65535)); then
  fail "PORT must be a number from 1 to 65535, found '$port'"
fi
if [ -z "${DRY_RUN:-}" ]; then
  command -v docker >/dev/null || fail "docker is not there"
  [ -e "/dev/davinci$chip" ] || fail "/dev/davinci$chip is not there; this host has $(echo /dev/davinci[0-9]*)"
  [ -s "${KEYS:-keys}/keys.txt" ] || fail "${KEYS:-keys}/keys.txt is not there: a line 'name key' for each caller"
fi

arguments=(run --rm --init --name "toto-serve-$chip" --publish "127.0.0.1:$port:8040" --stop-timeout 35)
for device in "davinci$chip" davinci_manager devmm_svm hisi_hdc; do
  arguments+=(--device "/dev/$device")
done
for path in /usr/local/dcmi /usr/local/bin/npu-smi /usr/local/Ascend/driver/lib64 \
  /usr/local/Ascend/driver/version.info /etc/ascend_install.info; do
  arguments+=(--volume "$path:$path:ro")
done
arguments+=(--volume "$(realpath "${MODELS:-models}"):/srv/toto/models:ro")
arguments+=(--volume "$(realpath -m "${KEYS:-keys}"):/run/keys:ro")
for setting in MODEL_PATH DTYPE ATTENTION MAX_SEQ_LENGTH MAX_REQUEST_TOKENS MAX_BODY_BYTES MAX_CONCURRENT_REQUESTS \
  REQUEST_TIMEOUT_S MAX_BATCH_TOKENS DRAIN_TIMEOUT_S LOG_FORMAT LOG_LEVEL; do
  if [ -n "${!setting:-}" ]; then
    arguments+=(--env "$setting=${!setting}")
  fi
done
arguments+=("${IMAGE:-toto-serve-ascend}" "$@")

if [ -n "${DRY_RUN:-}" ]; then
  printf '%q ' docker "${arguments[@]}"
  echo
  exit 0
fi
exec docker "${arguments[@]}"
