//! What became of a delivery, and what its broker has to be told.

/// What became of a delivery of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the broker has to be told"]
pub enum Delivery<E> {
    /// The work has run, and its writes are committed.
    Done,
    /// An earlier delivery did the work.
    Duplicate,
    /// Another consumer works on this message now.
    InFlight,
    /// The id of this message was used for another payload.
    OtherPayload,
    /// The id has no bytes, or more than 255.
    InvalidId,
    /// The record of this id waits for a decision: other calls than an inbox's have used this scope.
    Undecided,
    /// The work, or the database, has failed: nothing is written. (After
    /// [`Error::CommitUnknown`](rowlock::Error::CommitUnknown) the next delivery finds out.)
    Failed(E),
}

/// What to tell the broker, or the sender of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// Acknowledge: the work is done. (AMQP `basic.ack`; 200 to a webhook's sender.)
    Ack,
    /// Deliver it again, later. (AMQP `basic.nack` with `requeue`; 503.)
    Nack,
    /// Never deliver it again, and put it aside for a person. (AMQP `basic.reject` without `requeue`, into the dead
    /// letter exchange; 422.)
    DeadLetter,
}

impl<E> Delivery<E> {
    /// What to tell the broker. A failure is delivered again: limit the deliveries of a message in the broker
    /// (RabbitMQ: `x-delivery-limit` of a quorum queue).
    #[must_use]
    pub fn reply(&self) -> Reply {
        self.reply_unless(|_| false)
    }

    /// [`reply`](Self::reply), where a failure may be one that every other delivery would repeat (a payload that
    /// cannot be read): `is_final` says so, and the message is put aside.
    #[must_use]
    pub fn reply_unless(&self, is_final: impl FnOnce(&E) -> bool) -> Reply {
        match self {
            Self::Done | Self::Duplicate => Reply::Ack,
            Self::OtherPayload | Self::InvalidId | Self::Undecided => Reply::DeadLetter,
            Self::Failed(error) if is_final(error) => Reply::DeadLetter,
            Self::InFlight | Self::Failed(_) => Reply::Nack,
        }
    }
}
