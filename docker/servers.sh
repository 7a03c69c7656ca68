#!/usr/bin/env bash
# Private, throw-away database servers without Docker, for the tests and the benchmarks.
#
#   docker/servers.sh fetch [ENGINE…]        get the missing servers (Debian and Ubuntu), without installing them; without
#                                            an ENGINE: those of the tests
#   docker/servers.sh start ENGINE DIR       start a server in the folder DIR, and print its URL
#   docker/servers.sh start mariadb|mysql DIR [OPTION…]  start a server with these options
#   docker/servers.sh start standby DIR PRIMARY      start a standby of the PostgreSQL server in the folder PRIMARY
#   docker/servers.sh start pgbouncer DIR URL [LINE…]  start PgBouncer in front of the server URL; LINEs are its settings
#   docker/servers.sh start prometheus DIR TARGET RULES  start a Prometheus that scrapes TARGET (host:port), with the rules
#                                            of the file RULES
#   docker/servers.sh start galera DIR       start three MariaDB nodes, and print a URL for each; DIR/n1, DIR/n2 and
#                                            DIR/n3 have their pid, port, url and log
#   docker/servers.sh run postgres PROGRAM ARG…  run a program of PostgreSQL, such as pgbench, or of Prometheus: promtool
#   docker/servers.sh faketime               print the path of libfaketime, which moves the clock of a test's process
#   docker/servers.sh stripe                 print a Python that has Stripe's package
#   docker/servers.sh axe                    print the path of axe-core, which checks whether pages are accessible
#   docker/servers.sh stop DIR               stop the server in DIR; its data stays
#
# ENGINE is postgres, mariadb or mysql; for the example `inbox`, rabbitmq; for the console, chromium (a WebDriver, whose
# browser is DIR/browser); for the dashboard and the alerts, prometheus; or, for the benchmark `race`, redis, etcd or
# zookeeper. A server listens on a free port of 127.0.0.1, and keeps that port when it is started again. DIR/pid and
# DIR/url have its process id and its URL. When root calls this, the server runs as `nobody`. With ROWLOCK_DURABLE=1
# every commit waits for the disk, as in production (Redis: appendfsync always; without it, Redis writes nothing). The
# tests do not need that.
#
# The script uses the servers that the machine has. It unpacks the others from the packages of the distribution
# into ROWLOCK_SERVERS (default: ~/.cache/rowlock-servers), without root, and installs nothing. Debian has MySQL
# only in sid, so that MySQL is unpacked with its own libraries.
set -euo pipefail

CACHE=${ROWLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/rowlock-servers}
DURABLE=${ROWLOCK_DURABLE:-0}
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "servers.sh: $*" >&2; exit 1; }
say() { echo "servers.sh: $*" >&2; }

# --- getting the programs -------------------------------------------------------------------------

# The newest PostgreSQL of a tree ('' is the machine itself).
pg_bin() { ls -d "$1"/usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1; }

# The Java of a tree, or else the machine's.
java_of() {
  local found
  found=$(ls -d "$1"/usr/lib/jvm/*/bin/java 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] || found=$(command -v java) || return 1
  echo "$found"
}

# RabbitMQ's own scripts of a tree, and its Erlang.
rabbit_of() { ls -d "$1"/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin 2>/dev/null | sort -V | tail -n 1 | grep .; }
erlang_of() { ls -d "$1"/usr/lib/erlang/erts-*/bin 2>/dev/null | sort -V | tail -n 1; }

# The library of a tree, for programs with threads.
faketime_of() { ls -d "$1"/usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1 2>/dev/null | grep -m 1 .; }

has() { # has ENGINE TREE
  case $1 in
    postgres) [ -x "$(pg_bin "$2")/initdb" ] ;;
    mariadb) [ -x "$2/usr/sbin/mariadbd" ] && [ -x "$2/usr/bin/mariadb-install-db" ] && [ -x "$2/usr/bin/mariadb" ] ;;
    mysql) [ -x "$2/usr/sbin/mysqld" ] && [ ! -L "$2/usr/sbin/mysqld" ] && [ -x "$2/usr/bin/mysql" ] \
             && ! run_in "$2" "$2/usr/sbin/mysqld" --version | grep -qi mariadb ;;
    pgbouncer) [ -x "$2/usr/sbin/pgbouncer" ] ;;
    redis) [ -x "$2/usr/bin/redis-server" ] ;;
    chromium) [ -x "$2/usr/bin/chromedriver" ] && [ -x "$2/usr/lib/chromium/chromium" ] ;;
    etcd) [ -x "$2/usr/bin/etcd" ] ;;
    rabbitmq) rabbit_of "$2" >/dev/null && [ -n "$(erlang_of "$2")" ] ;;
    faketime) faketime_of "$2" >/dev/null ;;
    prometheus) [ -x "$2/usr/bin/prometheus" ] && [ -x "$2/usr/bin/promtool" ] ;;
    zookeeper) [ -e "$2/usr/share/java/zookeeper.jar" ] && java_of "$2" >/dev/null ;;
  esac
}

