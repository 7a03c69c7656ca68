#!/usr/bin/env bash
# The whole test suite, on real servers.
#
#   ./test.sh                     everything
#   ./test.sh --test contract     arguments go to `cargo test`
#
# It starts private, throw-away servers (PostgreSQL, MariaDB, MySQL) on free ports of 127.0.0.1, and stops
# them at the end, also after Ctrl-C. If the machine lacks a server, it fetches the server first (on Debian and
# Ubuntu), and installs nothing; see docker/servers.sh. It gets RabbitMQ (for the example `inbox`) and libfaketime in the same way: a fault test moves the
# clocks of processes with it. To use a server of yours instead, give its URL in
# ROWLOCK_TEST_POSTGRES_URL, ROWLOCK_TEST_MARIADB_URL or ROWLOCK_TEST_MYSQL_URL; its user must be allowed to
# create databases. The run fails if a server is missing.
#
# These variables make the fault and cluster tests longer. The second number made the figures in the documentation.
#
#   ROWLOCK_FAULT_SECONDS    (default 5, 60)       seconds of each fault campaign
#   ROWLOCK_ZOMBIE_ROUNDS    (default 24, 300)     paused holders
#   ROWLOCK_CANCELS          (default 2000, 10000) cancelled operations per engine
#   ROWLOCK_FAULT_KEYS       (default 20, 200)     orders, each paid under two keys
#   ROWLOCK_JOB_ROUNDS       (default 20, 100)     rounds of scheduled jobs per engine, on machines whose clocks differ
#   ROWLOCK_INBOX_MESSAGES   (default 1000, 10000) messages for consumers of RabbitMQ that are killed every 200 ms
#   ROWLOCK_CLUSTER_STARTS   (default 3, 20)       starts of nine processes at the same time, through three Galera nodes
#   ROWLOCK_IDLE_SECONDS     (default 1, 5)        seconds after which servers end idle sessions
#   ROWLOCK_IDLE_ROUNDS      (default 1, 13)       rounds in which clients are idle for twice that time
set -euo pipefail
cd "$(dirname "$0")"

die() { echo "test.sh: $*" >&2; exit 1; }

if ! command -v cc >/dev/null; then
  command -v apt-get >/dev/null || die "no C compiler, which the bundled SQLite needs: install one"
  [ "$(id -u)" = 0 ] || die "no C compiler: run  sudo apt-get install build-essential"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq build-essential
fi
command -v cargo >/dev/null || die "no cargo: install Rust with rustup (https://rustup.rs)"

dir=$(mktemp -d "${TMPDIR:-/tmp}/rowlock-test.XXXXXX")
chmod 755 "$dir"
stop() {
  trap - EXIT INT TERM
  for server in "$dir"/*/; do
    [ -e "$server/engine" ] && docker/servers.sh stop "$server" || true
  done
  rm -rf "$dir"
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM

for engine in postgres mariadb mysql; do
  variable=ROWLOCK_TEST_${engine^^}_URL
  if [ -z "${!variable:-}" ]; then
    url=$(docker/servers.sh start "$engine" "$dir/$engine") || die "$engine does not start: see above, or give a URL in $variable"
    export "$variable=$url"
    echo "test.sh: $engine at $url"
  fi
done

# Most tests wait for a server or for time to pass, so that twice as many run side by side as there are processors. (The fault and
# Galera tests run one after the other.)
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(getconf _NPROCESSORS_ONLN) * 2))}
cargo test --workspace --locked "$@"
echo "test.sh: all green"
