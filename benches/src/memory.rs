//! The memory of a process.

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The resident memory of this process, in KiB.
pub(crate) fn resident() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(kib.ok_or("no VmRSS")?)
}