tree() { # the tree that has ENGINE: the machine's, or one that this script has unpacked
  if [ "${ROWLOCK_SERVERS_PRIVATE:-0}" = 0 ] && has "$1" "" 2>/dev/null; then echo ""
  elif has "$1" "$CACHE/$1" 2>/dev/null; then echo "$CACHE/$1"
  else return 1; fi
}

unpack() { # unpack TREE STATUS SOURCES PACKAGE…: the packages and their dependencies that STATUS does not have
  local dest=$1 status=$2 sources=$3; shift 3
  local apt=$dest/.apt options packages
  rm -rf "$dest"; mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,debs}
  options=(-o "Dir::State=$apt/state" -o "Dir::State::status=$status" -o "Dir::Cache=$apt/cache"
    -o APT::Install-Recommends=false -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)"
    -o Acquire::Languages=none)
  if [ -n "$sources" ]; then
    mkdir -p "$apt"/etc/{preferences.d,sources.list.d,apt.conf.d}
    echo "$sources" >"$apt/etc/sources.list"
    options+=(-o "Dir::Etc=$apt/etc")
  fi
  # A third-party source may be down. A missing package fails below.
  apt-get "${options[@]}" update -qq >"$dest.log" 2>&1 || true
  packages=$(apt-get "${options[@]}" install -s "$@" 2>/dev/null | awk '/^Inst/{print $2}' |
    grep -vE '^(dpkg|tar|perl.*|debconf|mysql-common|adduser|passwd|ucf|ssl-cert|postgresql.*-common|systemd.*)$' || true)
  [ -n "$packages" ] || { rm -rf "$dest"; return 1; }
  # shellcheck disable=SC2086 # a list of words
  (cd "$apt/debs" && apt-get "${options[@]}" download -qq $packages) >>"$dest.log" 2>&1 || { cat "$dest.log" >&2; return 1; }
  for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$dest"; done
  rm -rf "$apt"
  chmod -R a+rX "$dest"
}

# Java's settings are links to /etc. In a tree they must lead to the tree's own files.
keep_links() { # keep_links TREE
  local link target
  find "$1" -type l -lname '/etc/*' | while read -r link; do
    target=$(readlink "$link")
    [ ! -e "$1$target" ] || ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$1$target")" "$link"
  done
}

instead() { # what to do without the packages of an ENGINE
  case $1 in
    postgres | mariadb | mysql) echo "install it, or give a URL in ROWLOCK_TEST_${1^^}_URL" ;;
    *) echo "install it" ;;
  esac
}

# Tests start many servers at the same time. One of them gets the programs, and the others wait.
one_at_a_time() { # one_at_a_time NAME COMMAND…
  mkdir -p "$CACHE"
  (flock 9; shift; "$@") 9>"$CACHE/$1.lock"
}

# A tree is unpacked beside its place, and moved there when it is complete, so that no other start finds half of it.
fetch() { # fetch ENGINE
  tree "$1" >/dev/null && return
  command -v apt-get >/dev/null || die "this machine has neither $1 nor apt-get to fetch it: $(instead "$1")"
  one_at_a_time "$1" fetch_alone "$1"
}

fetch_alone() { # fetch_alone ENGINE
  local engine=$1 host=/var/lib/dpkg/status dest=$CACHE/$1.part mirror
  tree "$engine" >/dev/null && return
  say "getting $engine"
  # As root, the servers run as another user, who must be able to read these folders.
  [ "$(id -u)" != 0 ] || chmod a+x "$HOME" "$(dirname "$CACHE")" "$CACHE"
  case $engine in
    postgres) unpack "$dest" $host "" postgresql ;;
    mariadb) unpack "$dest" $host "" mariadb-server-core mariadb-client-core ;;
    pgbouncer) unpack "$dest" $host "" pgbouncer ;;
    redis) unpack "$dest" $host "" redis-server ;;
    chromium) unpack "$dest" $host "" chromium chromium-driver fonts-dejavu-core && keep_links "$dest" ;;
    etcd) unpack "$dest" $host "" etcd-server ;;
    zookeeper) unpack "$dest" $host "" zookeeper && keep_links "$dest" ;;
    rabbitmq) unpack "$dest" $host "" rabbitmq-server ;;
    faketime) unpack "$dest" $host "" libfaketime ;;
    prometheus) unpack "$dest" $host "" prometheus ;;
    mysql)
      # Ubuntu has MySQL. For Debian, the next lines take it from sid.
      unpack "$dest" $host "" mysql-server-core-8.4 mysql-client-core-8.4 ||
      unpack "$dest" $host "" mysql-server-core-8.0 mysql-client-core-8.0 || {
        mirror=$(grep -hoE 'https?://[^ ]*debian/?( |$)' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list \
          2>/dev/null | grep -v security | head -n 1 | tr -d ' ' || true)
        [ -n "$mirror" ] || die "the apt sources name no Debian mirror: install MySQL, or give a URL in ROWLOCK_TEST_MYSQL_URL"
        mkdir -p "$dest"; : >"$CACHE/none"
        unpack "$dest" "$CACHE/none" \
          "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" \
          mysql-server-core mysql-client-core
      } ;;
  esac || { cat "$dest.log" >&2; false; } || die "the packages of $engine could not be fetched: $(instead "$engine")"
  has "$engine" "$dest" || die "$engine was unpacked into $dest, but it does not run there"
  rm -rf "$CACHE/$engine"; mv "$dest" "$CACHE/$engine"
}

