#!/usr/bin/env bash
# The whole test suite, on real servers.
#
#   ./test.sh                     everything, group after group
#   ./test.sh --times             … and then a table: how many tests each group has, and how long they took
#   ./test.sh --quick             for between two edits, on SQLite and one PostgreSQL, in at most two minutes when everything is
#                                 built: tidy, the unit tests, all contract tests on SQLite, those of exclusion, fence, pin, queue, records
#                                 and sessions on PostgreSQL, the judges of histories, the HTTP scenarios and the metrics. It leaves out MySQL and
#                                 MariaDB, clusters, faults, the command, the console, the examples and the documentation.
#   ./test.sh --test contract     other arguments go to `cargo test`
#
# It starts private, throw-away servers (PostgreSQL, MariaDB, MySQL) on free ports of 127.0.0.1, and stops
# them at the end, also after Ctrl-C. If the machine lacks a server, it fetches the server first (on Debian and
# Ubuntu), and installs nothing; see docker/servers.sh. It gets RabbitMQ (for the example `inbox`), Prometheus (for the dashboard and the
# alerts), Chromium (for the console) and libfaketime in the same way: a fault test moves the clocks of processes with it. With npm it gets
# axe-core, which checks whether pages are accessible. Into a folder beside them it gets Stripe's package, with `python3 -m venv`. To use a server of yours instead, give its URL in
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
#   ROWLOCK_PASSWORDS        (default 2, 24)       changes of a password under load, one every 5 seconds or so
#   ROWLOCK_FUZZ_REQUESTS    (default 2000, 10000) requests that make no sense, to the console
#   ROWLOCK_ALL_SETTINGS     (default 0, 1)        whether every verb is tried under each variable that a session may set
set -euo pipefail
cd "$(dirname "$0")"

die() { echo "test.sh: $*" >&2; exit 1; }
now() { echo "${EPOCHREALTIME//[!0-9]/}"; } # in microseconds

[ "${BASH_VERSINFO[0]}" -ge 5 ] || die "bash $BASH_VERSION is too old: install bash 5 or later"

if ! command -v cc >/dev/null; then
  command -v apt-get >/dev/null || die "no C compiler, which the bundled SQLite needs: install one"
  [ "$(id -u)" = 0 ] || die "no C compiler: run  sudo apt-get install build-essential"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq build-essential
fi
command -v cargo >/dev/null || die "no cargo: install Rust with rustup (https://rustup.rs)"

quick=0 times=0
while :; do
  case ${1:-} in
    --quick) quick=1 ;;
    --times) times=1 ;;
    *) break ;;
  esac
  shift
