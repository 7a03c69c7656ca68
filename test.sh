#!/usr/bin/env bash
# The whole test suite, on real servers.
#
#   ./test.sh                     everything
#   ./test.sh --test contract     arguments go to `cargo test`
#
# It starts private, throw-away servers (PostgreSQL, MariaDB, MySQL) on free ports of 127.0.0.1 and stops
# them at the end, also after Ctrl-C. Servers that the machine does not have are fetched first, on Debian
# and Ubuntu, without installing anything; see docker/servers.sh. A URL in ROWLOCK_TEST_POSTGRES_URL,
# ROWLOCK_TEST_MARIADB_URL or ROWLOCK_TEST_MYSQL_URL replaces a server of our own; its user must be allowed
# to create databases. A server that cannot be had fails the run.
#
# ROWLOCK_FAULT_SECONDS (default 10) is the length of each fault campaign, ROWLOCK_ZOMBIE_ROUNDS (default 24) the
# number of paused holders, ROWLOCK_CANCELS (default 2000) that of cancelled operations per engine, ROWLOCK_FAULT_KEYS
# (default 20) that of orders that are paid under two keys each; 60, 300, 10000 and 200 are what the documentation's figures were made with.
#
# ROWLOCK_CLUSTER_STARTS (default 3) is how often nine processes start at once through three Galera nodes, ROWLOCK_IDLE_SECONDS
# (default 1) the time after which servers end idle sessions, and ROWLOCK_IDLE_ROUNDS (default 1) how often clients are idle
# for twice as long.
set -euo pipefail
cd "$(dirname "$0")"

die() { echo "test.sh: $*" >&2; exit 1; }

if ! command -v cc >/dev/null; then
  command -v apt-get >/dev/null || die "no C compiler: install one (the bundled SQLite is built with it)"
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
    url=$(docker/servers.sh start "$engine" "$dir/$engine") || die "$engine cannot be started"
    export "$variable=$url"
    echo "test.sh: $engine at $url"
  fi
done

cargo test --workspace --locked "$@"
echo "test.sh: all green"
