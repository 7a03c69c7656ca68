//! A user who lacks a right on rowlock's tables, or on the whole database, is told which grants to ask for; the
//! command exits with 78.

use std::process::Output;

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{Db, as_user, take, user_name};

use crate::command::command;

const SERVERS: [Engine; 3] = [Engine::Postgres, Engine::MariaDb, Engine::MySql];

/// A user of the database that rowlock's tables are in, without any right on it.
struct User<'d> {
    db: &'d Db,
    /// As GRANT wants it.
    name: String,
    url: String,
}

impl<'d> User<'d> {
    async fn new(db: &'d Db) -> Self {
        let role = user_name("r");
        let (name, make) = if db.engine == Engine::Postgres {
            (role.clone(), format!("CREATE ROLE {role} LOGIN"))
        } else {
            let name = format!("'{role}'@'%'");
            let make = format!("CREATE USER {name} IDENTIFIED BY 'pw'");
            (name, make)
        };
        db.execute(&make).await;
        let url = as_user(&db.url, &role, "pw");
        Self { db, name, url }
    }

    fn command(&self, arguments: &[&str]) -> Output {
        command(&self.url, arguments).output().unwrap()
    }

    /// The command is refused, and says which grants are missing: those.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(78),
            "{} {arguments:?}: {error}",
            self.db.engine
        );
        grants(&error)
    }

    async fn remove(self) {
        let drop = if self.db.engine == Engine::Postgres {
            format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name)
        } else {
            format!("DROP USER {}", self.name)
        };
        self.db.execute(&drop).await;
    }
}

/// What an administrator copies from the message.
fn grants(error: &str) -> String {
    let at = error.find("GRANT ").unwrap_or_else(|| panic!("{error}"));
    assert!(error.contains("denied"), "what the server said: {error}");
    error[at..].trim().to_owned()
}

/// Everything that an application does with rowlock.
async fn use_all(rowlock: &Rowlock) -> Result<(), Error> {
    let held = rowlock.lock("a").acquire().await?;
    held.release().await?;
    let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
    let Begun::New(guard) = idempotency.begin(Scope("me").key("k"), &request).await? else {
        panic!("it is new");
    };
    guard.step("charge", async { Ok::<_, Error>(1) }).await?;
    guard.complete(&Outcome::json(&1)?).await?;
    rowlock.form_tokens().issue("me").await?;
    rowlock.admin().clean(10).await?;
    rowlock.admin().list().await.map(drop)
}

#[tokio::test]
async fn the_grants_that_a_refusal_names_are_enough() {
    for engine in SERVERS {
        let db = Db::new(engine).await;
        let owner = db.rowlock().await;
        let user = User::new(&db).await;
        let asked = user.refused(&["ls"]);
        for arguments in [
            &["run", "a", "--no-wait", "--", "true"][..],
            &["idempotency", "ls"],
            &["clean"],
            &["migrate"],
        ] {
            assert_eq!(user.refused(arguments), asked, "{arguments:?}");
        }
        let error = Rowlock::connect(&user.url).await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        assert_eq!(grants(&error.to_string()), asked);
        assert!(!error.is_transient() && !error.is_retryable());

        db.execute(&asked).await;
        let rowlock = Rowlock::connect(&user.url).await.unwrap();
        use_all(&rowlock).await.unwrap();
        assert_eq!(user.command(&["ls"]).status.code(), Some(0));
        drop((rowlock, owner));
        user.remove().await;
        db.remove().await;
    }
}

#[tokio::test]
async fn who_may_only_read_is_told_so_when_something_is_to_be_written() {
    for engine in SERVERS {
        let db = Db::new(engine).await;
        let owner = db.rowlock().await;
        let held = take(&owner, "a", std::time::Duration::from_secs(30)).await;
        let user = User::new(&db).await;
        let tables = match engine {
            Engine::Postgres => "ALL TABLES IN SCHEMA public".to_owned(),
            _ => format!("{}.*", db.url.rsplit('/').next().unwrap()),
        };
        db.execute(&format!("GRANT SELECT ON {tables} TO {}", user.name))
            .await;
        let ls = user.command(&["ls"]);
        assert!(String::from_utf8_lossy(&ls.stdout).contains("HOLDER"));
        assert_eq!(ls.status.code(), Some(0));
        user.refused(&["run", "b", "--no-wait", "--", "true"]);
        user.refused(&["release", "a", "--force"]);
        assert!(held.is_held());
        drop((held, owner));
        user.remove().await;
        db.remove().await;
    }
}

#[tokio::test]
async fn who_may_not_connect_to_the_database_is_told_so() {
    let db = Db::new(Engine::Postgres).await;
    let owner = db.rowlock().await;
    let user = User::new(&db).await;
    let name = db.url.rsplit('/').next().unwrap();
    db.execute(&format!("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"))
        .await;
    let asked = user.refused(&["ls"]);
    assert!(asked.contains("GRANT CONNECT ON DATABASE"), "{asked}");
    db.execute(&asked).await;
    assert_eq!(user.command(&["ls"]).status.code(), Some(0));
    drop(owner);
    user.remove().await;
    db.remove().await;
}
