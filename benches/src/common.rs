//! The arguments that several benchmarks have.

use rowlock::Engine;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    /// Engines to measure, each on a separate durable server.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sqlite,postgres,mariadb,mysql"
    )]
    pub(crate) engines: Vec<Engine>,
    /// The number of rounds. The result is their median.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
}
