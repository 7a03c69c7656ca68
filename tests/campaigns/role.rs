//! The parts that a process of this program can play.

use serde::{Deserialize, Serialize};

use crate::{effects, histories, leader, modes, payments, philosophers, quorum, worker};

pub(crate) type Role = rowlock_test::Role<Part>;

/// Whose process this is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Part {
    Campaign,
    Histories {
        number: u64,
        means: histories::Means,
    },
    Modes {
        seconds: u64,
    },
    Philosopher {
        seat: usize,
        is_multi: bool,
    },
    Effects {
        session: effects::Session,
    },
    Shop {
        gateway: u16,
    },
    Claim,
    Gateway,
    Quorum,
    Leader {
        candidate: i64,
        means: leader::Means,
    },
}

impl rowlock_test::Part for Part {
    async fn play(role: &Role) {
        match role.part {
            Self::Campaign => worker::work(role).await,
            Self::Histories { number, means } => histories::work(role, number, means).await,
            Self::Modes { seconds } => modes::work(role, seconds).await,
            Self::Philosopher { seat, is_multi } => {
                philosophers::dine(role, seat, is_multi).await;
            }
            Self::Effects { session } => effects::work(role, session).await,
            Self::Shop { gateway } => payments::shop(role, gateway).await,
            Self::Claim => payments::claim(role).await,
            Self::Gateway => payments::gateway(role).await,
            Self::Quorum => quorum::work(role).await,
            Self::Leader { candidate, means } => leader::stand(role, candidate, means).await,
        }
    }
}
