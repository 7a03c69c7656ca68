//! Takes a lock on a server, and writes to a SQLite database of its own under it. Prints the fence as SQLite has kept
//! it.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .ok_or("usage: beside-rusqlite URL")?;
    let rowlock = rowlock::Rowlock::connect(&url).await?;
    let held = rowlock.lock("report").acquire().await?;
    let own = rusqlite::Connection::open_in_memory()?;
    own.execute_batch("CREATE TABLE report (fence INTEGER NOT NULL)")?;
    own.execute("INSERT INTO report VALUES (?1)", [held.fence()])?;
    let fence: i64 = own.query_row("SELECT fence FROM report", [], |row| row.get(0))?;
    println!("{fence}");
    held.release().await?;
    Ok(())
}