STRIPE=16.1.0
python_with_stripe() {
  local dest=$CACHE/stripe-$STRIPE
  if [ ! -x "$dest/bin/python" ]; then
    say "getting Stripe's package for Python"
    command -v python3 >/dev/null || die "no python3: install python3 and python3-venv"
    rm -rf "$dest.part"
    python3 -m venv "$dest.part" >&2 || die "python3 makes no virtual environment: install python3-venv"
    "$dest.part/bin/python" -m pip install --quiet --disable-pip-version-check "stripe==$STRIPE" >&2
    rm -rf "$dest"; mv "$dest.part" "$dest"
  fi
  echo "$dest/bin/python"
}

AXE=4.14.1
axe_core() {
  local dest=$CACHE/axe-core-$AXE
  if [ ! -e "$dest/package/axe.min.js" ]; then
    say "getting axe-core"
    command -v npm >/dev/null || die "no npm: install npm"
    rm -rf "$dest.part"; mkdir -p "$dest.part"
    (cd "$dest.part" && npm pack --silent "axe-core@$AXE" >&2 && tar -xzf axe-core-*.tgz) || die "axe-core could not be fetched"
    rm -rf "$dest"; mv "$dest.part" "$dest"
  fi
  echo "$dest/package/axe.min.js"
}

# --- running them ---------------------------------------------------------------------------------

# Runs a program with the libraries of its tree, and with the loader of the tree if it has one.
run_in() { # run_in TREE PROGRAM ARG…
  local tree=$1 lib; shift
  set -- ${DETACH:-} "$@"
  if [ -z "$tree" ]; then "$@"; return; fi
  lib=$(libraries "$tree")
  if [ -e "$tree/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" ]; then
    [ -z "${DETACH:-}" ] || shift
    ${DETACH:-} "$tree/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$lib" "$@"
  else
    LD_LIBRARY_PATH=$lib "$@"
  fi
}

libraries() {
  local tree=$1 dirs
  dirs=$(ls -d "$tree"/usr/lib/*-linux-gnu "$tree"/usr/lib/mysql/private "$tree"/usr/lib/*-linux-gnu/mysql \
    "$tree"/usr/lib/*-linux-gnu/pulseaudio \
    "$tree"/usr/lib/llvm-*/lib 2>/dev/null | tr '\n' ':')
  echo "${dirs%:}"
}

# When root calls this, the servers run as nobody: PostgreSQL and MySQL refuse to run as root.
as() {
  if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=nobody --regid="$(id -gn nobody)" --clear-groups --no-new-privs \
      env HOME="$DIR" TMPDIR="$DIR" LC_ALL=C.UTF-8 bash -c "$(declare -f run_in libraries); run_in \"\$@\"" as "$@"
  else
    TMPDIR=$DIR LC_ALL=C.UTF-8 run_in "$@"
  fi
}

free_port() { # below the ephemeral range, so that no outgoing connection can take the port before the server
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo $port; return; }
  done
}

wait_for() { # wait_for SECONDS COMMAND…
  local tries=$(($1 * 20)); shift
  while ! "$@" >/dev/null 2>&1; do
    tries=$((tries - 1)); [ $tries -gt 0 ] || return 1
    sleep 0.05
  done
}

# Starts a daemon that survives this script, in a new session, so that Ctrl-C does not reach it.
daemon() {
  (export DETACH=setsid; as "$@" >>"$DIR/log" 2>&1 </dev/null & )
}

start() { # start ENGINE [options; the URL of the server for PgBouncer, or the folder of the primary]
  local engine=$1 tree port fresh=0; shift
  [ "$engine" != standby ] || { fresh=$1; shift; [ -e "$DIR/data" ] || copy_postgres "$fresh"; engine=postgres fresh=0; }
  tree=$(tree "$engine") || { fetch "$engine"; tree=$(tree "$engine"); }
  mkdir -p "$DIR"; DIR=$(cd "$DIR" && pwd)
  chmod 755 "$DIR"; [ "$(id -u)" != 0 ] || chown nobody: "$DIR"
  [ -e "$DIR/port" ] || { fresh=1; free_port >"$DIR/port"; }
  port=$(cat "$DIR/port"); echo "$engine" >"$DIR/engine"
  case $engine in
    postgres) start_postgres "$tree" "$port" $fresh ;;
    mariadb | mysql) start_mysql "$engine" "$tree" "$port" $fresh "$@" ;;
    pgbouncer) start_pgbouncer "$tree" "$port" "$@" ;;
    redis) start_redis "$tree" "$port" ;;
    etcd) start_etcd "$tree" "$port" ;;
    chromium) start_chromium "$tree" "$port" ;;
    zookeeper) start_zookeeper "$tree" "$port" ;;
    rabbitmq) start_rabbitmq "$tree" "$port" ;;
    prometheus) start_prometheus "$tree" "$port" "$@" ;;
    *) die "unknown engine $engine: postgres, standby, pgbouncer, mariadb, mysql, rabbitmq, chromium, prometheus, redis, etcd or zookeeper" ;;
  esac
  cat "$DIR/url"
}

