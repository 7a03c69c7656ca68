//! The command `rowlock`: its arguments and its exit codes.

mod check;
mod console;
mod database;
mod documents;
mod duration;
mod execute;
mod failure;
mod idempotency;
mod jobs;
mod leash;
mod log;
mod ls;
mod out;
mod pause;
mod person;
mod quarantine;
mod record_words;
mod records;
mod release;
mod reset;
mod run;
mod scheduled;
mod serve;
mod share;
mod show;
mod signals;
mod terminal;
mod until;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use clap_complete::Shell;

use rowlock::{Admin, Engine, Name};

use failure::Failure;

/// The lock is free, or the record does not exist. (As with grep(1): not found is no error.)
const ABSENT: u8 = 1;
/// sysexits.h(3): wrong usage.
const USAGE: u8 = 64;
/// sysexits.h(3): a service is unavailable.
const UNAVAILABLE: u8 = 69;
/// sysexits.h(3): a temporary failure, try again later. Here: another process holds the lock.
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while the command ran. (sysexits.h calls 76 a protocol error.)
const LOST: u8 = 76;
/// sysexits.h(3): damaged data. Here: a row that was edited by hand.
const DAMAGED: u8 = 65;
/// sysexits.h(3): wrong configuration. Here: the tables, the user's rights, or the server's version.
const NOT_SET_UP: u8 = 78;
/// sysexits.h(3): any other failure.
const FAILED: u8 = 70;

const AFTER_HELP: &str = "\
Examples:
  rowlock run nightly-report -- ./report.sh         wait for the lock, then run
  rowlock run nightly-report -- sh -c './report.sh | mail -s report ops'
  rowlock run backup --no-wait -- ./backup.sh       run only if the lock is free
  rowlock run billing --ttl 10s --wait 1m -- ./bill --month 11
  rowlock ls
  rowlock ls 'stock:*' --waiting                    who waits for a name that begins so
  rowlock check                                     could a program use this database?
  rowlock show nightly-report --json
  rowlock run reminders --at-least-for 50s -- ./remind.sh     on one of many machines
  rowlock jobs                                      when each job ran, and what came of it
  rowlock jobs reminders                            its last 20 runs
  rowlock quarantine --for 2m                       after a failover that may have lost commits
  rowlock pause billing --for 2h --why 'bank down'  nobody is granted it; `resume` ends that
  rowlock release nightly-report                    who would lose it? --force frees it
  rowlock set-capacity exports 5                    from now on, five run at a time
  rowlock forget exports                            it may be another kind of lock now
  rowlock idempotency ls --state unknown            records that wait for a decision
  rowlock idempotency resolve alice order-17 --step charge --happened --result 42
  rowlock idempotency reset --state poisoned        after a crash loop
  rowlock console                                   all of this in a browser, at http://127.0.0.1:8090/
  rowlock clean                                     remove expired rows
  rowlock migrate --print postgres | psql shop      a DBA makes the tables

ROWLOCK_LOG=warn prints warnings, too, on standard error.

Exit codes:
  1  show, release without --force: nobody holds the lock; resume: it is not paused;
     idempotency show, reset, resolve: the record does not exist
  64 wrong usage, or the name is of another kind or capacity; release without --force: it is held;
     idempotency reset, resolve: the record is in another state
  69 database unreachable, missing or read-only, login refused, outcome unknown
  75 not acquired, or (forget) in use  76 lock lost while the command ran
  78 wrong tables, rights or server version  65 damaged row     70 any other failure
  run: otherwise the command's exit code, 128 + the number of the signal that ended it,
       126 or 127 when rowlock cannot start it; with --at-least-for 0 also when the job
       runs on another machine, or has run there just now
Errors are text on standard error, also with --json.

The URL has the form postgres://USER:PASSWORD@HOST:PORT/DATABASE, mysql://…, mariadb://… or
sqlite:PATH. Write several servers as HOST1:PORT1,HOST2:PORT2: rowlock uses the server that takes
writes. Percent-encode special characters in a password.";

