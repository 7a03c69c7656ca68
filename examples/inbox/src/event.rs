//! What the provider reports.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Error as _;

/// An event: `{"id": "evt_1", "data": {"account": "ann", "cents": 500}}`, and more that does not matter here.
#[derive(Debug)]
pub struct Event<'a> {
    /// What the provider calls it, in every delivery.
    pub id: Cow<'a, str>,
    /// Whose money it is.
    pub account: Cow<'a, str>,
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
            #[serde(borrow)]
            id: Cow<'a, str>,
            #[serde(borrow)]
            data: Data<'a>,
        }

        #[derive(Deserialize)]
        struct Data<'a> {
            #[serde(borrow)]
            account: Cow<'a, str>,
            cents: i64,
        }

        let Sent { id, data } = serde_json::from_slice(body)?;
        // PostgreSQL stores no such text, so that each delivery would fail.
        if [&id, &data.account].iter().any(|text| text.contains('\0')) {
            let reason = "an id and an account have no NUL character";
            return Err(serde_json::Error::custom(reason).into());
        }
        Ok(Self {
            id,
            account: data.account,
            cents: data.cents,
        })
    }

    /// What makes it the same event. The rest of a delivery may differ: a provider may count how many webhooks are
    /// still to be sent.
    #[must_use]
    pub fn says(&self) -> Vec<u8> {
        format!("{}\0{}", self.cents, self.account).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_may_be_escaped() {
        let event =
            Event::of(br#"{"id":"evt\/1","data":{"account":"J\u00f6rg","cents":5}}"#).unwrap();
        assert_eq!(
            (&*event.id, &*event.account, event.cents),
            ("evt/1", "J\u{f6}rg", 5)
        );
    }

    #[test]
    fn what_the_database_cannot_store_is_no_event() {
        for (id, account) in [("1", "a\\u0000"), ("1\\u0000", "a")] {
            let event = format!(r#"{{"id":"{id}","data":{{"account":"{account}","cents":5}}}}"#);
            let says = Event::of(event.as_bytes()).unwrap_err().to_string();
            assert_eq!(
                says,
                "this is no event: an id and an account have no NUL character"
            );
        }
    }
}