failed() { tail -n 60 "$DIR"/*log >&2 || true; die "$1 does not start: see its log above"; }

start_postgres() {
  local tree=$1 port=$2 fresh=$3 bin; bin=$(pg_bin "$tree")
  if [ "$fresh" = 1 ]; then
    as "$tree" "$bin/initdb" -D "$DIR/data" -U postgres -A trust --no-sync -E UTF8 --locale=C.UTF-8 \
      >"$DIR/init.log" 2>&1 || failed postgres
    {
      echo "listen_addresses = '127.0.0.1'"; echo "port = $port"
      echo "unix_socket_directories = ''"; echo "max_connections = 300"
      [ "$DURABLE" = 1 ] || printf '%s\n' 'fsync = off' 'synchronous_commit = off' 'full_page_writes = off'
    } >>"$DIR/data/postgresql.conf"
    echo "postgres://postgres@127.0.0.1:$port/postgres" >"$DIR/url"
  fi
  # After a SIGKILL the last backends take a moment to end. Until then a new server refuses to start.
  wait_for 20 try_postgres "$tree" "$bin" "$port" || failed postgres
  head -n 1 "$DIR/data/postmaster.pid" >"$DIR/pid"
}

try_postgres() {
  local tree=$1 bin=$2 port=$3
  as "$tree" "$bin/pg_ctl" -D "$DIR/data" -w -t 30 -l "$DIR/log" start </dev/null
}

# Makes a standby of the server in the folder PRIMARY. Its application_name is the name of its folder.
copy_postgres() { # copy_postgres PRIMARY
  local primary=$1 tree bin port from; tree=$(tree postgres); bin=$(pg_bin "$tree"); from=$(cat "$primary/port")
  mkdir -p "$DIR"; DIR=$(cd "$DIR" && pwd)
  chmod 755 "$DIR"; [ "$(id -u)" != 0 ] || chown nobody: "$DIR"
  free_port >"$DIR/port"; port=$(cat "$DIR/port")
  as "$tree" "$bin/pg_basebackup" -h 127.0.0.1 -p "$from" -U postgres -D "$DIR/data" -X stream -c fast --no-sync \
    >"$DIR/init.log" 2>&1 || failed standby
  {
    echo "port = $port"; echo "wal_retrieve_retry_interval = '100ms'"
    echo "primary_conninfo = 'host=127.0.0.1 port=$from user=postgres application_name=$(basename "$DIR")'"
  } >>"$DIR/data/postgresql.conf"
  as "" touch "$DIR/data/standby.signal"
  echo "postgres://postgres@127.0.0.1:$port/postgres" >"$DIR/url"
}

# PgBouncer has few connections to the server, so that clients must share them. It refuses what a default installation refuses.
start_pgbouncer() { # start_pgbouncer TREE PORT URL [LINE…]
  local tree=$1 port=$2 url=$3 login host; shift 3
  [[ $url =~ ^postgres(ql)?://([^@/]*)@([^/]*)/ ]] || die "PgBouncer needs a URL like postgres://USER:PASSWORD@HOST:PORT/DATABASE"
  login=${BASH_REMATCH[2]} host=${BASH_REMATCH[3]}
  {
    echo "[databases]"
    echo "* = host=${host%:*} port=${host##*:} user=${login%%:*} password=${login#*:}"
    echo "[pgbouncer]"
    printf '%s\n' "listen_addr = 127.0.0.1" "listen_port = $port" "unix_socket_dir =" "auth_type = any" \
      "auth_file = $DIR/users" "pool_mode = transaction" "default_pool_size = 4" "max_client_conn = 500" \
      "pidfile = $DIR/pid"
    # PgBouncer has this setting since 1.21.
    if [ $# -gt 0 ]; then printf '%s\n' "$@"
    elif run_in "$tree" "$tree/usr/sbin/pgbouncer" --version | grep -qE ' 1\.(2[1-9]|[3-9])'; then
      echo "max_prepared_statements = 0"
    fi
  } >"$DIR/ini"
  echo "\"${login%%:*}\" \"\"" >"$DIR/users"; chmod a+r "$DIR/ini" "$DIR/users"
  rm -f "$DIR/pid"
  daemon "$tree" "$tree/usr/sbin/pgbouncer" "$DIR/ini"
  wait_for 20 answers "$port" || failed pgbouncer
  echo "postgres://${login%%:*}@127.0.0.1:$port/${url##*/}" >"$DIR/url"
  wait_for 20 test -s "$DIR/pid" || failed pgbouncer
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start_mysql() {
  local engine=$1 tree=$2 port=$3 fresh=$4 flush=0 daemon client; shift 4
  [ "$DURABLE" = 0 ] || flush=1
  # At its start, a server empties the folder for temporary tables, also when it makes its data. So each server needs its own.
  local common=(--no-defaults "--datadir=$DIR/data" "--tmpdir=$DIR")
  if [ "$engine" = mariadb ]; then
    daemon=$tree/usr/sbin/mariadbd client=$tree/usr/bin/mariadb
    common+=("--basedir=$tree/usr" "--lc-messages-dir=$tree/usr/share/mysql" --innodb-log-file-size=96M)
    [ "$fresh" = 0 ] || as "$tree" "$tree/usr/bin/mariadb-install-db" --no-defaults "--datadir=$DIR/data" \
      "--tmpdir=$DIR" "--basedir=$tree/usr" --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve \
      >"$DIR/init.log" 2>&1 || failed mariadb
  else
    daemon=$tree/usr/sbin/mysqld client=$tree/usr/bin/mysql
    common+=("--basedir=$tree/usr" "--lc-messages-dir=$tree/usr/share/mysql" "--plugin-dir=$tree/usr/lib/mysql/plugin"
      --secure-file-priv=NULL --innodb-redo-log-capacity=128M)
    [ "$fresh" = 0 ] || as "$tree" "$daemon" "${common[@]}" --initialize-insecure >"$DIR/init.log" 2>&1 || failed mysql
    common+=(--mysqlx=OFF --skip-log-bin)
  fi
  rm -f "$DIR/pid"
  daemon "$tree" "$daemon" "${common[@]}" "--socket=$DIR/s" "--port=$port" --bind-address=127.0.0.1 \
    "--pid-file=$DIR/pid" --skip-name-resolve "--innodb-flush-log-at-trx-commit=$flush" \
    --innodb-buffer-pool-size=128M --max-connections=300 "$@"
  wait_for 60 run_in "$tree" "$client" --no-defaults -S "$DIR/s" -u root -e 'select 1' || failed "$engine"
  if [ "$fresh" = 1 ]; then
    run_in "$tree" "$client" --no-defaults -S "$DIR/s" -u root -e \
      "create database app; create user app@'127.0.0.1' identified by 'pw'; grant all on *.* to app@'127.0.0.1' with grant option"
    echo "mysql://app:pw@127.0.0.1:$port/app" >"$DIR/url"
  fi
  [ -s "$DIR/pid" ] || failed "$engine"
}

