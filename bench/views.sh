#!/usr/bin/env bash
# The documented query of each view over many finished commands and a usual number of open ones: times and plans.
#   bench/views.sh [MANY]     default 1,000,000; FULL=1: 10,000,000 (some 20 GB of disk)
. "$(dirname "$0")/lib.sh"
server_ready
part views "$@"
