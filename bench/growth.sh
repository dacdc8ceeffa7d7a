#!/usr/bin/env bash
# Few finished commands against many: register, replay, claim; bytes on disk; memory of a session.
#   bench/growth.sh [MANY]     default 1,000,000; FULL=1: 10,000,000 (some 20 GB of disk and a quarter of an hour more)
. "$(dirname "$0")/lib.sh"
server_ready
part growth "$@"