# --- rivals, for the benchmark `race` ---------------------------------------------------------------

# Starts a daemon that writes no pid file. The shell that writes it becomes the daemon, so that the pid is the daemon's.
daemon_with_pid() { # daemon_with_pid TREE PROGRAM ARG…
  local tree=$1; shift
  rm -f "$DIR/pid"
  # shellcheck disable=SC2016 # for the inner shell
  daemon "$tree" sh -c 'echo $$ >"$0"; exec "$@"' "$DIR/pid" "$@"
  wait_for 20 test -s "$DIR/pid"
}

start_redis() {
  local tree=$1 port=$2 append=no
  [ "$DURABLE" = 0 ] || append=yes
  daemon_with_pid "$tree" "$tree/usr/bin/redis-server" --bind 127.0.0.1 --port "$port" --dir "$DIR" --save '' \
    --appendonly $append --appendfsync always --daemonize no || failed redis
  echo "redis://127.0.0.1:$port" >"$DIR/url"
  wait_for 20 answers "$port" || failed redis
}

# The browser inherits the libraries and the fonts of the tree.
start_chromium() {
  local tree=$1 port=$2
  echo "$tree/usr/lib/chromium/chromium" >"$DIR/browser"
  echo "http://127.0.0.1:$port" >"$DIR/url"
  [ ! -e "$tree/etc/fonts" ] || export FONTCONFIG_SYSROOT=$tree
  daemon_with_pid "$tree" "$tree/usr/bin/chromedriver" --port="$port" --allowed-ips=127.0.0.1 || failed chromium
  wait_for 20 answers "$port" || failed chromium
}

start_etcd() { # one member, that no other member ever joins
  local tree=$1 port=$2 peer sync=()
  peer=http://127.0.0.1:$(free_port)
  echo "http://127.0.0.1:$port" >"$DIR/url"
  [ "$DURABLE" = 1 ] || sync=(--unsafe-no-fsync)
  daemon_with_pid "$tree" "$tree/usr/bin/etcd" --data-dir "$DIR/data" --listen-client-urls "http://127.0.0.1:$port" \
    --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
    --initial-cluster "default=$peer" "${sync[@]}" || failed etcd
  wait_for 20 healthy "$port" || failed etcd
}

healthy() { # healthy PORT: etcd has a leader
  (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && timeout 2 cat <&3) 2>/dev/null |
    grep -q '"health":"true"'
}

start_zookeeper() { # one server
  local tree=$1 port=$2 jar path=$DIR/conf sync=no
  [ "$DURABLE" = 0 ] || sync=yes
  mkdir -p "$DIR/conf"
  printf '%s\n' tickTime=2000 "dataDir=$DIR/data" "clientPort=$port" clientPortAddress=127.0.0.1 admin.enableServer=false \
    4lw.commands.whitelist=ruok maxClientCnxns=0 "forceSync=$sync" >"$DIR/conf/zoo.cfg"
  printf '%s\n' 'log4j.rootLogger=WARN, A' log4j.appender.A=org.apache.log4j.ConsoleAppender \
    log4j.appender.A.layout=org.apache.log4j.SimpleLayout >"$DIR/conf/log4j.properties"
  chmod -R a+rX "$DIR/conf"
  # The jars that the machine has are not in the tree.
  for jar in zookeeper zookeeper-jute slf4j-api slf4j-log4j12 log4j-1.2 'netty*' commons-cli commons-io jline \
    metrics-core snappy-java jackson-core jackson-databind jackson-annotations; do
    for jar in "$tree/usr/share/java/"$jar.jar /usr/share/java/$jar.jar; do [ ! -e "$jar" ] || path+=:$jar; done
  done
  echo "127.0.0.1:$port" >"$DIR/url"
  daemon_with_pid "$tree" "$(java_of "$tree")" -Xmx512m "-Dzookeeper.forceSync=$sync" -cp "$path" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$DIR/conf/zoo.cfg" || failed zookeeper
  wait_for 30 is_ok "$port" || failed zookeeper
}