done
[ $# = 0 ] || [ $((quick + times)) = 0 ] || die "--quick and --times choose the tests: leave out $*"

# The data of throw-away servers needs no disk, and 1,000 databases need a fast one. So it is kept in memory where there is room.
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ]; then
  memory=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
  room=$(df -k --output=avail /dev/shm | tail -n 1)
  [ "$memory" -lt 8388608 ] || [ "$room" -lt 4194304 ] || export TMPDIR=/dev/shm
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/rowlock-test.XXXXXX")
chmod 755 "$dir"
export TMPDIR=$dir # also for the servers that tests start themselves: the end of this script ends them
waiting=
stop() {
  trap - EXIT INT TERM
  [ -z "$waiting" ] || kill -- -"$waiting" 2>/dev/null || true
  for server in "$dir"/*/; do
    [ -e "$server/engine" ] && docker/servers.sh stop "$server" || true
  done
  rm -rf "$dir"
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM

# A test gives up when an event has not come for two minutes, or for so many times as long as this machine is slower than an idle
# one: how long it takes to count to 300,000 and to write 32 blocks to the disk, one after the other. An idle machine takes 1 s.
if [ -z "${ROWLOCK_TEST_SLOWNESS:-}" ]; then
  mkdir -p target
  began=$(now)
  for ((i = 0; i < 300000; i++)); do :; done
  dd if=/dev/zero of=target/.slowness bs=4k count=32 oflag=dsync 2>/dev/null || true
  rm -f target/.slowness
  took=$((($(now) - began) / 1000))
  slowness=$((took / 1000 + 1))
  export ROWLOCK_TEST_SLOWNESS=$((slowness < 10 ? slowness : 10))
  echo "test.sh: a short measurement took $took ms: a wait for one event gives up after $((2 * ROWLOCK_TEST_SLOWNESS)) minutes"
fi

engines="postgres mariadb mysql"
if [ $quick = 1 ]; then
  engines=postgres
  export ROWLOCK_TEST_ENGINES=sqlite,postgres
fi
for engine in $engines; do
  variable=ROWLOCK_TEST_${engine^^}_URL
  if [ -z "${!variable:-}" ]; then
    url=$(docker/servers.sh start "$engine" "$dir/$engine") || die "$engine does not start: see above, or give a URL in $variable"
    export "$variable=$url"
    echo "test.sh: $engine at $url"
  fi
done

# Most tests wait for a server or for time to pass, so that six times as many run side by side as there are processors. (Of campaigns
# and single faults fewer run at once, and the Galera tests run one after the other.)
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(getconf _NPROCESSORS_ONLN) * 6))}

if [ $# -gt 0 ]; then
  case " $* " in
    *" -p "* | *" --package "*) cargo test --locked "$@" ;;
    *) cargo test --workspace --locked "$@" ;;
  esac
  echo "test.sh: all green"
  exit
fi

table=$dir/times
yields= # in front of a command whose processes leave the processors to others
# Always of the whole workspace: with the features of one package alone, cargo would build everything again.
group() { # group NAME ARGUMENT…: runs a group of tests
  local name=$1 log=$dir/${1//[ ,]/}.log began took; shift
  began=$(now)
  echo; echo "== $name"
  # shellcheck disable=SC2086 # words
  $yields cargo test --workspace --locked --no-fail-fast "$@" 2>&1 | tee "$log" || echo "$name" >>"$dir/red"
  took=$((($(now) - began) / 100000))
  awk -v name="$name" -v took=$took '/^test result:/ { tests += $4 } END { printf "%-20s %7d %8.1f\n", name, tests, took / 10 }' "$log" >>"$table"
}

# These mostly wait: for servers that start, for a browser, and for time to pass. Others use the processors meanwhile.
starts() {
  group galera --test galera; group cluster --test cluster; group settings --test settings; group first_hour --test first_hour
  group console --test console --test browser
  group http --test http --test actix --test metrics --test stripe --test prometheus
}
fault() { group fault --test fault; }
quick_ones() { group first_hour --test first_hour; group http --test http --test metrics; }
beside() { # beside FUNCTION: runs groups in the background, in a process group of their own: the end of this script ends it
  set -m
  "$1" >"$dir/beside" 2>&1 &
  waiting=$!
  set +m
}
join() { # prints what they said, and fails if they could not run
  local code=0
  wait "$waiting" || code=$?
  waiting= yields=
  cat "$dir/beside"
  return $code
}

began=$(now)
if [ $quick = 1 ]; then
  cargo test --workspace --locked --no-run --lib --test tidy --test first_hour --test contract --test campaigns --test fault --test http --test metrics
else
  cargo test --workspace --locked --no-run
fi
printf '%-20s %7s %8.1f\n' build - "$((($(now) - began) / 100000))e-1" >>"$table"

group tidy --test tidy
if [ $quick = 1 ]; then
  beside quick_ones
  group unit --lib -- --skip mariadb --skip mysql
  group "contract, sqlite" --test contract -- sqlite::
  # shellcheck disable=SC2046 # a list of words
  group "contract, postgres" --test contract -- $(printf '%s::postgres:: ' exclusion fence pin queue queue_ends \
    queue_races attempts complete_in idempotency record_states run_in_tx sessions)
  group judges --test campaigns --test fault -- judge_
  join
else
  beside starts
  group unit --lib --bins -- --skip store::
  group "store cases" --lib -- store::
  for engine in sqlite postgres mariadb mysql; do
    group "contract, $engine" --test contract -- $engine::
  done
  group dialect --test dialect
  join
  # Faults have times in them. What runs beside them has none, and gives way.
  beside fault
  yields="nice -n 10"
  group cli --test cli --test servers
  group examples --test sale --test inbox --test shop --test layer --test program
  group macros --test refused
  group benches --test race --test round_trips
  group doc --exclude rowlock-macros --doc # its pages are tests of rowlock
  join
  group campaigns --test campaigns
fi

if [ $times = 1 ]; then
  echo; printf '%-20s %7s %8s\n' group tests seconds
  cat "$table"
fi
if [ -e "$dir/red" ]; then
  echo; echo "== failures"
  # What failed tests have said, once more, without the frames of their stacks.
  awk '/^failures:$/ { inside = 1 } /^test result:/ { inside = 0 } inside && !/^ *[0-9]+: |^ +at |^stack backtrace:/' "$dir"/*.log
  die "red: $(paste -sd , "$dir/red")"
fi
echo "test.sh: all green"
