//! What the provider reports.

use serde::Deserialize;
use serde_json::value::RawValue;

/// An event: `{"id": "evt_1", "data": {"account": "ann", "cents": 500}}`, and more that does not matter here.
#[derive(Debug)]
pub struct Event<'a> {
    /// What the provider calls it, in every delivery.
    pub id: &'a str,
    /// What it says, as it was sent. (The rest of a delivery may differ: a provider may count how many webhooks are still to be sent.)
    pub data: &'a [u8],
    /// Whose money it is.
    pub account: &'a str,
    /// How much it is.
    pub cents: i64,
}

/// No delivery of such a message would help.
#[derive(Debug, thiserror::Error)]
#[error("this is no event: {0}")]
pub struct BadEvent(#[from] serde_json::Error);

impl<'a> Event<'a> {
    /// Reads an event.
    ///
    /// # Errors
    ///
    /// The body is no event.
    pub fn of(body: &'a [u8]) -> Result<Self, BadEvent> {
        #[derive(Deserialize)]
        struct Sent<'a> {
            id: &'a str,
            #[serde(borrow)]
            data: &'a RawValue,
        }

        #[derive(Deserialize)]
        struct Data<'a> {
            account: &'a str,
            cents: i64,
        }

        let Sent { id, data } = serde_json::from_slice(body)?;
        let Data { account, cents } = serde_json::from_str(data.get())?;
        Ok(Self {
            id,
            data: data.get().as_bytes(),
            account,
            cents,
        })
    }
}