is_ok() { # is_ok PORT: ZooKeeper serves
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf ruok >&3 && timeout 2 cat <&3) 2>/dev/null)" = imok ]
}

# --- what an operator has ---------------------------------------------------------------------------

# It scrapes often, so that a test has its data soon.
start_prometheus() { # start_prometheus TREE PORT TARGET RULES
  local tree=$1 port=$2 target=$3 rules=$4
  cp "$rules" "$DIR/rules.yml"
  printf '%s\n' 'global: { scrape_interval: 250ms, evaluation_interval: 250ms }' "rule_files: ['$DIR/rules.yml']" \
    'scrape_configs:' "  - { job_name: shop, static_configs: [{ targets: ['$target'] }] }" >"$DIR/prometheus.yml"
  chmod a+r "$DIR/rules.yml" "$DIR/prometheus.yml"
  echo "http://127.0.0.1:$port" >"$DIR/url"
  daemon_with_pid "$tree" "$tree/usr/bin/prometheus" "--config.file=$DIR/prometheus.yml" "--storage.tsdb.path=$DIR/data" \
    "--web.listen-address=127.0.0.1:$port" || failed prometheus
  wait_for 60 is_ready "$port" || failed prometheus
}

is_ready() { # is_ready PORT: Prometheus answers queries
  (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /-/ready HTTP/1.0\r\n\r\n' >&3 && timeout 2 cat <&3) 2>/dev/null |
    grep -q '^HTTP/1.0 200'
}

# --- a broker, for the example `inbox` --------------------------------------------------------------

# RabbitMQ's scripts run the `erl` of the path. In a tree, Erlang must be told where it is. Erlang's nodes find each other through epmd, and each
# broker here has one of its own.
start_rabbitmq() { # start_rabbitmq TREE PORT
  local tree=$1 port=$2 erlang epmd
  erlang=$(erlang_of "$tree")
  [ -e "$DIR/epmd.port" ] || { free_port >"$DIR/epmd.port"; free_port >"$DIR/dist.port"; }
  epmd=$(cat "$DIR/epmd.port")
  mkdir -p "$DIR/bin"; rm -f "$DIR/pid" "$DIR/epmd.pid"
  printf '%s\n' '#!/bin/sh' "export ROOTDIR='$tree/usr/lib/erlang' BINDIR='$erlang' EMU=beam PROGNAME=erl" \
    "exec '$erlang/erlexec' \"\$@\"" >"$DIR/bin/erl"
  chmod 755 "$DIR/bin" "$DIR/bin/erl"; echo '[].' >"$DIR/plugins"; : >"$DIR/broker.conf"
  [ "$(id -u)" != 0 ] || chown nobody: "$DIR/plugins" "$DIR/broker.conf"
  # shellcheck disable=SC2016 # for the inner shell
  daemon "" sh -c 'echo $$ >"$0"; exec "$@"' "$DIR/epmd.pid" "$erlang/epmd" -address 127.0.0.1 -port "$epmd"
  wait_for 20 answers "$epmd" || failed epmd
  daemon "" env "PATH=$DIR/bin:$PATH" "RABBITMQ_NODENAME=rabbit$port@localhost" RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
    "RABBITMQ_NODE_PORT=$port" "RABBITMQ_DIST_PORT=$(cat "$DIR/dist.port")" "ERL_EPMD_PORT=$epmd" ERL_EPMD_ADDRESS=127.0.0.1 \
    "RABBITMQ_MNESIA_BASE=$DIR/data" "RABBITMQ_LOG_BASE=$DIR" RABBITMQ_LOGS=- "RABBITMQ_PID_FILE=$DIR/pid" \
    "RABBITMQ_ENABLED_PLUGINS_FILE=$DIR/plugins" "RABBITMQ_CONF_ENV_FILE=$DIR/none" "RABBITMQ_CONFIG_FILE=$DIR/broker" \
    "$(rabbit_of "$tree")/rabbitmq-server"
  wait_for 60 answers "$port" || failed rabbitmq
  wait_for 20 test -s "$DIR/pid" || failed rabbitmq
  echo "amqp://guest:guest@127.0.0.1:$port/%2f" >"$DIR/url"
}

# --- Galera: three nodes of MariaDB ---------------------------------------------------------------

has_galera() { # has_galera TREE
  [ -e "$1/usr/lib/galera/libgalera_smm.so" ] && [ -x "$1/usr/bin/wsrep_sst_rsync" ] && [ -x "$1/usr/bin/rsync" ]
}

galera_tree() { # the tree that has the provider, the scripts of a state transfer, and rsync
  if has_galera ""; then echo ""; elif has_galera "$CACHE/galera"; then echo "$CACHE/galera"; else return 1; fi
}

fetch_galera() {
  fetch mariadb
  galera_tree >/dev/null && return
  command -v apt-get >/dev/null || die "this machine has neither Galera nor apt-get to fetch it: \
install galera-4, mariadb-server and rsync"
  one_at_a_time galera fetch_galera_alone
}

fetch_galera_alone() {
  local dest=$CACHE/galera.part apt options
  galera_tree >/dev/null && return
  say "getting Galera"
  unpack "$dest" /var/lib/dpkg/status "" galera-4 rsync lsof iproute2 || die "the packages of Galera could not be fetched"
  # The scripts are in the package of the whole server. Its dependencies are not needed.
  apt=$dest/.apt; mkdir -p "$apt"/{state/lists/partial,cache/archives/partial}
  options=(-o "Dir::State=$apt/state" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$apt/cache"
    -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none)
  apt-get "${options[@]}" update -qq >>"$dest.log" 2>&1 || true
  (cd "$apt" && apt-get "${options[@]}" download -qq mariadb-server && dpkg-deb -x mariadb-server_*.deb all) \
    >>"$dest.log" 2>&1 || { cat "$dest.log" >&2; die "the package mariadb-server could not be fetched"; }
  mkdir -p "$dest/usr/bin"; cp -P "$apt"/all/usr/bin/wsrep_sst_* "$dest/usr/bin/"
  [ -x "$dest/usr/bin/rsync" ] || ln -s "$(command -v rsync)" "$dest/usr/bin/rsync"
  rm -rf "$apt"; chmod -R a+rX "$dest"
  has_galera "$dest" || die "Galera was unpacked into $dest, but it is not complete"
  rm -rf "$CACHE/galera"; mv "$dest" "$CACHE/galera"
}

free_ports() { # free_ports COUNT: the first of COUNT consecutive free ports
  local first port
  while :; do
    first=$((20000 + RANDOM % 11900))
    for ((port = first; port < first + $1; port++)); do
      ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || continue 2
    done
    echo $first; return
  done
}

start_galera() { # starts a new cluster, or one that was stopped
  local tree galera root=$DIR first n addresses=
  fetch_galera; tree=$(tree mariadb); galera=$(galera_tree)
  mkdir -p "$root"; root=$(cd "$root" && pwd); DIR=$root; echo galera >"$root/engine"
  chmod 755 "$root"; [ "$(id -u)" != 0 ] || chown nobody: "$root"
  if [ ! -e "$root/n1/data" ]; then
    first=$(free_ports 12)
    for n in 1 2 3; do
      DIR=$root/n$n; mkdir -p "$DIR/data"; echo galera-node >"$DIR/engine"
      # Ports for clients, for the group, for incremental and for full state transfers.
      echo $((first + 4 * n - 4)) >"$DIR/port"
      [ "$(id -u)" != 0 ] || chown -R nobody: "$DIR"
    done
    # The other nodes get their data from the first.
    DIR=$root/n1
    as "$tree" "$tree/usr/bin/mariadb-install-db" --no-defaults "--datadir=$DIR/data" "--tmpdir=$DIR" \
      "--basedir=$tree/usr" --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve >"$DIR/init.log" 2>&1 || failed galera
  fi
  for n in 1 2 3; do addresses+=,127.0.0.1:$(($(cat "$root/n$n/port") + 1)); done
  GALERA_ADDRESSES=${addresses#,}
  DIR=$root/n1; start_galera_node "$tree" "$galera" --wsrep-new-cluster
  in_galera "$tree" -e "create database if not exists app; create user if not exists app@'127.0.0.1' identified by 'pw';
    grant all on *.* to app@'127.0.0.1' with grant option"
  for n in 2 3; do DIR=$root/n$n; (start_galera_node "$tree" "$galera") & done
  wait
  for n in 1 2 3; do
    DIR=$root/n$n; galera_is "$tree" wsrep_local_state_comment Synced || failed galera
    cat "$DIR/url"
  done
}

start_galera_node() { # start_galera_node TREE GALERA [OPTION]: waits until the node has caught up
  local tree=$1 galera=$2 port flush=0; shift 2
  port=$(cat "$DIR/port"); rm -f "$DIR/pid"
  [ "$DURABLE" = 0 ] || flush=1
  daemon "$tree" env "PATH=$galera/usr/bin:$galera/usr/sbin:$tree/usr/bin:$tree/usr/sbin:$PATH" \
    "LD_LIBRARY_PATH=$(libraries "$tree"):$(libraries "$galera")" \
    "$tree/usr/sbin/mariadbd" --no-defaults "--datadir=$DIR/data" "--tmpdir=$DIR" "--basedir=$tree/usr" \
    "--lc-messages-dir=$tree/usr/share/mysql" "--socket=$DIR/s" "--port=$port" --bind-address=127.0.0.1 \
    "--pid-file=$DIR/pid" --skip-name-resolve --max-connections=300 --binlog-format=ROW \
    --innodb-autoinc-lock-mode=2 "--innodb-flush-log-at-trx-commit=$flush" --innodb-buffer-pool-size=64M \
    --innodb-log-file-size=32M --wsrep-on=ON "--wsrep-provider=$galera/usr/lib/galera/libgalera_smm.so" \
    --wsrep-cluster-name=rowlock "--wsrep-cluster-address=gcomm://$GALERA_ADDRESSES" \
    "--wsrep-node-name=$(basename "$DIR")" "--wsrep-node-address=127.0.0.1:$((port + 1))" \
    "--wsrep-node-incoming-address=127.0.0.1:$port" --wsrep-sst-method=rsync \
    "--wsrep-sst-receive-address=127.0.0.1:$((port + 3))" \
    "--wsrep-provider-options=base_host=127.0.0.1;base_port=$((port + 1));gmcast.listen_addr=tcp://127.0.0.1:$((port + 1));ist.recv_addr=127.0.0.1:$((port + 2));gcache.size=32M" \
    "$@"
  wait_for 60 galera_is "$tree" wsrep_local_state_comment Synced || failed "galera node $(basename "$DIR")"
  echo "mysql://app:pw@127.0.0.1:$port/app" >"$DIR/url"
}

in_galera() { # in_galera TREE ARG…: the client, on the node in DIR
  local tree=$1; shift
  run_in "$tree" "$tree/usr/bin/mariadb" --no-defaults -S "$DIR/s" -u root -N -B "$@"
}

galera_is() { # galera_is TREE STATUS VALUE
  [ "$(in_galera "$1" -e "show status like '$2'" | cut -f 2)" = "$3" ]
}

# The node that stops last may start the cluster again.
stop_galera() {
  local root=$DIR n
  for n in 3 2 1; do DIR=$root/n$n; stop; done
}

stop() {
  [ -s "$DIR/pid" ] || { end_epmd; return 0; }
  local pid; pid=$(cat "$DIR/pid")
  # SIGINT is PostgreSQL's fast shutdown, SIGTERM would wait for its clients; MySQL takes SIGTERM. Newer PgBouncers wait
  # for their clients, and have nothing to lose.
  case $(cat "$DIR/engine") in
    postgres) kill -INT "$pid" ;;
    pgbouncer) kill -KILL "$pid" ;;
    chromium) kill -TERM -- "-$pid" ;; # also browsers whose client has not closed them
    *) kill -TERM "$pid" ;;
  esac 2>/dev/null || true
  wait_for 20 gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
  rm -f "$DIR/pid"
  end_epmd
}

