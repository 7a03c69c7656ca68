//! What each command does.

use rowlock::migration_sql;

use crate::{
    Arguments, Command, Failure, check, database, documents, idempotency, jobs, out, pause,
    release, show,
};

pub(crate) async fn execute(arguments: Arguments) -> Result<u8, Failure> {
    let url = arguments.url.as_deref().unwrap_or(database::DEFAULT);
    database::in_schema(arguments.schema);
    match arguments.command {
        Command::Run(run) => {
            let made = database::missing(url);
            run.execute(url, made).await
        }
        Command::Ls(ls) => ls.execute(url).await,
        Command::Check => check::check(url).await,
        Command::Sessions { holder, json } => {
            let rowlock = database::find(url).await?;
            let mut sessions = rowlock.admin().sessions().await?;
            let none = match holder {
                Some(wanted) => {
                    sessions.retain(|session| session.holder.contains(&wanted));
                    format!(
                        "no session has a holder with {wanted:?} in it: `rowlock sessions` lists all"
                    )
                }
                None => "no client has a session".into(),
            };
            show::print_sessions(&sessions, json, &none)?;
            if sessions.is_empty() && !json {
                database::tell_where(&rowlock);
            }
            Ok(0)
        }
        Command::Jobs { name, json } => jobs::jobs(url, name, json).await,
        Command::Quarantine(quarantine) => {
            let made = database::missing(url);
            quarantine.execute(url, made).await
        }
        Command::Pause(pause) => pause.execute(url).await,
        Command::Resume { name } => pause::resume(url, name).await,
        Command::Show { name, json } => show::show(url, &name, json).await,
        Command::Release { name, force } => {
            let rowlock = database::find(url).await?;
            if !force {
                return Err(release::refusal(&rowlock, &name).await?);
            }
            release::release(&rowlock, &name).await.map(|()| 0)
        }
        Command::SetCapacity { name, capacity } => {
            let rowlock = database::find(url).await?;
            let semaphore = rowlock.semaphore(name.clone(), capacity);
            let before = semaphore.set_capacity().await?;
            show::print_capacity(&name, capacity, before)?;
            if before.is_none() {
                database::tell_where(&rowlock);
            }
            Ok(0)
        }
        Command::Forget { name } => {
            release::forget(&database::find(url).await?, &name).await?;
            Ok(0)
        }
        Command::Completions { shell } => documents::print_completions(shell).map(|()| 0),
        Command::Man { dir } => documents::print_manual(dir.as_deref()).map(|()| 0),
        Command::Idempotency(command) => command.execute(url).await,
        Command::Console(console) => console.execute(url).await,
        Command::Clean { batch } => {
            idempotency::clean(&database::find(url).await?, batch).await?;
            Ok(0)
        }
        Command::Migrate {
            print: Some(engine),
            from,
        } => {
            let sql = migration_sql(engine, from)?;
            out::print(format_args!("{}{sql}", database::before_migration(engine)?)).map(|()| 0)
        }
        Command::Migrate { print: None, .. } => {
            show::print_migrations(&database::make(url).await?).map(|()| 0)
        }
    }
}
