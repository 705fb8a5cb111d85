#!/usr/bin/env bash
# Serve forecasts: ./start_serve.sh [PORT] [DEVICE] [more flags of server.py]
#   PORT    default 8040; DEVICE auto (default), cpu, npu:N or cuda:N
# Makes .venv and installs what is missing the first time. Settings are environment variables too (README).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/environment.sh

case ${1:-} in
  -h | --help)
    sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
port=${1:-${PORT:-8040}}
device=${2:-${DEVICE:-auto}}
shift $(($# < 2 ? $# : 2))
if ! [[ $port =~ ^[0-9]{1,5}$ ]] || ((10#$port < 1 || 10#$port > 65535)); then
  fail "PORT must be a number from 1 to 65535, found '$port'"
fi
[[ $device =~ ^(auto|cpu|(npu|cuda)(:[0-9]+)?)$ ]] || fail "DEVICE must be auto, cpu, npu:N or cuda:N, found '$device'"

if [[ $device == npu* ]] && ! compgen -G '/dev/davinci[0-9]*' >/dev/null; then
  fail "device $device was asked for, and this host has no NPU (/dev/davinci0, ...); nothing was changed"
fi
requirements='requirements.txt'
if [[ $device == npu* || ($device == auto && -e /dev/davinci_manager) ]]; then
  requirements='requirements-ascend.txt'
  for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/cann/set_env.sh; do
    if [[ -z ${ASCEND_HOME_PATH:-} && -f $script ]]; then
      set +u # CANN's script reads what may be unset
      # shellcheck source=/dev/null
      . "$script"
      set -u
    fi
  done
fi
environment "$requirements"
exec .venv/bin/python server.py --port "$port" --device "$device" "$@"