end_epmd() {
  [ ! -s "$DIR/epmd.pid" ] || kill -TERM "$(cat "$DIR/epmd.pid")" 2>/dev/null || true
  rm -f "$DIR/epmd.pid"
}

gone() { local state; state=$(awk '/^State/{print $2}' "/proc/$1/status" 2>/dev/null) || true; [ -z "$state" ] || [ "$state" = Z ]; }

case ${1:-} in
  fetch)
    if [ $# -gt 1 ]; then for engine in "${@:2}"; do fetch "$engine"; done
    else for engine in postgres mariadb mysql pgbouncer faketime rabbitmq chromium prometheus; do fetch $engine; done; fetch_galera; fi ;;
  start)
    case ${2:-} in
      standby) [ $# = 4 ] || die "usage: servers.sh start standby DIR PRIMARY" ;;
      prometheus) [ $# = 5 ] || die "usage: servers.sh start prometheus DIR TARGET RULES" ;;
      pgbouncer) [ $# -ge 4 ] || die "usage: servers.sh start pgbouncer DIR URL [LINE…]" ;;
      mariadb | mysql) [ $# -ge 3 ] || die "usage: servers.sh start mariadb|mysql DIR [OPTION…]" ;;
      *) [ $# = 3 ] || die "usage: servers.sh start ENGINE DIR" ;;
    esac
    DIR=$3
    if [ "$2" = galera ]; then start_galera; else start "$2" "${@:4}"; fi ;;
  run)
    [ $# -ge 3 ] && [[ $2 =~ ^(postgres|prometheus)$ ]] || die "usage: servers.sh run postgres|prometheus PROGRAM ARG…"
    fetch "$2"; from=$(tree "$2")
    if [ "$2" = postgres ]; then bin=$(pg_bin "$from"); else bin=$from/usr/bin; fi
    run_in "$from" "$bin/$3" "${@:4}" ;;
  faketime)
    [ $# = 1 ] || die "usage: servers.sh faketime"
    fetch faketime; faketime_of "$(tree faketime)" ;;
  stripe)
    [ $# = 1 ] || die "usage: servers.sh stripe"
    one_at_a_time stripe python_with_stripe ;;
  axe)
    [ $# = 1 ] || die "usage: servers.sh axe"
    one_at_a_time axe axe_core ;;
  stop)
    [ $# = 2 ] || die "usage: servers.sh stop DIR"; DIR=$2
    if [ "$(cat "$DIR/engine" 2>/dev/null)" = galera ]; then stop_galera; else stop; fi ;;
  *) sed -n '2,29p' "$here/servers.sh" >&2; exit 64 ;;
esac
