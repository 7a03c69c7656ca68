//! `rowlock ls`: names that are held or waited for, page by page of the database.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use rowlock::{NameFilter, NameInfo, NameState, Rowlock, WaiterInfo};

use crate::out::{print, say};
use crate::{Failure, USAGE, database, pause, quarantine, show};

#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command"
)]
pub(crate) struct Ls {
    /// Only this name, or all names that begin so: 'stock:*'.
    pattern: Option<String>,
    /// Only names that have a holder.
    #[arg(long, conflicts_with = "waiting")]
    held: bool,
    /// Only names that have a waiter.
    #[arg(long)]
    waiting: bool,
    /// Only names that are paused.
    #[arg(long, conflicts_with_all = ["held", "waiting"])]
    paused: bool,
    /// Show the list again each second, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print a JSON array: one object per name, with its holders and its waiters.
    #[arg(long)]
    json: bool,
}

/// How often a watched list is read.
const EVERY: Duration = Duration::from_secs(1);

const NOBODY: &str = "nobody holds a lock";

/// Clears the screen, and goes to its first line (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[2J\x1b[H";

impl Ls {
    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        let filter = self.filter()?;
        if self.watch && !std::io::stdout().is_terminal() {
            let message = "--watch needs a terminal: without it, the list is printed once";
            return Err(Failure::Other(message.into(), USAGE));
        }
        let rowlock = database::find(url).await?;
        if self.watch {
            return self.watch(&rowlock, &filter).await;
        }
        let count = self.list(&rowlock, filter).await?;
        if !self.json {
            quarantine::tell_of_it(&rowlock).await?;
        }
        if count == 0 && !self.json {
            database::tell_where(&rowlock);
        }
        Ok(0)
    }

    /// The name, if the pattern is one.
    fn name(&self) -> Option<&str> {
        self.pattern.as_deref().filter(|name| !name.ends_with('*'))
    }

    fn filter(&self) -> Result<NameFilter, Failure> {
        let pattern = self.pattern.as_deref().unwrap_or_default();
        let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
        if prefix.contains('*') {
            let message = format!("`{pattern}`: a `*` may stand at the end only, as in 'stock:*'");
            return Err(Failure::Other(message, USAGE));
        }
        Ok(NameFilter::new().prefix(prefix).state(self.state()))
    }

    /// What an empty list says.
    fn none(&self) -> String {
        let none = match self.state() {
            NameState::Paused => "no name is paused",
            NameState::Awaited => "nobody waits for a lock",
            _ => NOBODY,
        };
        match &self.pattern {
            Some(pattern) => format!("{none} (looked for {pattern:?})"),
            None => none.into(),
        }
    }

    fn state(&self) -> NameState {
        match (self.held, self.waiting, self.paused) {
            (true, ..) => NameState::Held,
            (_, true, _) => NameState::Awaited,
            (.., true) => NameState::Paused,
            _ => NameState::InUse,
        }
    }

    /// The wanted names of a page, and those who wait for them.
    async fn page(
        &self,
        rowlock: &Rowlock,
        filter: &NameFilter,
    ) -> Result<(Vec<NameInfo>, Vec<WaiterInfo>, Option<String>), Failure> {
        let (names, next) = if let Some(name) = self.name() {
            let info = rowlock.admin().name(name).await?;
            let info = info.filter(|info| info.is(self.state()));
            (Vec::from_iter(info), None)
        } else {
            let mut page = rowlock.admin().names(filter).await?;
            // A page has 100 holders of a name at most.
            for info in page
                .items
                .iter_mut()
                .filter(|info| info.holders.len() >= 100)
            {
                info.holders = rowlock.admin().holders(info.name.clone()).await?;
            }
            (page.items, page.next)
        };
        let mut waiters = Vec::new();
        for info in names.iter().filter(|info| info.waiters > 0) {
            waiters.extend(rowlock.admin().queue(info.name.clone()).await?);
        }
        Ok((names, waiters, next))
    }

    /// Prints all pages. Returns how many names these have.
    async fn list(&self, rowlock: &Rowlock, mut filter: NameFilter) -> Result<usize, Failure> {
        let mut count = 0;
        let mut array = show::JsonArray::default();
        loop {
            let (names, waiters, next) = self.page(rowlock, &filter).await?;
            count += names.len();
            if self.json {
                array.print(&show::listed(&names, &waiters))?;
            } else {
                print_names(&names, &waiters)?;
            }
            if next.is_none() {
                break;
            }
            filter = filter.from(next);
        }
        if self.json {
            array.end()?;
        } else if count == 0 {
            say!("{}", self.none())?;
        }
        Ok(count)
    }

    /// Shows the first page again and again. A database that is away for a while is told, and waited for.
    async fn watch(&self, rowlock: &Rowlock, filter: &NameFilter) -> Result<u8, Failure> {
        loop {
            match self.page(rowlock, filter).await {
                Ok((names, waiters, next)) => {
                    print(format_args!("{CLEAR}"))?;
                    if names.is_empty() {
                        say!("{}", self.none())?;
                    }
                    print_names(&names, &waiters)?;
                    if next.is_some() {
                        say!("(there are more names: `rowlock ls` without --watch lists all)")?;
                    }
                }
                Err(Failure::Rowlock(error)) if error.is_transient() => say!("{CLEAR}{error}")?,
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

fn print_names(names: &[NameInfo], waiters: &[WaiterInfo]) -> Result<(), Failure> {
    if names.is_empty() {
        return Ok(());
    }
    let held: Vec<_> = names.iter().flat_map(|info| info.holders.clone()).collect();
    let paused: Vec<_> = names
        .iter()
        .filter_map(|info| info.pause.as_ref())
        .collect();
    if paused.is_empty() || !held.is_empty() || !waiters.is_empty() {
        show::print_tables(NOBODY, &held, waiters)?;
    }
    pause::print(paused)
}