#[derive(Debug, Parser)]
#[command(name = "rowlock", version, about = "Locks and idempotency that live as rows in your SQL database",
    after_help = AFTER_HELP, propagate_version = true, disable_version_flag = true)]
struct Arguments {
    /// Print the version.
    #[arg(short = 'V', short_alias = 'v', long, global = true, action = clap::ArgAction::Version)]
    version: Option<bool>,

    /// The database [default: sqlite:rowlock.db, a file in the working directory].
    #[arg(long, global = true, env = database::VARIABLE, hide_env_values = true, value_name = "URL")]
    url: Option<String>,

    /// PostgreSQL: the schema of the tables [default: the first one that the user's session has].
    #[arg(long, global = true, env = database::SCHEMA_VARIABLE, value_name = "NAME")]
    schema: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command while holding a lock
    ///
    /// The command runs in a new process group, with ROWLOCK_NAME and ROWLOCK_FENCE in its environment. rowlock passes
    /// signals on to it, SIGCONT too. A signal that was ignored when rowlock started (under nohup, for example) stays
    /// ignored. When the lock is lost, rowlock sends SIGTERM to the group, and after the grace SIGKILL.
    ///
    /// Ctrl-Z stops the command and rowlock; fg or bg continues both. Nothing renews the lock while rowlock is
    /// stopped. After the TTL another process may get the lock; then rowlock ends the command as soon as both
    /// continue. When only the command is stopped (by SIGSTOP, or without a terminal), rowlock still renews the lock,
    /// and SIGCONT to rowlock continues the command.
    Run(run::Run),
    /// List the held locks, and who waits for each
    Ls(ls::Ls),
    /// Say whether a program could use this database
    ///
    /// It connects, takes a lock, and releases it. The exit code is 69 when the database is out of reach, and 78 when
    /// its tables, its version or the user's rights do not fit.
    Check,
    /// List the sessions of all clients
    ///
    /// A lock that was taken in a session lives as long as the session.
    Sessions {
        /// Only sessions whose holder has this text in it.
        #[arg(long, value_name = "TEXT")]
        holder: Option<String>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// List the jobs, with the last run of each; or the last 20 runs of one
    ///
    /// `rowlock run --at-least-for` records its runs, and so does a program that uses `Job` or `begin_run`. They are
    /// kept for 400 days.
    Jobs {
        /// The job.
        name: Option<Name>,
        /// Print a JSON array: one object per run.
        #[arg(long)]
        json: bool,
    },
    /// Grant nothing for a time, because the database may have forgotten its last commits
    ///
    /// After a failover to a standby that lacked the last commits, after a crash with relaxed durability, or after
    /// restoring a backup, a holder may have a lease of which the database knows nothing. Run this before clients
    /// reach the database. An empty database gets its tables, in quarantine from the start. Leases that it has not
    /// forgotten go on. Without an option, this tells how long the quarantine lasts.
    Quarantine(quarantine::Quarantine),
    /// Grant a lock, or a job's name, to nobody for a time
    ///
    /// Who holds it keeps it until the release. Who waits goes on waiting, in the same order, and reads the reason.
    Pause(pause::Pause),
    /// End the pause of a name
    ///
    /// The exit code is 1 when it is not paused.
    Resume {
        /// The name.
        name: Name,
    },
    /// Show who holds a lock, a read/write lock or a semaphore, and who waits for it
    ///
    /// The exit code is 1 when no one holds it.
    #[command(alias = "status")]
    Show {
        /// The lock.
        name: Name,
        /// Print a JSON object: the name, its holders and its waiters.
        #[arg(long)]
        json: bool,
    },
    /// Say who would lose a lock; with --force, free it
    ///
    /// The holder learns of its loss at its next renewal, within a third of its TTL. Until then it may go on working.
    /// Of a semaphore it frees all permits, of a read/write lock the writer or all readers, and prints a line for
    /// each. It frees no permit that a transaction has pinned: then it frees the others, and fails.
    #[command(alias = "unlock")]
    Release {
        /// The lock.
        name: Name,
        /// Free it. A process may still be working under this lock.
        #[arg(long)]
        force: bool,
    },
    /// Change the capacity of a semaphore, even while permits of it are held
    ///
    /// With a larger capacity, waiters get permits at once. With a smaller one no process loses a permit, and there
    /// are no new permits until enough are released. From now on, `run --permits N/M` needs the new capacity as its M.
    SetCapacity {
        /// The semaphore. If the database does not have it yet, it is made.
        name: Name,
        /// The new capacity: 1 to 2147483646.
        #[arg(value_parser = clap::value_parser!(u32).range(1..=2_147_483_646))]
        capacity: u32,
    },
    /// Forget a name that no one holds or waits for, so that it may become something else
    ///
    /// A name is used as a lock, as a read/write lock, or as a semaphore of one capacity, until ten days after its
    /// last use. This removes its row at once. The exit code is 75 when the name is held, pinned by a transaction, or
    /// waited for.
    Forget {
        /// The name.
        name: Name,
    },
    /// Inspect idempotency records, and decide about unknown and poisoned ones
    #[command(subcommand)]
    Idempotency(idempotency::Command),
    /// Serve pages that show all this in a browser, and that let an operator act
    ///
    /// It listens on this machine only, where every user can open it; --token-file asks for a token first. Every
    /// action needs a reason, and prints a line on standard error. Ctrl-C ends it.
    Console(console::Console),
    /// Remove expired idempotency records, form tokens, sessions and lock rows
    ///
    /// Processes that use rowlock do this in the background, unless they have switched it off.
    Clean {
        /// The most rows of one kind that one transaction removes.
        #[arg(long, default_value_t = Admin::CLEAN_BATCH, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        batch: u32,
    },
    /// Print the completions of a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell.
        shell: Shell,
    },
    /// Print the manual page
    Man {
        /// Write it into this folder instead, with a page for each command.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
    /// Create or update the tables
    ///
    /// `rowlock run` does this, too, if its user has the right to create tables. The other commands create nothing.
    Migrate {
        /// Print the SQL for an empty database instead: postgres, mysql, mariadb or sqlite.
        #[arg(long, value_name = "ENGINE")]
        print: Option<Engine>,
        /// Print only what a database of this schema version lacks.
        #[arg(long, value_name = "VERSION", default_value_t = 0, requires = "print")]
        from: u32,
    },
}

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == leash::NAME)
    {
        return leash::Leash::parse_from(std::env::args_os().skip(1)).become_command();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // --help and --version are no errors.
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = with_hint(error).print();
            return ExitCode::from(code);
        }
    };
    log::begin();

    // One thread is enough. The main thread must start the child: the child gets SIGTERM when the thread that started
    // it ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(async {
            let result = execute::execute(arguments).await;
            database::close().await;
            result
        }),
        Err(error) => Err(Failure::Other(format!("cannot start: {error}"), FAILED)),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            out::tell(format_args!("{}", failure.message()));
            ExitCode::from(failure.code())
        }
    }
}

/// Says where `--` belongs when the command of `run` stands without it, and how `run` takes a name that begins with a
/// dash.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let said = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let word = said(ContextKind::InvalidArg);
    let is_run = said(ContextKind::Usage).contains("rowlock run ");
    if error.kind() == ErrorKind::UnknownArgument && is_run {
        let hint = if word.starts_with('-') {
            format!(
                "if {word} is the name of the lock, write --name={word}; if it is for the command, write it after `--`"
            )
        } else {
            "put `--` before the command: rowlock run NAME -- CMD".into()
        };
        let hints = ContextValue::StyledStrs(vec![hint.into()]);
        error.insert(ContextKind::Suggested, hints);
    }
    error
}
